//! How often certificates hold on data that the planner has not seen, and what they cost.
//!
//! `cargo run --release -p kaskade-planners --example guarantee_study -- [TRIALS [FIRST_FAMILY [LAST_FAMILY]]]` prints a table and writes
//! `guarantee-study-FIRST-LAST.json`, one row after the other, so that families can be run apart and their rows joined. A setting whose row is
//! in the file already is not run again. Each trial draws a validation set, certifies a cascade on it, and measures the cascade on a large set that the
//! planner never sees. Progress goes to standard error.
//!
//! `... --example guarantee_study -- TRIALS --profile FILE...` certifies on recorded answers: each trial splits the samples of a profile in two halves at
//! random, certifies on one and measures on the other, as a user of the command line would, learned scores included.
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures time; the planner does not read it"
)]
#![expect(clippy::unwrap_used, reason = "the families are made up and sound")]

use std::time::Instant;

use kaskade_planners::certify::{AccuracyTarget, CertifyError, CertifyOptions, certify};
use kaskade_planners::thresholds::{Column, Family, Search, evaluate, frontier, threshold_exits};

#[path = "../src/thresholds/synthetic.rs"]
mod synthetic;

#[path = "guarantee_study/recorded.rs"]
mod recorded;

const ENERGIES: [f64; 4] = [1.0, 4.0, 12.0, 40.0];
const UNSEEN: usize = 100_000;
/// Samples of the hindsight frontier.
const HINDSIGHT: usize = 10_000;

/// The families of the table "How much the guard on AP holds": skills of four variants, and how well confidence separates.
const FAMILIES: [([f64; 4], f64); 4] = [
    ([1.0, 1.5, 2.0, 2.5], 3.0),
    ([0.5, 1.3, 1.8, 2.0], 3.0),
    ([1.8, 2.2, 2.6, 2.9], 5.0),
    ([1.5, 2.6, 2.7, 2.8], 5.0),
];

/// Validation samples and the largest loss that is asked for.
const SETTINGS: [(usize, f64); 6] = [
    (400, 0.02),
    (400, 0.05),
    (1_200, 0.01),
    (1_200, 0.02),
    (4_000, 0.005),
    (4_000, 0.01),
];

#[derive(Debug, Default)]
struct Row {
    certified: u32,
    refused: u32,
    violations: u32,
    only_largest: u32,
    /// Energy per request over that of the largest variant, summed over trials.
    cost: f64,
    worst: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let trials = number(0).unwrap_or(1_000);
    if let Some(at) = arguments.iter().position(|argument| argument == "--profile") {
        return recorded::study(arguments.get(at + 1..).unwrap_or_default(), trials);
    }
    let first = number(1).unwrap_or(1).max(1) as usize;
    let last = number(2).unwrap_or(FAMILIES.len() as u64) as usize;
    let file = format!("guarantee-study-{first}-{last}.json");
    let begun = Instant::now();
    // Rows of an interrupted run, one per line.
    let mut rows: Vec<String> = std::fs::read_to_string(&file)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.trim_start().starts_with('{'))
        .map(|line| line.trim().trim_end_matches(',').to_owned())
        .collect();
    println!(
        "family  samples  max loss  trials  refused  violations  only largest  saving  hindsight  worst loss"
    );
    for (number, (skills, sharpness)) in FAMILIES.iter().enumerate().take(last).skip(first - 1) {
        let unseen = synthetic::family(skills, &ENERGIES, *sharpness, UNSEEN, 1_000_000 + number as u64);
        for (samples, loss) in SETTINGS {
            let key = format!(
                "\"family\": {}, \"samples\": {samples}, \"max_loss\": {loss}, \"confidence\": 0.95, \"trials\": {trials},",
                number + 1
            );
            if let Some(row) = rows.iter().find(|row| row.contains(&key)) {
                println!("{row}");
                continue;
            }
            eprintln!("family {}, {samples} samples, loss {loss}", number + 1);
            let row = study(skills, *sharpness, samples, loss, trials, &unseen);
            let best = hindsight(skills, *sharpness, number as u64, loss);
            let share = |count: u32| 100.0 * f64::from(count) / f64::from(row.certified.max(1));
            let saving = f64::from(row.certified.max(1)) / row.cost.max(f64::MIN_POSITIVE);
            println!(
                "{:>6}  {samples:>7}  {:>6.1} %  {trials:>6}  {:>7}  {:>8.2} %  {:>10.1} %  {saving:>5.2}x  {best:>8.2}x  {:>8.2} %",
                number + 1,
                100.0 * loss,
                row.refused,
                share(row.violations),
                share(row.only_largest),
                100.0 * row.worst,
            );
            rows.push(format!(
                "{{{key} \"refused\": {}, \"violations\": {}, \"only_largest\": {}, \"saving\": {saving:.4}, \"hindsight\": {best:.4}, \
                 \"worst_loss\": {:.5}}}",
                row.refused, row.violations, row.only_largest, row.worst,
            ));
            // A study that is stopped leaves its complete rows.
            if let Err(error) = std::fs::write(&file, format!("[\n  {}\n]\n", rows.join(",\n  "))) {
                eprintln!("{file} was not written: {error}");
            }
        }
    }
    println!("{:.0} s", begun.elapsed().as_secs_f64());
}

fn study(skills: &[f64; 4], sharpness: f64, samples: usize, loss: f64, trials: u64, unseen: &Family) -> Row {
    let options = CertifyOptions::new(AccuracyTarget::MaxLoss { loss });
    let largest = unseen.accuracy(3);
    let mut row = Row::default();
    for trial in 0..trials {
        if trial > 0 && trial.is_multiple_of(100) {
            eprintln!("  {trial} of {trials} trials, {} violations", row.violations);
        }
        let seen = synthetic::family(skills, &ENERGIES, sharpness, samples, trial);
        match certify(&seen, &options, true) {
            Ok(certified) => {
                let outcome = certified.cascade.outcome(unseen);
                row.certified += 1;
                row.violations += u32::from(largest - outcome.accuracy > loss);
                row.only_largest += u32::from(certified.cascade.is_largest_alone);
                row.cost += outcome.energy_j / ENERGIES[3];
                row.worst = row.worst.max(largest - outcome.accuracy);
            }
            Err(CertifyError::TooFewSamples { .. }) => row.refused += 1,
            Err(error) => eprintln!("trial {trial}: {error}"),
        }
    }
    row
}

/// The saving of the cheapest cascade of all variants that keeps the loss on a large set that it was chosen on.
fn hindsight(skills: &[f64; 4], sharpness: f64, number: u64, loss: f64) -> f64 {
    let large = synthetic::family(skills, &ENERGIES, sharpness, HINDSIGHT, 2_000_000 + number);
    let search = Search {
        seed: 0,
        exact_steps: 20_000_000,
    };
    let needed = large.accuracy(3) - loss;
    let points = frontier(&large, &search).points;
    let cheapest = points.iter().find(|point| point.accuracy >= needed);
    let energy = cheapest.map_or(ENERGIES[3], |point| {
        evaluate(&large, &threshold_exits(&point.thresholds)).energy_j
    });
    ENERGIES[3] / energy
}
