//! Certificates on recorded answers of real models.

use kaskade_planners::certify::{AccuracyTarget, CertifyError, CertifyOptions, certify};
use kaskade_planners::thresholds::{Family, Minimise};
use kaskade_policy::profile::Profile;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Losses that are asked for.
const LOSSES: [f64; 3] = [0.01, 0.02, 0.05];

/// The batch size at which costs are taken.
const BATCH: u32 = 16;

/// Prints, for every profile and loss, how often the certified cascade loses more on the half that it was not certified on. That half is a sample
/// too, and the more a trial was lucky on one half, the less it is on the other: its loss scatters around the true one, so that violations
/// of the observed loss are more frequent than of the true loss. The column *all* compares with the loss on all samples of the profile.
pub(crate) fn study(files: &[String], trials: u64) {
    println!(
        "app  samples  max loss  trials  refused  violations on the other half  on all samples  only largest  saving  with scores"
    );
    for file in files {
        let profile = Profile::from_json(&std::fs::read_to_string(file).unwrap()).unwrap();
        let (family, _) = Family::with_observations(&profile, BATCH, Minimise::Energy).unwrap();
        for loss in LOSSES {
            for (kind, family) in [("scores", &family), ("plain", &family.without_observations())] {
                println!("{} {kind}  {}", profile.app, row(family, loss, trials));
            }
        }
    }
}

fn row(family: &Family, loss: f64, trials: u64) -> String {
    let options = CertifyOptions::new(AccuracyTarget::MaxLoss { loss });
    let last = family.columns().len() - 1;
    let (mut refused, mut other, mut all, mut alone, mut scored, mut certified) = (0, 0, 0, 0, 0, 0);
    let mut cost = 0.0;
    for trial in 0..trials {
        let mut places: Vec<usize> = (0..family.samples()).collect();
        places.shuffle(&mut ChaCha8Rng::seed_from_u64(trial));
        let (seen, unseen) = places.split_at(places.len() / 2);
        let unseen = family.of_samples(unseen);
        let found = match certify(&family.of_samples(seen), &options, true) {
            Ok(found) => found.cascade,
            Err(CertifyError::TooFewSamples { .. }) => {
                refused += 1;
                continue;
            }
            Err(error) => {
                return format!(
                    "{}  {:.1} %  trial {trial} failed: {error}",
                    family.samples(),
                    100.0 * loss
                );
            }
        };
        certified += 1;
        let exceeds = |on: &Family| u32::from(on.accuracy(last) - found.outcome(on).accuracy > loss);
        other += exceeds(&unseen);
        all += exceeds(family);
        alone += u32::from(found.is_largest_alone);
        scored += u32::from(found.scores.iter().any(Option::is_some));
        cost +=
            found.outcome(&unseen).energy_j / family.columns().last().map_or(1.0, |column| column.energy_j);
    }
    let share = |count: u32| 100.0 * f64::from(count) / f64::from(certified.max(1));
    format!(
        "{}  {:.1} %  {trials}  {refused}  {:.1} %  {:.1} %  {:.1} %  {:.2}x  {:.0} %",
        family.samples(),
        100.0 * loss,
        share(other),
        share(all),
        share(alone),
        f64::from(certified) / cost,
        share(scored),
    )
}
