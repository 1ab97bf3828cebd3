//! `kaskade demo`: profiles, plans and serves a family of digit classifiers in one command.
//!
//! It calibrates the models on a validation set, plans cascades, and serves a held-out test set through real actors and a broker in
//! three ways: the largest model alone, the accuracy-preserving cascade (AP) and the energy-optimised one (EO).
//!
//! | module | holds |
//! |---|---|
//! | [`embedded`] | the family and its images |
//! | [`mode`] | serving by one plan, measured |
//! | [`watch`] | serving behind the dashboard until it is stopped |

pub(crate) mod embedded;
pub(crate) mod mode;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kaskade::models::Loaded;
use kaskade_app::charts::graph;
use kaskade_app::config::App;
use kaskade_app::config::data::DataSet;
use kaskade_app::config::scalar::Address;
use kaskade_app::data::text_metric::Grading;
use kaskade_app::data::{Label, Samples};
use kaskade_app::family::Family;
use kaskade_app::measure::cost::CostOptions;
use kaskade_app::measure::{self, Judge};
use kaskade_app::planning::{cascade, initial};
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_policy::linear_fit;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use mode::Mode;
use serde::Serialize;

use crate::args::Overwrite;
use crate::output;

/// Profiles, plans and serves built-in digit classifiers, and prints accuracy, energy and latency.
///
/// A held-out test set is served through real actors: by the largest model alone, and by two cascades.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// TOML file of an app with a validation and a test set [default: the built-in digits].
    #[arg(long, value_name = "FILE")]
    app: Option<PathBuf>,
    /// Folder for the graph, the profile and the plans.
    #[arg(long, value_name = "DIR", default_value = "kaskade-demo")]
    out: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Passes over the test set per plan [default: enough for a measurement].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    passes: Option<u32>,
    /// Serve the two cascades as gears behind the dashboard, with a changing load, until Ctrl-C, instead of measuring them.
    #[arg(long, conflicts_with_all = ["json", "passes"])]
    watch: bool,
    /// Address of the dashboard, with `--watch`.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        requires = "watch"
    )]
    http: Address,
    /// Seed of the planner.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measuring time of each batch size in each round of the profile: about 5 s for 7 sizes, 3 rounds and 4 variants.
const MEASURE_FOR: Duration = Duration::from_millis(60);

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    energy_source: String,
    variants: Vec<Variant>,
    modes: Modes,
    files: BTreeMap<&'static str, PathBuf>,
}

#[derive(Debug, Serialize)]
struct Variant {
    name: String,
    parameters: u64,
    /// Accuracy on the test set.
    accuracy: f64,
    /// Energy of the model alone, in full batches.
    joules_per_request: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Modes {
    largest: Mode,
    ap: Mode,
    eo: Mode,
}

/// Files that the demo writes, by their key in the output of `--json`.
const FILES: [(&str, &str); 4] = [
    ("graph", "accuracy-energy.svg"),
    ("profile", "profile.json"),
    ("plan_ap", "plan-ap.json"),
    ("plan_eo", "plan-eo.json"),
];

/// Runs the demo.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let files = FILES.map(|(_, name)| args.out.join(name));
    args.overwrite.check(files.iter().map(PathBuf::as_path))?;
    let (app, family) = if let Some(path) = &args.app {
        let app = App::load_to_plan(path)?;
        let family = Family::from_app(&app);
        (app, family)
    } else {
        let app = embedded::app()?;
        let family = embedded::family(&app)?;
        (app, family)
    };
    let profile = profile(&app, &family, args)?;
    let cascades = cascade::cascades(&app, &profile, args.seed)?;
    let files = write(&args.out, &profile, &cascades)?;
    let largest = family.members.last().context("the family has no members")?;
    let loaded = largest.load(largest.device)?;
    let test = samples(args, app.data.test.as_ref(), "test", &loaded)?;
    if args.watch {
        let wave = watch::Wave::of(&profile);
        let plan = watch::gears(&cascades.ap.plan, &cascades.eo.plan, wave)?;
        return watch::run(&app, family, plan, &test, wave, args.http.socket());
    }
    let alone = initial::single(&app, &largest.name);
    let serve =
        |name: &str, plan: Plan| mode::serve(name, &app, &family, plan, &test, args.passes, args.quiet);
    let report = Report {
        energy_source: profile.energy_source.clone(),
        variants: variants(&app, &family, &profile, &test)?,
        modes: Modes {
            largest: serve("largest", alone)?,
            ap: serve("AP", cascades.ap.plan)?,
            eo: serve("EO", cascades.eo.plan)?,
        },
        files,
    };
    if args.json {
        return output::print_json(&report);
    }
    output::print(&as_text(&report, &test))?;
    if !args.quiet {
        say(&format!(
            "done in {}",
            units::seconds(started.elapsed().as_secs_f64())
        ));
    }
    Ok(())
}

/// How much is measured: for `--watch` little, because what it serves is measured while it is watched.
fn cost_options(watch: bool) -> CostOptions {
    let options = CostOptions::new(MEASURE_FOR);
    if !watch {
        return options;
    }
    CostOptions {
        batches: vec![1, 8, 32],
        rounds: 1,
        ..options
    }
}

fn profile(app: &App, family: &Family, args: &Args) -> anyhow::Result<Profile> {
    let options = measure::MeasureOptions {
        judge: &Judge::Labels,
        grading: Grading::from_data_sets(&app.data),
        app: app.name.as_str(),
        estimator: app.estimator(),
        cost: &cost_options(args.watch),
        power: &(&app.power).into(),
        quiet: args.quiet,
    };
    measure::profile(&options, family, |loaded, _| {
        samples(args, app.data.validation.as_ref(), "validation", loaded)
    })
}

/// Reads a labelled set from the app's files, or from this binary.
fn samples(args: &Args, set: Option<&DataSet>, name: &str, loaded: &Loaded) -> anyhow::Result<Samples> {
    if args.app.is_none() {
        return embedded::samples(set, &loaded.model.signature());
    }
    let set = set.with_context(|| {
        format!("the app has no [data.{name}]; the demo needs a validation and a test set")
    })?;
    Ok(Samples::read(set, loaded)?)
}

/// Evaluates each variant alone: accuracy on the test set, energy from the profile.
fn variants(app: &App, family: &Family, profile: &Profile, test: &Samples) -> anyhow::Result<Vec<Variant>> {
    let batch = app.batching.max_batch.get();
    let variants = family
        .members
        .iter()
        .zip(&profile.variants)
        .map(|(member, profiled)| {
            let mut loaded = member.load(member.device)?;
            let answers = measure::answers::answers(loaded.model.as_mut(), &test.inputs)?;
            Ok(Variant {
                name: member.name.clone(),
                parameters: profiled.parameters,
                accuracy: accuracy(Grading::from_data_sets(&app.data), &test.labels, &answers),
                joules_per_request: linear_fit::per_request(&profiled.costs, batch, |cost| cost.energy_j),
            })
        });
    variants.collect()
}

/// Returns the share of answers that an app's grading accepts, in [0, 1].
fn accuracy(grading: Grading, labels: &[Label], answers: &[Label]) -> f64 {
    let pairs = labels.iter().zip(answers);
    let right = pairs.filter(|(label, answer)| grading.accepts(label, answer));
    right.count() as f64 / labels.len() as f64
}

/// Writes the profile, the plans and the graph.
fn write(
    folder: &Path,
    profile: &Profile,
    cascades: &cascade::Cascades,
) -> anyhow::Result<BTreeMap<&'static str, PathBuf>> {
    let texts = [
        graph::svg(&cascades.graph)?,
        profile.to_json()?,
        cascades.ap.plan.to_json()?,
        cascades.eo.plan.to_json()?,
    ];
    let written = FILES.into_iter().zip(texts).map(|((what, name), text)| {
        let path = folder.join(name);
        output::write_measured(&path, &text)?;
        Ok((what, path))
    });
    written.collect()
}

/// Renders the table.
fn as_text(report: &Report, test: &Samples) -> String {
    let Modes { largest, ap, eo } = &report.modes;
    let rows = [("largest only", largest), ("AP", ap), ("EO", eo)].map(|(name, mode)| {
        let saved = largest.joules_per_request.zip(mode.joules_per_request);
        let shares = report.variants.iter().map(|variant| {
            let share = mode.distribution.get(&variant.name).copied().unwrap_or_default();
            format!("{:.1}", share * 100.0)
        });
        [
            name.to_owned(),
            units::percent(mode.accuracy),
            units::joules(mode.joules_per_request),
            units::times(saved.map(|(largest, mode)| largest / mode)),
            shares.collect::<Vec<_>>().join(" / "),
            format!("{:.1} ms", mode.p50_ms),
            format!("{:.1} ms", mode.p99_ms),
            units::count(mode.sent),
            units::count(mode.answered),
            units::count(mode.errors),
        ]
    });
    let heads = [
        ("served by", Align::Left),
        ("accuracy", Align::Right),
        ("joules/request", Align::Right),
        ("saved", Align::Right),
        ("share per model, %", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("sent", Align::Right),
        ("answered", Align::Right),
        ("errors", Align::Right),
    ];
    let models: Vec<String> = report
        .variants
        .iter()
        .map(|variant| {
            format!(
                "  {}: {} weights, accuracy {}, {} per request alone",
                variant.name,
                units::count(variant.parameters),
                units::percent(variant.accuracy),
                units::joules(variant.joules_per_request)
            )
        })
        .collect();
    let files = report.files.values().map(|path| path.display().to_string());
    format!(
        "{} held-out images, served repeatedly by real actors through a broker. The models, smallest to largest:\n{}\n\n{}\n\
         Energy: {}; of the whole process, idle included.\nFiles: {}",
        test.len(),
        models.join("\n"),
        table(heads, rows),
        report.energy_source,
        files.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers were compared exactly, whatever metric the app names.
    #[test]
    fn accuracies_are_those_of_the_apps_grading() {
        let labels = [
            Label::Texts(vec!["the keeper".to_owned(), "a man".to_owned()]),
            Label::text("sea"),
        ];
        let answers = [Label::text("Keeper."), Label::text("land")];
        let of = |sets: &str| {
            accuracy(
                Grading::from_data_sets(&toml::from_str(sets).unwrap()),
                &labels,
                &answers,
            )
        };
        assert!(of("") < 1e-9);
        assert!((of("metric = 'f1'\nmin_score = 0.5") - 0.5).abs() < 1e-9);
    }
}
