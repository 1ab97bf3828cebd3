//! `kaskade plan cascade`: plans a confidence cascade.

use std::iter::once;
use std::path::{Path, PathBuf};

use kaskade_app::charts::graph;
use kaskade_app::config::App;
use kaskade_app::planning::{self, read_profile};
use kaskade_app::report;
use kaskade_app::report::progress::with_progress_line;
use kaskade_app::report::units;
use kaskade_planners::cascade::{CascadePlan, Objective};
use kaskade_planners::thresholds::{Minimise, NonInferiorityTest};
use serde::Serialize;

use crate::args::{Aim, GuaranteeArgs, Overwrite};
use crate::output;

/// Plans the thresholds of one cascade. Use it for one task with a steady load.
///
/// The method is HybridServe's (Edinburgh): the planner finds the accuracy-energy frontier, picks a point on it, drops variants that are not worth their cost and adds skip
/// connections that are. The same profile, options and seed give the same plan.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Args {
    /// Profile, as `kaskade profile` writes it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// Objective of the plan, not certified [default: the app's `[guarantee]`, or `ap`].
    #[arg(long, value_enum, conflicts_with_all = ["max_loss", "min_accuracy", "confidence"])]
    objective: Option<Aim>,
    #[command(flatten)]
    guarantee: GuaranteeArgs,
    /// Quantity to minimise.
    #[arg(long, value_enum, default_value = "energy")]
    minimise: Minimised,
    /// Use these escalation thresholds instead of searching: one per variant except the last, in [0, 1].
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        conflicts_with_all = ["objective", "max_loss", "min_accuracy", "confidence"])]
    thresholds: Vec<f64>,
    /// Plan file to write.
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// SVG file to write: the accuracy-energy graph.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// TOML file of the app: its workers, devices and batching [default: one worker `local` on the CPU].
    #[arg(long, value_name = "FILE")]
    app: Option<PathBuf>,
    /// Batch size at which costs are taken [default: the app's largest batch].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Disable the safety margin against overfitting the validation set, as in the paper.
    #[arg(long, conflicts_with_all = ["max_loss", "min_accuracy", "confidence"])]
    no_safety_margin: bool,
    /// Add no skip connections.
    #[arg(long)]
    no_skips: bool,
    /// Let the stages of a certified cascade decide by their calibrated confidence only, not by learned scores.
    #[arg(long)]
    no_scores: bool,
    /// Seed of the random part of the search.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Quantity to minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Minimised {
    /// Money per request, by the prices in the app's file.
    Cost,
    /// Joules per request; seconds if the joules of any variant are unknown.
    Energy,
    /// Seconds per request.
    Latency,
}

impl From<Minimised> for Minimise {
    fn from(minimised: Minimised) -> Self {
        match minimised {
            Minimised::Cost => Self::Cost,
            Minimised::Energy => Self::Energy,
            Minimised::Latency => Self::Latency,
        }
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    #[serde(flatten)]
    planned: &'a CascadePlan,
}

impl Args {
    /// Returns the objective: that of the flags, or else the guarantee of the app.
    fn objective(&self, app: Option<&App>) -> anyhow::Result<Objective> {
        if !self.thresholds.is_empty() {
            return Ok(Objective::Thresholds(self.thresholds.clone()));
        }
        match self.objective {
            Some(aim) => Ok(aim.into()),
            None if self.no_safety_margin => Ok(Objective::Ap),
            None => Ok(self
                .guarantee
                .certify(app)?
                .map_or(Objective::Ap, Objective::Certified)),
        }
    }
}

/// Plans a cascade, writes and prints it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite
        .check(once(args.out.as_path()).chain(args.svg.as_deref()))?;
    let app = args.app.as_deref().map(App::load_to_plan).transpose()?;
    let profile = read_profile(&args.profile)?;
    let mut search = planning::cascade(&profile)
        .objective(args.objective(app.as_ref())?)
        .minimise(args.minimise.into())
        .seed(args.seed)
        .skips(!args.no_skips)
        .learn_scores(!args.no_scores);
    if let Some(app) = &app {
        search = search.app(app);
    }
    if let Some(batch) = args.batch {
        search = search.batch(batch);
    }
    if args.no_safety_margin {
        search = search.safety_margin(NonInferiorityTest::None);
    }
    let label = format!(
        "planning a cascade from {}",
        units::count_with_separators(profile.samples as u64, "sample", "samples")
    );
    let planned = with_progress_line(&label, args.json, || search.plan())?;
    report::write_file(&args.out, &planned.plan.to_json()?)?;
    let mut files = vec![args.out.as_path()];
    if let Some(path) = &args.svg {
        let drawn = graph::svg(&planning::cascade::graph(&profile, &planned, search.costs_at()))?;
        report::write_file(path, &drawn)?;
        files.push(path);
    }
    if args.json {
        return output::print_json(&Report {
            files,
            planned: &planned,
        });
    }
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    output::print(&format!(
        "{}\n\nwritten to {}",
        planning::cascade::as_text(&profile, &planned),
        written.join(", ")
    ))
}
