//! Digits whose pixels are corrupted from the middle of a run: how soon the watch of a certified plan finds it, and what that saves.
//!
//! `cargo run --release -p kaskade-app --example drift_study -- [SEEDS]`, in the root of the repository, prints a table and writes
//! `drift.json`. The models of `examples/digits` answer the test images, clean and corrupted; the streams then draw from these recorded
//! answers. Routing, sampling, audits and the watch are the code that serves; only the messages between processes are left out
//! (`actors/tests/it/audits.rs` has those).
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::indexing_slicing,
    reason = "arrays of known length, and values of an object that it made"
)]

use std::error::Error;
use std::path::Path;

use kaskade_app::config::App;
use kaskade_app::data::{Label, Samples};
use kaskade_app::family::Family;
use kaskade_app::planning;
use kaskade_models::{DeviceChoice, Inputs, Tensor};
use kaskade_planners::cascade::Objective;
use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use kaskade_policy::certificate_monitor::{
    self, Audit, AuditCapacity, AuditSettings, CertificateMonitor, Counts, Finding, MonitorConfig, Sampler,
};
use kaskade_policy::confidence::Scores;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use kaskade_policy::routing::{self, Route};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// Requests between two decisions of the monitor: one second at 100 requests/s.
const DECIDE_EVERY: usize = 100;

/// Requests before the corruption, during it and after it.
const PHASES: [usize; 3] = [50_000, 50_000, 150_000];

/// The largest loss that is certified. The validation set has 500 images.
const MAX_LOSS: f64 = 0.03;

/// Shares of audited requests.
const AUDITS: [f64; 2] = [0.005, 0.02];

/// A way to corrupt an image of 8 by 8 intensities in [0, 1].
type Corruption = (&'static str, fn(&mut [f32], &mut ChaCha8Rng));

const CORRUPTIONS: [Corruption; 4] = [
    ("noise", |pixels, random| {
        for pixel in pixels {
            let noise: f32 = (0..4).map(|_| random.random::<f32>() - 0.5).sum();
            *pixel = (*pixel + 0.6 * noise).clamp(0.0, 1.0);
        }
    }),
    ("shifted by a pixel", |pixels, _| pixels.rotate_right(1)),
    ("a dead column", |pixels, random| {
        let column = random.random_range(2..6);
        pixels
            .iter_mut()
            .skip(column)
            .step_by(8)
            .for_each(|pixel| *pixel = 0.0);
    }),
    ("a third of the contrast", |pixels, _| {
        for pixel in pixels {
            *pixel = 0.33 * *pixel + 0.3;
        }
    }),
];

/// What a variant answers to an image.
#[derive(Clone, Copy)]
struct Answer {
    class: u64,
    confidence: f64,
    right: bool,
}

/// Answers by variant and image.
type Answers = Vec<Vec<Answer>>;

/// The way of an image through a gear.
struct Walk {
    variant: String,
    answer: Answer,
    /// The stages that it passed, and the category of each result.
    categories: Vec<(usize, usize)>,
}

/// The ways of all images, by gear.
type Walks = Vec<Vec<Walk>>;

fn main() -> Result<(), Box<dyn Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let app = App::load(Path::new("examples/digits/app.toml"))?;
    let profile = Profile::from_json(&std::fs::read_to_string("examples/digits/profile.json")?)?;
    let options = CertifyOptions::new(AccuracyTarget::MaxLoss { loss: MAX_LOSS });
    let planned = planning::cascade(&profile)
        .app(&app)
        .objective(Objective::Certified(options))
        .plan()?;
    let plan = planned.plan;
    let list = plan.certified.as_ref().ok_or("the plan has no certified list")?;
    println!(
        "{} cascades in the certified list, {seeds} streams each",
        list.cascades.len()
    );
    println!(
        "corruption               audits  accuracy before, largest  refuted after  accuracy unwatched  until found  after  largest  restored after"
    );
    let clean = walks(&plan, &profile, &answers(&app, &profile, None)?);
    let mut rows = Vec::new();
    for corruption in CORRUPTIONS {
        let corrupted = walks(&plan, &profile, &answers(&app, &profile, Some(corruption))?);
        for share in AUDITS {
            let runs: Vec<Run> = (0..seeds)
                .map(|seed| run(&plan, [&clean, &corrupted], share, seed))
                .collect();
            rows.push(report(corruption.0, share, &runs));
        }
    }
    let study = json!({
        "command": "cargo run --release -p kaskade-app --example drift_study",
        "max_loss": MAX_LOSS, "confidence": 0.95, "alpha": MonitorConfig::default().alpha, "seeds": seeds, "phases": PHASES,
        "look_every_requests": DECIDE_EVERY, "cascades": list.cascades.len(), "rows": rows,
    });
    std::fs::write("drift.json", serde_json::to_string_pretty(&study)? + "\n")?;
    Ok(())
}

/// Lets every variant answer the test images.
fn answers(app: &App, profile: &Profile, corruption: Option<Corruption>) -> Result<Answers, Box<dyn Error>> {
    let family = Family::from_app(app);
    let set = app.data.test.as_ref().ok_or("the app has no test set")?;
    let mut all = Vec::new();
    for member in &family.members {
        let mut loaded = member.load(DeviceChoice::Cpu)?;
        let samples = Samples::read(set, &loaded)?;
        let model = &mut loaded.model;
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let inputs: Vec<Inputs> = samples
            .inputs
            .iter()
            .map(|inputs| corrupted(inputs, corruption, &mut random))
            .collect::<Result<_, _>>()?;
        let variant = profile
            .variants
            .iter()
            .find(|variant| variant.name == member.name);
        let calibration = variant.ok_or("the profile lacks a variant")?.calibration;
        let mut answers = Vec::new();
        for (outputs, label) in model.run(&inputs).into_iter().zip(&samples.labels) {
            let outputs = outputs?;
            let logits = outputs.first().ok_or("a model gave no output")?.to_f32()?;
            let mut best = (0, f32::NEG_INFINITY);
            for (class, logit) in logits.iter().enumerate() {
                if *logit > best.1 {
                    best = (class, *logit);
                }
            }
            answers.push(Answer {
                class: best.0 as u64,
                confidence: calibration.confidence(&Scores::Logits(&logits))?,
                right: *label == Label::Class(best.0),
            });
        }
        all.push(answers);
    }
    Ok(all)
}

fn corrupted(
    inputs: &Inputs,
    corruption: Option<Corruption>,
    random: &mut ChaCha8Rng,
) -> Result<Inputs, Box<dyn Error>> {
    let Some((_, corrupt)) = corruption else {
        return Ok(inputs.clone());
    };
    let image = inputs.first().ok_or("a sample has no input")?;
    let mut pixels = image.to_f32()?;
    corrupt(&mut pixels, random);
    Ok(vec![Tensor::from_f32(&image.name, &image.shape, &pixels)?])
}

/// What a stream showed.
#[derive(Default)]
struct Run {
    /// Findings in the first phase, which are false alarms.
    false_alarms: u32,
    /// Requests from the beginning of the corruption to the first drift of the inputs.
    drift_found: Option<usize>,
    /// To the first certificate that no longer holds.
    refuted: Option<usize>,
    /// To the last move towards safety.
    settled: Option<usize>,
    /// The limit at the end of the corruption.
    place: usize,
    /// Requests from the end of the corruption until every cascade may run again.
    restored: Option<usize>,
    /// Audits that asked the largest variant.
    audits: u64,
    /// Right answers and requests: before, from the corruption until the last move, from then on, after it.
    accuracy: [(u64, u64); 4],
    /// Right answers of the largest variant alone, clean and corrupted, and of the unwatched cascade.
    largest: [(u64, u64); 2],
    unwatched: [(u64, u64); 2],
}

fn run(plan: &Plan, data: [&Walks; 2], share: f64, seed: u64) -> Run {
    let mut run = Run::default();
    let Some(list) = &plan.certified else { return run };
    let mut watch = CertificateMonitor::new(list, MonitorConfig::default());
    let mut sampler = Sampler::new(AuditSettings::with_share(share), seed);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut counts, mut since_move) = (Counts::default(), Vec::new());
    let images: Vec<usize> = (0..data[0].first().map_or(0, Vec::len)).collect();
    let end = PHASES[0] + PHASES[1];
    run.place = watch.limit();
    for request in 0..PHASES.iter().sum() {
        let corrupt = (PHASES[0]..end).contains(&request);
        let image = images.choose(&mut random).copied().unwrap_or(0);
        let walk = |gear: u32| {
            data[usize::from(corrupt)]
                .get(gear as usize)
                .and_then(|walks| walks.get(image))
        };
        let gear = plan.clamp_gear(0, watch.limit());
        let capacity = AuditCapacity {
            in_flight: 0,
            max_in_flight: 1,
            open: 0,
        };
        let is_chosen = sampler.selects(watch.elevates_audits(), capacity);
        let Some(live) = walk(gear) else { return run };
        if let Some(counts) = plan.certified_index(gear).and_then(|place| counts.at(place)) {
            for (stage, category) in &live.categories {
                counts.count(*stage, *category);
            }
        }
        if is_chosen && let Some(audit) = Audit::new(plan, gear, &live.variant) {
            let ask = |gear: u32| {
                walk(gear).map(|walk| certificate_monitor::ComparedAnswer::Number(walk.answer.class))
            };
            run.audits += u64::from(audit.largest.is_some());
            let (largest, probe) = (
                audit.largest.and_then(ask),
                audit.probe.and_then(|(_, gear)| ask(gear)),
            );
            let live = certificate_monitor::ComparedAnswer::Number(live.answer.class);
            audit.count(&mut counts, &live, largest.as_ref(), probe.as_ref());
        }
        note(&mut run, (request, corrupt), live.answer.right, &mut since_move);
        let right = |gear: Option<u32>| gear.and_then(walk).is_some_and(|walk| walk.answer.right);
        add(
            &mut run.largest[usize::from(corrupt)],
            right(plan.gear_of_certified(0)),
        );
        add(&mut run.unwatched[usize::from(corrupt)], right(Some(0)));
        if (request + 1).is_multiple_of(DECIDE_EVERY) {
            let found = watch.take(&std::mem::take(&mut counts));
            observe(&mut run, &found, request + 1, &mut since_move);
            if corrupt {
                run.place = watch.limit();
            }
            if request >= end && watch.limit() == watch.cheapest() && run.restored.is_none() {
                run.restored = Some(request + 1 - end);
            }
        }
    }
    run.accuracy[2] = sum(&since_move);
    run
}

fn observe(run: &mut Run, found: &[Finding], requests: usize, since_move: &mut Vec<bool>) {
    let Some(after) = requests.checked_sub(PHASES[0]).filter(|after| *after > 0) else {
        run.false_alarms += found.len() as u32;
        return;
    };
    if after > PHASES[1] {
        return;
    }
    for finding in found {
        match finding {
            Finding::InputsDrifted { .. } => {
                run.drift_found.get_or_insert(after);
            }
            Finding::Safer { .. } => {
                run.refuted.get_or_insert(after);
                run.settled = Some(after);
                let before = sum(since_move);
                run.accuracy[1].0 += before.0;
                run.accuracy[1].1 += before.1;
                since_move.clear();
            }
            Finding::Cheaper { .. } | Finding::Settled { .. } => {}
        }
    }
}

fn note(run: &mut Run, (request, corrupt): (usize, bool), right: bool, since_move: &mut Vec<bool>) {
    if corrupt {
        since_move.push(right);
    } else {
        add(&mut run.accuracy[if request < PHASES[0] { 0 } else { 3 }], right);
    }
}

fn add(sum: &mut (u64, u64), right: bool) {
    sum.0 += u64::from(right);
    sum.1 += 1;
}

fn sum(answers: &[bool]) -> (u64, u64) {
    let right = answers.iter().filter(|right| **right).count();
    (right as u64, answers.len() as u64)
}

/// Sends every image through every gear.
fn walks(plan: &Plan, profile: &Profile, answers: &Answers) -> Walks {
    let images = answers.first().map_or(0, Vec::len);
    let gears = (0..plan.all_gears().count() as u32).map(|gear| {
        let of_gear = (0..images).filter_map(|image| walk(plan, profile, answers, gear, image));
        of_gear.collect()
    });
    gears.collect()
}

fn walk(plan: &Plan, profile: &Profile, answers: &Answers, gear: u32, image: usize) -> Option<Walk> {
    let wiring = &plan.gear(gear)?.wiring;
    let expected = &plan
        .certified
        .as_ref()?
        .cascades
        .get(plan.certified_index(gear)?)?
        .stages;
    let (mut name, mut categories) = (wiring.entry.stage.as_str(), Vec::new());
    loop {
        let number = wiring.stages.iter().position(|stage| stage.name == name)?;
        let stage = wiring.stages.get(number)?;
        let column = profile
            .variants
            .iter()
            .position(|variant| variant.name == stage.variant)?;
        let answer = *answers.get(column)?.get(image)?;
        let next = match routing::route(&stage.exit, Some(answer.confidence)) {
            Ok(Route::Forward(edge)) => Some(edge.stage.as_str()),
            _ => None,
        };
        categories.push((
            number,
            expected.get(number)?.category(next.is_some(), answer.confidence),
        ));
        match next {
            Some(next) => name = next,
            None => {
                return Some(Walk {
                    variant: stage.variant.clone(),
                    answer,
                    categories,
                });
            }
        }
    }
}

fn report(name: &str, share: f64, runs: &[Run]) -> Value {
    let quantile = |of: fn(&Run) -> Option<usize>, share: f64| {
        let mut found: Vec<usize> = runs.iter().filter_map(of).collect();
        found.sort_unstable();
        let place = (share * found.len() as f64) as usize;
        found.get(place.min(found.len().saturating_sub(1))).copied()
    };
    let count = |of: fn(&Run) -> Option<usize>| runs.iter().filter(|run| of(run).is_some()).count();
    let percent = |of: &dyn Fn(&Run) -> (u64, u64)| {
        let sum = runs
            .iter()
            .map(of)
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (sum.1 > 0).then(|| (1e4 * sum.0 as f64 / sum.1 as f64).round() / 100.0)
    };
    let accuracy = json!({
        "before": percent(&|run| run.accuracy[0]),
        "largest_before": percent(&|run| run.largest[0]),
        "corrupted_until_the_last_move": percent(&|run| run.accuracy[1]),
        "corrupted_after_the_last_move": percent(&|run| run.accuracy[2]),
        "corrupted_unwatched": percent(&|run| run.unwatched[1]),
        "corrupted_largest": percent(&|run| run.largest[1]),
        "after": percent(&|run| run.accuracy[3]),
    });
    let shown = |value: Option<usize>| value.map_or_else(|| "never".to_owned(), |value| value.to_string());
    println!(
        "{name:<24} {:>5.1} %  {:>22}  {:>13}  {:>18}  {:>11}  {:>5}  {:>7}  {:>14}",
        100.0 * share,
        format!("{}, {}", accuracy["before"], accuracy["largest_before"]),
        shown(quantile(|run| run.refuted, 0.5)),
        accuracy["corrupted_unwatched"].to_string(),
        accuracy["corrupted_until_the_last_move"].to_string(),
        accuracy["corrupted_after_the_last_move"].to_string(),
        accuracy["corrupted_largest"].to_string(),
        shown(quantile(|run| run.restored, 0.5)),
    );
    json!({
        "corruption": name, "audit_share": share,
        "streams_with_a_false_alarm": runs.iter().filter(|run| run.false_alarms > 0).count(),
        "drift_found": count(|run| run.drift_found),
        "requests_until_drift_found": {"median": quantile(|run| run.drift_found, 0.5), "p95": quantile(|run| run.drift_found, 0.95)},
        "refuted": count(|run| run.refuted),
        "requests_until_refuted": {"median": quantile(|run| run.refuted, 0.5), "p95": quantile(|run| run.refuted, 0.95)},
        "requests_until_last_move": {"median": quantile(|run| run.settled, 0.5), "p95": quantile(|run| run.settled, 0.95)},
        "place_at_the_end_of_the_corruption": quantile(|run| Some(run.place), 0.5),
        "restored": count(|run| run.restored),
        "requests_until_restored": {"median": quantile(|run| run.restored, 0.5), "p95": quantile(|run| run.restored, 0.95)},
        "audits_per_stream": runs.iter().map(|run| run.audits).sum::<u64>() / runs.len().max(1) as u64,
        "accuracy_percent": accuracy,
    })
}
