//! `kaskade plan pipeline`: chooses the variants of a pipeline's tasks and their numbers of workers.

use std::iter::once;
use std::path::{Path, PathBuf};

use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::config::App;
use kaskade_app::load::trace_args::positive;
use kaskade_app::planning::allocator;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::{self, units};
use kaskade_planners::allocate::{AllocateOptions, Allocation, Allocator, PlanFor, Scaling, Slot};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::{Dropping, Plan};
use serde::Serialize;

use crate::args::{Overwrite, PipelineArgs, dropping};
use crate::output;

/// Plans the variants and workers of a tree of tasks. Use it if the results of one task are requests to others.
///
/// The method is Loki's. While the most accurate variants can serve the demand, the planner uses the fewest workers; beyond that, it loses the least
/// accuracy. The same pipeline and options give the same plan.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Demand, requests per second at the root task.
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: f64,
    /// Factor of the demand that is planned for, so that bursts find idle workers. With 1, arrivals that vary miss the objective often.
    #[arg(long, value_name = "FACTOR", value_parser = headroom, default_value = "1.3")]
    headroom: f64,
    /// Number of workers, `w0`, `w1`, ..., if no app is given.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: u32,
    /// TOML file of the app: its name, its workers and its measured pipeline.
    #[arg(long, value_name = "FILE")]
    app: Option<PathBuf>,
    /// Treatment of requests that are late at a task.
    #[arg(long, value_parser = dropping(), default_value = "slack")]
    dropping: Dropping,
    /// Plan file to write.
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// SVG file to write: accuracy and workers by demand, up to twice `--rate`.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    /// Demand that was asked for, requests/s at the root; that of `allocation` is multiplied by the headroom.
    rate: f64,
    headroom: f64,
    allocation: &'a Allocation,
    plan: &'a Plan,
}

/// Plans, writes and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite
        .check(once(args.out.as_path()).chain(args.svg.as_deref()))?;
    let app = args.app.as_deref().map(App::load_to_plan).transpose()?;
    let pipeline = args.pipeline.read(app.as_ref())?;
    let slots = slots(args, app.as_ref())?;
    let workers = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default())?;
    let allocation = allocator.allocate(args.rate * args.headroom, workers)?;
    let name = app
        .as_ref()
        .map_or(pipeline.name.as_str(), |app| app.name.as_str());
    let plan_for = PlanFor {
        app: name,
        slots: &slots,
        previous: None,
        dropping: args.dropping,
    };
    let plan = allocation.plan(&pipeline, plan_for)?;
    report::write_file(&args.out, &plan.to_json()?)?;
    let mut files = vec![args.out.as_path()];
    if let Some(path) = &args.svg {
        report::write_file(
            path,
            &panels::svg(&picture(&allocator, (args.rate, args.headroom), workers)?)?,
        )?;
        files.push(path);
    }
    if args.json {
        return output::print_json(&Report {
            files,
            rate: args.rate,
            headroom: args.headroom,
            allocation: &allocation,
            plan: &plan,
        });
    }
    let text = as_text(&pipeline, &allocation, (args.rate, args.headroom));
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    output::print(&format!("{text}\n\nwritten to {}", written.join(", ")))
}

fn slots(args: &Args, app: Option<&App>) -> anyhow::Result<Vec<Slot>> {
    match app {
        Some(app) => Ok(allocator::slots(app)?),
        None => Ok((0..args.workers)
            .map(|worker| Slot {
                worker: format!("w{worker}"),
                device: "cuda:0".to_owned(),
            })
            .collect()),
    }
}

/// Renders an allocation as text, for the demand and the headroom that were asked for.
fn as_text(pipeline: &Pipeline, allocation: &Allocation, (demand, headroom): (f64, f64)) -> String {
    let rows = allocation.instances.iter().map(|instances| {
        [
            instances.task.clone(),
            instances.variant.clone(),
            instances.count.to_string(),
            instances.batch.to_string(),
        ]
    });
    let instances = table(
        [
            ("task", Align::Left),
            ("variant", Align::Left),
            ("workers", Align::Right),
            ("batch", Align::Right),
        ],
        rows,
    );
    let scaling = match allocation.scaling {
        Scaling::Hardware => "the most accurate variants, on the fewest workers",
        Scaling::Accuracy => "less accurate variants, on all workers",
        Scaling::Overload if allocation.served_qps < demand => {
            "overload: the cluster is too small for the rest"
        }
        Scaling::Overload => "less accurate variants, on all workers, which are too few for more headroom",
    };
    // Under overload, the headroom is what is left of it.
    let left = match allocation.scaling {
        Scaling::Overload => format!("{:.2} of {headroom}", (allocation.served_qps / demand).max(1.0)),
        Scaling::Hardware | Scaling::Accuracy => headroom.to_string(),
    };
    format!(
        "{}: {} of {} requests/s within {} ms, with a headroom of {left}: {scaling}\n{instances}\n{} of {} workers, accuracy {} (mean over sinks; at most {}, proven)",
        pipeline.name,
        rate(allocation.served_qps.min(demand)),
        rate(demand),
        pipeline.slo_us as f64 / 1e3,
        allocation.used,
        allocation.workers,
        units::percent(allocation.accuracy),
        units::percent(allocation.bound.max(allocation.accuracy)),
    )
}

/// Reads a factor of at least 1.
fn headroom(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1.0..=100.0).contains(&factor) => Ok(factor),
        _ => Err("it is a factor from 1 to 100, such as 1.3".to_owned()),
    }
}

/// A rate, with digits where it is small.
fn rate(per_second: f64) -> String {
    if per_second >= 10.0 {
        format!("{per_second:.0}")
    } else {
        format!("{per_second:.3}")
    }
}

/// Draws accuracy, workers and served load by demand (Loki Figure 1), up to twice a rate, planned with a headroom.
fn picture(allocator: &Allocator, (rate, headroom): (f64, f64), workers: u32) -> anyhow::Result<Panels> {
    const POINTS: u32 = 40;
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for point in 1..=POINTS {
        let demand = 2.0 * rate * f64::from(point) / f64::from(POINTS);
        let allocation = allocator.allocate(demand * headroom, workers)?;
        let values = [
            allocation.accuracy * 100.0,
            f64::from(allocation.used),
            allocation.served_qps.min(demand),
        ];
        for (curve, value) in curves.iter_mut().zip(values) {
            curve.push((demand, value));
        }
    }
    let axes = ["accuracy (%)", "workers", "served (requests/s)"];
    let rows = axes.into_iter().zip(curves).map(|(axis, points)| Panel {
        axis: axis.to_owned(),
        series: vec![Series {
            name: "as planned".to_owned(),
            points,
            shape: Shape::Line,
        }],
        ..Panel::default()
    });
    Ok(Panels {
        title: "by demand".to_owned(),
        axis: "demand (requests/s)".to_owned(),
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster that served the demand without all of the headroom was said to serve a part of the demand, and the chart had no headroom.
    #[test]
    fn the_demand_is_served_where_only_the_headroom_is_too_much() {
        let json = include_str!("../../../examples/pipelines/traffic.json");
        let pipeline = Pipeline::from_json(json).unwrap();
        let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
        let most = allocator.allocate(1e6, 10).unwrap().served_qps;
        let said = |rate: f64| {
            let allocation = allocator.allocate(rate * 1.3, 10).unwrap();
            as_text(&pipeline, &allocation, (rate, 1.3))
        };
        let demand = rate(most / 1.2);
        let tight = said(most / 1.2);
        assert!(
            tight.contains(&format!("{demand} of {demand} requests/s"))
                && tight.contains("a headroom of 1.20 of 1.3: less accurate"),
            "{tight}"
        );
        let over = said(most * 2.0);
        assert!(
            over.contains(&format!("{} of {} requests/s", rate(most), rate(most * 2.0)))
                && over.contains("a headroom of 1.00 of 1.3: overload"),
            "{over}"
        );
        let drawn = |headroom| picture(&allocator, (most / 2.4, headroom), 10).unwrap();
        // Accuracies at the demand of which the cluster has no more headroom.
        let accuracy = |headroom| drawn(headroom).rows[0].series[0].points.last().unwrap().1;
        assert!(accuracy(1.3) < accuracy(1.0));
        let served = drawn(1.3).rows[2].series[0].points.clone();
        assert!(served.iter().all(|(demand, served)| served <= demand));
    }
}
