//! Tighter and looser objectives (Loki §6.4, Figure 8).

use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::report::progress::Progress;
use kaskade_app::report::{self, units};
use kaskade_planners::allocate::AllocateError;
use kaskade_policy::pipeline::Pipeline;

use super::Args;
use super::field::{Contestant, Field, Run};
use crate::parallel::in_parallel;
use crate::reproduction::{Claim, Reproduction};

/// Objectives, milliseconds; the paper's are those from 200 on.
const OBJECTIVES_MS: [u64; 7] = [100, 150, 200, 250, 300, 350, 400];

/// Below this the paper cannot serve the demand, milliseconds.
const PAPER_MIN_MS: u64 = 200;

/// The results of one objective; none if the pipeline cannot be planned for it.
struct Swept {
    slo_ms: u64,
    run: Option<Run>,
}

impl Swept {
    fn violations(&self) -> f64 {
        self.run.as_ref().map_or(f64::NAN, Run::violations)
    }

    fn accuracy(&self) -> f64 {
        self.run.as_ref().map_or(f64::NAN, Run::accuracy)
    }

    /// Returns the drop from the highest possible accuracy to that of the least accurate bucket.
    fn drop(&self, highest: f64) -> f64 {
        let buckets = self.run.iter().flat_map(|run| &run.course);
        let accuracies = buckets.filter_map(|bucket| bucket.path_accuracy);
        highest - accuracies.fold(f64::INFINITY, f64::min)
    }
}

/// Runs every objective under the same day, draws and claims.
///
/// # Errors
/// When something cannot be simulated, or the picture not be written.
pub(super) fn compare(field: &Field, args: &Args, found: &mut Reproduction) -> anyhow::Result<()> {
    let progress = Progress::begin("objectives", OBJECTIVES_MS.len() as u64, args.json);
    let swept = in_parallel(&OBJECTIVES_MS, |slo_ms| sweep(field, *slo_ms));
    let swept = swept.into_iter().collect::<anyhow::Result<Vec<Swept>>>()?;
    progress.end(&format!("{} days", swept.len()));
    let highest = highest(&swept);
    found.claims.push(trend(&swept, highest));
    found.claims.push(least(&swept, &field.pipeline, highest));
    let series = |of: &dyn Fn(&Swept) -> f64| {
        vec![Series {
            name: "Loki".to_owned(),
            points: swept
                .iter()
                .map(|swept| (swept.slo_ms as f64, 100.0 * of(swept)))
                .collect(),
            shape: Shape::Marked,
        }]
    };
    let panel = |axis: &str, series: Vec<Series>| Panel {
        axis: axis.to_owned(),
        series,
        ..Panel::default()
    };
    let picture = Panels {
        title: format!("{}: Loki by objective", field.pipeline.name),
        axis: "objective (ms)".to_owned(),
        rows: vec![
            panel("accuracy (%)", series(&Swept::accuracy)),
            panel(
                "largest drop of accuracy (points)",
                series(&|swept| swept.drop(highest)),
            ),
            panel("SLO violations (%)", series(&Swept::violations)),
        ],
    };
    let file = args.out.join("loki-objectives.svg");
    report::write_file(&file, &panels::svg(&picture)?)?;
    found.files.push(file);
    Ok(())
}

fn sweep(field: &Field, slo_ms: u64) -> anyhow::Result<Swept> {
    let run = match field.within(slo_ms * 1_000).play(Contestant::LOKI) {
        Ok(run) => Some(run),
        Err(error) if matches!(error.downcast_ref(), Some(AllocateError::Slo { .. })) => None,
        Err(error) => return Err(error),
    };
    Ok(Swept { slo_ms, run })
}

/// The highest accuracy of any bucket, which is that of the most accurate variants.
fn highest(swept: &[Swept]) -> f64 {
    let runs = swept.iter().filter_map(|swept| swept.run.as_ref());
    let buckets = runs.flat_map(|run| &run.course);
    buckets
        .filter_map(|bucket| bucket.path_accuracy)
        .fold(0.0, f64::max)
}

fn figures(swept: &[&Swept], highest: f64) -> String {
    let each = swept.iter().map(|swept| {
        format!(
            "{} ms: {}, accuracy {}, drop {:.1}",
            swept.slo_ms,
            units::percent(swept.violations()),
            units::percent(swept.accuracy()),
            100.0 * swept.drop(highest)
        )
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Accuracy rises with the objective, and less and less.
fn trend(swept: &[Swept], highest: f64) -> Claim {
    let papers: Vec<&Swept> = swept
        .iter()
        .filter(|swept| swept.slo_ms >= PAPER_MIN_MS)
        .collect();
    let steps = papers.windows(2).filter_map(|pair| match pair {
        [before, after] => Some(after.accuracy() - before.accuracy()),
        _ => None,
    });
    let steps: Vec<f64> = steps.collect();
    let rises = steps.iter().all(|step| *step >= -1e-3);
    let flattens = match steps.as_slice() {
        [first, .., last] => last <= first,
        _ => false,
    };
    let fewer = match papers.as_slice() {
        [first, .., last] => last.violations() <= first.violations() + 1e-3,
        _ => false,
    };
    let met = rises && flattens && fewer;
    let mut short = Vec::new();
    for (holds, what) in [
        (rises, "accuracy falls somewhere"),
        (flattens, "the last step gains more accuracy than the first"),
        (
            fewer,
            "looser objectives miss more: larger batches fill them, and a request that waits for one batch has used up its budget and is dropped",
        ),
    ] {
        if !holds {
            short.push(what);
        }
    }
    Claim {
        name: "objectives: everything gets better with a looser one, by less and less".to_owned(),
        paper: "sharply at first, then less, from 200 to 400 ms".to_owned(),
        ours: figures(&papers, highest),
        met,
        note: short.join("; "),
    }
}

/// Below 200 ms nothing goes any more.
fn least(swept: &[Swept], pipeline: &Pipeline, highest: f64) -> Claim {
    let below: Vec<&Swept> = swept.iter().filter(|swept| swept.slo_ms < PAPER_MIN_MS).collect();
    let served = |swept: &&Swept| swept.run.as_ref().is_some_and(|run| run.violations() <= 0.5);
    let met = !below.iter().any(served);
    let quickest = |task: &kaskade_policy::pipeline::Task| {
        let runs = task.variants.iter().filter_map(|variant| variant.latency_us(1));
        runs.fold(f64::INFINITY, f64::min)
    };
    let root = pipeline.tasks.iter().find(|task| !task.children.is_empty());
    let slowest = root.map_or(0.0, |root| {
        let children = pipeline
            .tasks
            .iter()
            .filter(|task| root.children.contains(&task.name));
        quickest(root) + children.map(quickest).fold(0.0, f64::max)
    });
    let hops = 2.0 * pipeline.hop_us as f64;
    Claim {
        name: "objectives: below 200 ms the demand cannot be served".to_owned(),
        paper: "the fastest variants one by one already take longer".to_owned(),
        ours: figures(&below, highest),
        met,
        note: if met {
            String::new()
        } else {
            format!(
                "the fastest variants one by one take {:.1} ms, with as long in queues and messages {:.1} ms",
                slowest / 1e3,
                (2.0 * slowest + hops) / 1e3
            )
        },
    }
}
