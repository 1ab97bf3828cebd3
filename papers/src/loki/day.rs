//! Loki, `InferLine` and Proteus over a day (Loki §6.2, Figures 5 and 6).

use kaskade_app::report::progress::Progress;
use kaskade_app::report::units;
use kaskade_simulator::Bucket;

use super::Args;
use super::field::{Contestant, Field, Run};
use crate::parallel::in_parallel;
use crate::reproduction::{Claim, Reproduction};

/// The paper's figures of a pipeline's day.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paper {
    /// The pipeline, in names of claims and files.
    pub(super) name: &'static str,
    /// Gain of capacity by accuracy scaling.
    capacity: &'static str,
    /// The paper's accuracy of Proteus.
    accuracy: &'static str,
}

impl Paper {
    /// Figure 5.
    pub(super) const TRAFFIC: Self = Self {
        name: "traffic",
        capacity: "2.5x the capacity of hardware scaling is served",
        accuracy: "higher system accuracy than Proteus",
    };

    /// Figure 6.
    pub(super) const SOCIAL: Self = Self {
        name: "social",
        capacity: "2.7x the capacity of hardware scaling is served, for about 10 points of accuracy",
        accuracy: "up to 20 points less accuracy dropped than by Proteus",
    };
}

/// The share of its busiest bucket's load from which on a bucket counts for the peak.
const PEAK_SHARE: f64 = 0.9;

/// Window in which a rise of the load is searched, seconds.
const RISE_S: usize = 5;

/// Runs all systems and draws them.
///
/// # Errors
/// When a system cannot be simulated, or a picture not be written.
pub(super) fn compare(
    field: &Field,
    paper: Paper,
    args: &Args,
    found: &mut Reproduction,
) -> anyhow::Result<()> {
    let contestants = [
        Contestant::LOKI,
        Contestant::INFERLINE,
        Contestant::PROTEUS,
        Contestant::PATIENT,
        Contestant::DEFAULT,
    ];
    let label = format!("{}: a day of Loki, InferLine, Proteus", paper.name);
    let progress = Progress::begin(label, contestants.len() as u64, args.json);
    let runs = in_parallel(&contestants, |contestant| field.play(*contestant));
    let runs = runs.into_iter().collect::<anyhow::Result<Vec<Run>>>()?;
    let [loki, inferline, proteus, patient, default] = runs.as_slice() else {
        anyhow::bail!("five contestants were to be simulated");
    };
    progress.end(&format!("{} requests each", units::count(loki.report.requests)));
    let day = Day {
        field,
        paper,
        loki,
        inferline,
        proteus,
        patient,
        default,
    };
    found.claims.extend([
        day.at_the_peak(),
        day.against_proteus(),
        day.of_the_default(),
        day.against_inferline(),
        day.while_hardware_suffices(),
        day.workers_off_peak(),
        day.accuracy(),
    ]);
    found.files.extend(day.draw(&args.out)?);
    Ok(())
}

/// The days of all systems.
pub(super) struct Day<'a> {
    pub(super) field: &'a Field,
    pub(super) paper: Paper,
    pub(super) loki: &'a Run,
    pub(super) inferline: &'a Run,
    pub(super) proteus: &'a Run,
    pub(super) patient: &'a Run,
    pub(super) default: &'a Run,
}

/// Requests that missed their objective, of those that came.
pub(super) fn missed<'a>(buckets: impl Iterator<Item = &'a Bucket>, length_us: u64) -> f64 {
    let seconds = length_us as f64 / 1e6;
    let sum = buckets.fold((0.0, 0.0), |(missed, came), bucket| {
        (missed + bucket.violations as f64, came + bucket.qps * seconds)
    });
    if sum.1 > 0.0 {
        (sum.0 / sum.1).min(1.0)
    } else {
        f64::NAN
    }
}

/// Returns the ratio; infinite if `that` is 0.
fn over(this: f64, that: f64) -> f64 {
    if that > 0.0 { this / that } else { f64::INFINITY }
}

impl Day<'_> {
    fn claim(&self, what: &str, paper: &str, ours: String, met: bool, why: impl FnOnce() -> String) -> Claim {
        Claim {
            name: format!("{}: {what}", self.paper.name),
            paper: paper.to_owned(),
            ours,
            met,
            note: if met { String::new() } else { why() },
        }
    }

    /// Misses of a run in the buckets whose place has this mark.
    pub(super) fn missed_where(&self, run: &Run, marks: &[bool]) -> f64 {
        let marked = run.course.iter().zip(marks).filter(|(_, marked)| **marked);
        missed(marked.map(|(bucket, _)| bucket), self.field.bucket_us())
    }

    /// The buckets of the peak.
    pub(super) fn peak(&self) -> Vec<bool> {
        let loads = self.loki.course.iter().map(|bucket| bucket.qps);
        let busiest = loads.clone().fold(0.0, f64::max);
        loads.map(|load| load >= PEAK_SHARE * busiest).collect()
    }

    /// Buckets in which Loki had the most accurate variants only.
    pub(super) fn hardware(&self) -> Vec<bool> {
        let length_us = self.field.bucket_us();
        let course = self.loki.course.iter();
        course
            .map(|bucket| self.loki.scales_hardware(bucket, length_us))
            .collect()
    }

    fn at_the_peak(&self) -> Claim {
        let peak = self.peak();
        let missed = self.missed_where(self.loki, &peak);
        let lowest = lowest_accuracy(self.loki);
        self.claim(
            "the peak is served",
            self.paper.capacity,
            format!(
                "{} of the requests at the peak miss their objective, lowest accuracy {}",
                units::percent(missed),
                units::percent(lowest)
            ),
            missed <= 0.05,
            || self.why_the_peak_misses(),
        )
    }

    /// How fast the load rises, beside how long it takes to follow.
    fn why_the_peak_misses(&self) -> String {
        let rates = self.field.trace.rates();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
        // Means over seconds, so that this describes the course and not its noise.
        let rises = rates.windows(2 * RISE_S).map(|window| {
            let (before, after) = window.split_at(RISE_S);
            over(mean(after), mean(before))
        });
        let most = rises.filter(|rise| rise.is_finite()).fold(1.0, f64::max);
        format!(
            "the load rises to {most:.1} times itself within {RISE_S} s, and Loki plans again 2 s after the last time at the earliest, from a moving \
             average, and loads models for {} s; until then it has room for {} times the load",
            super::LOADING_US as f64 / 1e6,
            super::HEADROOM
        )
    }

    fn against_proteus(&self) -> Claim {
        let (ours, theirs) = (self.loki.violations(), self.proteus.violations());
        let times = over(theirs, ours);
        self.claim(
            "SLO violations against Proteus",
            "up to 10x fewer",
            format!(
                "{} fewer: {} against {}; {} with last-task dropping",
                units::times(Some(times)),
                units::percent(ours),
                units::percent(theirs),
                units::percent(self.patient.violations())
            ),
            times >= 10.0,
            || self.why_proteus_holds(),
        )
    }

    /// Dropping by slack with a forecast and standby capacity, against everything else here.
    fn of_the_default(&self) -> Claim {
        let (ours, theirs) = (self.default.violations(), self.proteus.violations());
        let (loki, patient) = (self.loki.violations(), self.patient.violations());
        let best = theirs.min(patient).min(loki);
        self.claim(
            "SLO violations of Kaskade's default: slack, forecast, standby",
            "-",
            format!(
                "{} at accuracy {}; Loki {} at {}, with last-task dropping {} at {}, Proteus {} at {}",
                units::percent(ours),
                units::percent(self.default.accuracy()),
                units::percent(loki),
                units::percent(self.loki.accuracy()),
                units::percent(patient),
                units::percent(self.patient.accuracy()),
                units::percent(theirs),
                units::percent(self.proteus.accuracy())
            ),
            ours <= best,
            || format!("{} more than the best of the others", units::percent(ours - best)),
        )
    }

    /// Explains why Proteus holds: it ignores that another variant upstream changes the number of requests for the tasks below.
    fn why_proteus_holds(&self) -> String {
        let pipeline = &self.field.pipeline;
        let spreads = pipeline.tasks.iter().flat_map(|task| {
            task.children.iter().map(|child| {
                let made = task.variants.iter().map(|variant| variant.multiplicity(child));
                let most = made.clone().fold(0.0, f64::max);
                over(most, made.fold(f64::INFINITY, f64::min))
            })
        });
        let spread = spreads.fold(1.0, f64::max);
        let unseen = if spread < 1.01 {
            "every variant of a task makes as many requests for those below, so there is nothing that Proteus does not see".to_owned()
        } else {
            format!(
                "one variant of a task makes up to {spread:.1} times as many requests for those below as another, but Proteus counts them and \
                 plans again within seconds, as all systems do here"
            )
        };
        format!(
            "{unseen}. {} of Loki's misses were dropped early, most of them with time left: with last-task dropping it is {} fewer",
            units::percent(early(self.loki)),
            units::times(Some(over(self.proteus.violations(), self.patient.violations())))
        )
    }

    fn against_inferline(&self) -> Claim {
        let scales: Vec<bool> = self.hardware().into_iter().map(|hardware| !hardware).collect();
        let (ours, theirs) = (
            self.missed_where(self.loki, &scales),
            self.missed_where(self.inferline, &scales),
        );
        let times = over(theirs, ours);
        self.claim(
            "SLO violations against InferLine, while accuracy is scaled",
            "more than 5x fewer",
            format!(
                "{} fewer: {} against {}; shedding exactly what hardware scaling cannot carry would miss {}",
                units::times(Some(times)),
                units::percent(ours),
                units::percent(theirs),
                units::percent(self.beyond(&scales))
            ),
            times >= 5.0,
            || self.why_the_peak_misses(),
        )
    }

    /// The share of these buckets' requests that is beyond what `InferLine` could carry at best.
    fn beyond(&self, marks: &[bool]) -> f64 {
        let capacity = self.field.trace.statistics().peak_qps / super::PEAK;
        let marked = self.loki.course.iter().zip(marks).filter(|(_, marked)| **marked);
        let (beyond, all) = marked.fold((0.0, 0.0), |(beyond, all), (bucket, _)| {
            (beyond + (bucket.qps - capacity).max(0.0), all + bucket.qps)
        });
        if all > 0.0 { beyond / all } else { f64::NAN }
    }

    fn while_hardware_suffices(&self) -> Claim {
        let hardware = self.hardware();
        let theirs = self.missed_where(self.inferline, &hardware);
        self.claim(
            "InferLine while hardware scaling suffices",
            "low SLO violations",
            format!("{} miss their objective", units::percent(theirs)),
            theirs <= 0.05,
            || {
                if theirs.is_nan() {
                    "hardware scaling never sufficed".to_owned()
                } else {
                    "the load rises within seconds, and InferLine learns of it by a moving average".to_owned()
                }
            },
        )
    }

    fn workers_off_peak(&self) -> Claim {
        let devices = self.loki.course.iter().map(|bucket| bucket.active_devices);
        let fewest = devices
            .filter(|devices| *devices > 0.0)
            .fold(f64::INFINITY, f64::min);
        let times = f64::from(self.field.workers) / fewest;
        let mean = self.loki.report.mean_active_devices();
        self.claim(
            "workers off-peak, against Proteus, which uses all",
            "up to 2.67x fewer",
            format!(
                "{times:.2}x fewer: {fewest:.1} of {}; {mean:.1} on average",
                self.field.workers
            ),
            times >= 2.67,
            || {
                let quiet = self.loki.course.iter().map(|bucket| bucket.qps);
                let quiet = quiet.fold(f64::INFINITY, f64::min);
                format!(
                    "it never gets quieter than {quiet:.0} requests/s, which take that many at the highest accuracy with the headroom"
                )
            },
        )
    }

    fn accuracy(&self) -> Claim {
        let (ours, theirs) = (self.loki.accuracy(), self.proteus.accuracy());
        let (lowest, their_lowest) = (lowest_accuracy(self.loki), lowest_accuracy(self.proteus));
        let most = most_accuracy_gained(self.loki, self.proteus);
        self.claim(
            "system accuracy against Proteus",
            self.paper.accuracy,
            format!(
                "{} against {}, at the lowest {} against {}; up to {:.1} points higher at one time; InferLine {}",
                units::percent(ours),
                units::percent(theirs),
                units::percent(lowest),
                units::percent(their_lowest),
                100.0 * most,
                units::percent(self.inferline.accuracy())
            ),
            ours > theirs,
            || {
                "Proteus answers fewer requests at the peak, where accuracy is lowest, and so fewer inaccurate ones"
                    .to_owned()
            },
        )
    }
}

/// The accuracy of the bucket in which it is lowest.
fn lowest_accuracy(run: &Run) -> f64 {
    let accuracies = run.course.iter().filter_map(|bucket| bucket.path_accuracy);
    accuracies.fold(f64::INFINITY, f64::min)
}

/// Returns the largest gain of accuracy of one run over another, over all buckets.
fn most_accuracy_gained(one: &Run, other: &Run) -> f64 {
    let both = one.course.iter().zip(&other.course);
    let gains = both.filter_map(|(one, other)| Some(one.path_accuracy? - other.path_accuracy?));
    gains.fold(f64::NEG_INFINITY, f64::max)
}

/// The share of violations that were dropped early.
fn early(run: &Run) -> f64 {
    run.report.dropped as f64 / run.report.slo_violations().max(1) as f64
}
