//! Measures the gain of subsets of a family and learned deferral scores over a cascade of all variants by calibrated confidence.
//!
//! `cargo run --release -p kaskade-planners --example deferral_study -- [SPLITS [FAMILY]] [--profile FILE]...` prints a table and writes
//! `deferral-study.json`. Each split draws samples to plan on and others to judge on. On the first, three planners make a curve of
//! cascades: of all variants by counts of right answers, and of subsets by expected accuracy, without and with learned scores; on the others, the area between each curve and the largest variant's accuracy is measured.
//!
//! The area: at 40 budgets, at equal ratios from the cost of the cheapest variant to that of the largest, the planner's most accurate cascade
//! within the budget (both on the samples to plan on) loses some accuracy against the largest variant on the others. The area is the mean loss.
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::unwrap_used, reason = "the families are made up and sound")]

use std::fmt::Write as _;

use kaskade_planners::envelope::{EnvelopeCascade, envelope};
use kaskade_planners::thresholds::{Family, Minimise, Search, frontier};
use kaskade_policy::profile::Profile;
use kaskade_stated::families::{StatedFamily, gpt, gpt_of_eight, t5, vit};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Budgets of the curve.
const BUDGETS: u32 = 40;
/// Samples to plan on of a stated family, and to judge on.
const PLANNED: usize = 1_500;
const JUDGED: usize = 10_000;
/// Share of a recorded profile's samples to plan on.
const SHARE: f64 = 0.6;
/// Steps of every exact search.
const STEPS: u64 = 2_000_000;
/// The batch size at which costs are taken.
const BATCH: u32 = 16;

/// Source of the samples.
enum Source {
    /// Drawn again for each split.
    Stated(Box<StatedFamily>),
    /// Split at random.
    Recorded(Box<Profile>),
}

impl Source {
    /// Samples to plan on and to judge on.
    fn split(&self, number: u64) -> (Family, Family) {
        match self {
            Self::Stated(stated) => {
                let mut drawn = (**stated).clone();
                // One draw, so that both parts have the same models.
                drawn.samples = PLANNED + JUDGED;
                drawn.seed = 1_000 + number;
                let family = family(&drawn.profile());
                let places: Vec<usize> = (0..family.samples()).collect();
                let (planned, judged) = places.split_at(PLANNED);
                (family.of_samples(planned), family.of_samples(judged))
            }
            Self::Recorded(profile) => {
                let family = family(profile);
                let mut places: Vec<usize> = (0..family.samples()).collect();
                places.shuffle(&mut ChaCha8Rng::seed_from_u64(number));
                let (planned, judged) = places.split_at((places.len() as f64 * SHARE) as usize);
                (family.of_samples(planned), family.of_samples(judged))
            }
        }
    }
}

fn family(profile: &Profile) -> Family {
    Family::with_observations(profile, BATCH, Minimise::Energy)
        .unwrap()
        .0
}

/// A mean over splits.
#[derive(Default)]
struct Mean {
    values: Vec<f64>,
}

impl Mean {
    fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Half of the 95 % interval of the mean, by the normal approximation.
    fn half_width(&self) -> f64 {
        let mean = self.mean();
        let variance = self
            .values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>();
        let count = self.values.len() as f64;
        1.96 * (variance / (count - 1.0).max(1.0) / count).sqrt()
    }
}

#[derive(Default)]
struct Areas {
    whole: Mean,
    subsets: Mean,
    learned: Mean,
    /// Areas of the subsets, and of the learned scores, less that of the whole family.
    by_subsets: Mean,
    by_learned: Mean,
    /// Areas of the learned scores less those of the subsets.
    by_scores: Mean,
    /// Share of gates with a learned score on the curve.
    scored: Mean,
}

fn main() {
    let mut splits = 100_u64;
    let mut only = None;
    let mut sources: Vec<(String, Source)> = vec![
        ("t5".to_owned(), Source::Stated(Box::new(t5()))),
        ("vit".to_owned(), Source::Stated(Box::new(vit()))),
        ("gpt".to_owned(), Source::Stated(Box::new(gpt()))),
        (
            "gpt of eight".to_owned(),
            Source::Stated(Box::new(gpt_of_eight())),
        ),
    ];
    let mut recorded = |file: &str| {
        let profile = Profile::from_json(&std::fs::read_to_string(file).unwrap()).unwrap();
        sources.push((profile.app.clone(), Source::Recorded(Box::new(profile))));
    };
    for example in [
        "sentiment/profile",
        "digits/profile",
        "digits/digits-eight.profile",
        "shakespeare/profile",
    ] {
        recorded(&format!(
            "{}/../../examples/{example}.json",
            env!("CARGO_MANIFEST_DIR")
        ));
    }
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--profile" => recorded(&arguments.next().unwrap()),
            number if number.parse::<u64>().is_ok() => splits = number.parse().unwrap(),
            name => only = Some(name.to_owned()),
        }
    }
    println!(
        "family  variants  splits  area: all variants  subsets  subsets and scores  gain of subsets  gain of both  scored"
    );
    let mut json = String::from("[");
    for (name, source) in &sources {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let (areas, variants) = study(source, splits);
        let gain = |of: &Mean| {
            // The sign of a gain is that of the difference, also where cascades beat the largest variant.
            let whole = areas.whole.mean().abs();
            format!(
                "{:+.1} % +- {:.1}",
                -100.0 * of.mean() / whole,
                100.0 * of.half_width() / whole
            )
        };
        println!(
            "{name:<16}  {variants}  {splits}  {:.3}  {:.3}  {:.3}  {}  {}  scores: {}  {:.0} %",
            100.0 * areas.whole.mean(),
            100.0 * areas.subsets.mean(),
            100.0 * areas.learned.mean(),
            gain(&areas.by_subsets),
            gain(&areas.by_learned),
            gain(&areas.by_scores),
            100.0 * areas.scored.mean(),
        );
        let _ = write!(
            json,
            "{}{{\"family\": {name:?}, \"variants\": {variants}, \"splits\": {splits}, \"whole\": {:.6}, \"subsets\": {:.6}, \
             \"learned\": {:.6}, \"difference\": {:.6}, \"half_width\": {:.6}}}",
            if json.len() == 1 { "\n  " } else { ",\n  " },
            areas.whole.mean(),
            areas.subsets.mean(),
            areas.learned.mean(),
            areas.by_learned.mean(),
            areas.by_learned.half_width(),
        );
        if let Err(error) = std::fs::write("deferral-study.json", format!("{json}\n]\n")) {
            eprintln!("deferral-study.json was not written: {error}");
        }
    }
}

fn study(source: &Source, splits: u64) -> (Areas, usize) {
    let mut areas = Areas::default();
    let mut variants = 0;
    for number in 0..splits {
        let (planned, judged) = source.split(number);
        variants = planned.columns().len();
        let search = Search {
            seed: number,
            exact_steps: STEPS,
        };
        let whole = area(&curve(&planned, &search), &planned, &judged);
        let subsets = area(&envelope(&planned.without_observations()), &planned, &judged);
        let both = envelope(&planned);
        let learned = area(&both, &planned, &judged);
        areas.whole.values.push(whole);
        areas.subsets.values.push(subsets);
        areas.learned.values.push(learned);
        areas.by_subsets.values.push(subsets - whole);
        areas.by_learned.values.push(learned - whole);
        areas.by_scores.values.push(learned - subsets);
        let gates = both.iter().flat_map(|one| &one.scores);
        let scored = gates.clone().filter(|score| score.is_some()).count();
        areas
            .scored
            .values
            .push(scored as f64 / gates.count().max(1) as f64);
    }
    (areas, variants)
}

/// The frontier of all variants by calibrated confidence.
fn curve(family: &Family, search: &Search) -> Vec<EnvelopeCascade> {
    let names = family.columns().iter().map(|column| column.name.clone());
    let names: Vec<String> = names.collect();
    let points = frontier(family, search).points.into_iter();
    let on_curve = points.map(|point| EnvelopeCascade {
        variants: names.clone(),
        scores: Vec::new(),
        point,
    });
    on_curve.collect()
}

/// The mean loss on unseen samples over the budgets. A budget below the cheapest cascade buys the cheapest.
fn area(curve: &[EnvelopeCascade], planned: &Family, judged: &Family) -> f64 {
    let costs = planned.columns().iter().map(|column| column.energy_j);
    let (least, most) = (
        costs.clone().fold(f64::INFINITY, f64::min),
        planned.columns().last().unwrap().energy_j,
    );
    let largest = judged.accuracy(judged.columns().len() - 1);
    let mut total = 0.0;
    let mut previous: Option<(usize, f64)> = None;
    for step in 0..BUDGETS {
        let budget = least * (most / least).powf(f64::from(step) / f64::from(BUDGETS - 1));
        let within = curve.partition_point(|one| one.point.energy_j <= budget * (1.0 + 1e-9));
        let place = within.saturating_sub(1);
        let loss = match previous {
            Some((before, loss)) if before == place => loss,
            _ => largest - curve.get(place).unwrap().outcome(judged).accuracy,
        };
        previous = Some((place, loss));
        total += loss;
    }
    total / f64::from(BUDGETS)
}
