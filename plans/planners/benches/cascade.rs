//! How long a cascade plan takes on a large validation set, and how much memory.
//!
//! `cargo bench -p kaskade-planners --bench cascade -- [SAMPLES [VARIANTS [OBJECTIVE...]]]` plans cascades from a synthetic profile, one objective after the
//! other, on one core: by default 200,000 samples of four variants and ten classes. The peak of memory is that of the process so far, so run one objective
//! alone to see its own. `--write FILE` writes the profile instead, for `kaskade plan cascade`.
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures time; planners do not read it"
)]

use std::error::Error;
use std::time::Instant;

use kaskade_planners::cascade::{CascadeOptions, Objective, plan_cascade};
use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Classes of the synthetic task.
const CLASSES: u32 = 10;

/// How well confidences tell right from wrong answers.
const SHARPNESS: f64 = 3.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let file = words.iter().position(|word| word == "--write").map(|place| {
        let file = words.get(place + 1).cloned();
        words.truncate(place);
        file
    });
    let mut words = words.into_iter();
    let samples = words.next().map_or(Ok(200_000), |word| word.parse())?;
    let variants = words.next().map_or(Ok(4), |word| word.parse())?;
    let profile = profile(samples, variants);
    if let Some(file) = file {
        std::fs::write(file.ok_or("--write needs a file")?, profile.to_json()?)?;
        return Ok(());
    }
    let certified = |target| Objective::Certified(CertifyOptions::new(target));
    let objectives = [
        ("ap", Objective::Ap),
        ("eo", Objective::Eo),
        ("largest", Objective::Largest),
        (
            "thresholds",
            Objective::Thresholds(vec![0.5; variants.saturating_sub(1)]),
        ),
        ("max-loss", certified(AccuracyTarget::MaxLoss { loss: 0.01 })),
        (
            "min-accuracy",
            certified(AccuracyTarget::MinAccuracy { accuracy: 0.9 }),
        ),
    ];
    let wanted: Vec<String> = words.collect();
    println!("{samples} samples, {variants} variants: {}", memory("before"));
    for (name, objective) in objectives {
        if !wanted.is_empty() && !wanted.iter().any(|word| word == name) {
            continue;
        }
        let options = CascadeOptions {
            objective,
            ..CascadeOptions::default()
        };
        let start = Instant::now();
        let planned = plan_cascade(&profile, &options)?;
        let took = start.elapsed().as_secs_f64();
        println!(
            "{name}: {took:.2} s; accuracy {:.4}, {:.4} J; {}",
            planned.estimates.accuracy,
            planned.estimates.energy_j,
            memory("peak")
        );
    }
    Ok(())
}

/// The largest resident memory of the process so far, where the system says it.
fn memory(label: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    format!("{label} {}", peak.map_or("unknown", str::trim))
}

/// A normal draw (the sum of twelve uniform ones, which is near enough here).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Samples of varying difficulty, variants of growing skill and cost, confidences that are nearly calibrated.
fn profile(samples: usize, variants: usize) -> Profile {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let skills: Vec<f64> = (0..variants)
        .map(|place| 1.0 + 1.6 * place as f64 / variants as f64)
        .collect();
    let mut columns = vec![Validation::default(); variants];
    let mut input_bytes = Vec::with_capacity(samples);
    for _ in 0..samples {
        let (difficulty, label) = (normal(&mut rng), rng.random_range(0..CLASSES));
        input_bytes.push(rng.random_range(20..400));
        for (column, skill) in columns.iter_mut().zip(&skills) {
            let logit = SHARPNESS * (skill - difficulty + 0.5 * normal(&mut rng));
            let right = rng.random::<f64>() < sigmoid(logit);
            let wrong = (label + rng.random_range(1..CLASSES)) % CLASSES;
            let top = 0.1 + 0.9 * sigmoid(logit + 0.5 * normal(&mut rng));
            let second = (1.0 - top).min(top) * rng.random::<f64>();
            column.predictions.push(if right { label } else { wrong });
            column.correct.push(right);
            column.confidences.push(top * top);
            column.margins.push(top - second);
            column
                .entropies
                .push((1.0 - top) * (0.5 + 0.5 * rng.random::<f64>()));
        }
    }
    let variants = columns.into_iter().enumerate().map(|(place, validation)| {
        let cost = 0.001 * 4_f64.powf(place as f64);
        let batch = BatchCost {
            energy_j: Some(10.0 * cost),
            ..BatchCost::new(1, cost)
        };
        let calibration = Calibration::uncalibrated(Estimator::MaxSquared);
        VariantProfile::new(format!("v{place}"), calibration, vec![batch], validation)
    });
    Profile {
        input_bytes,
        ..Profile::new("made-up", Estimator::MaxSquared, variants.collect())
    }
}
