//! `kaskade plan placement`: places replicas and partitions of a cascade on devices.

mod refusal;

use std::iter::once;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_app::charts::deployment;
use kaskade_app::config::App;
use kaskade_app::config::scalar::ByteSize;
use kaskade_app::load::trace_args::positive;
use kaskade_app::planning::placement::{partitions, picture, text};
use kaskade_app::planning::{self, read_profile};
use kaskade_app::planning::{gears, initial};
use kaskade_app::report;
use kaskade_app::report::progress::{self, Progress};
use kaskade_app::report::units;
use kaskade_planners::gears::DeviceSpec;
use kaskade_planners::lp::Solver;
use kaskade_planners::placement::{
    Assumptions, Channels, Fleet, Placement, PlacementObjective, PlacementOptions, SearchLimits,
    plan_placement,
};
use kaskade_planners::thresholds::NonInferiorityTest;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use serde::Serialize;

use crate::args::{Aim, Overwrite, utilisation};
use crate::failure::Usage;
use crate::output;

/// Time limit of a solver other than the embedded one for one program.
const SOLVER_TIME: Duration = Duration::from_mins(1);

/// Places a cascade on several devices. Use it for more load than one replica serves, or a model larger than a device.
///
/// The method is HybridServe's (Edinburgh). Models larger than a device are split by layer, and models that many requests reach get several replicas. The planner minimises
/// the transfer time of requests within the memory and the utilisation of every device. The same profile, cascade and options give
/// the same plan.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Profile, as `kaskade profile` writes it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    #[command(flatten)]
    cascade: CascadeArgs,
    /// Load, requests per second; `max` finds the highest load that the devices can serve.
    #[arg(long, value_name = "PER_SECOND", default_value = "max")]
    rate: Load,
    #[command(flatten)]
    hardware: Hardware,
    /// Highest utilisation of a device by all its instances, above 0 and at most 1.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = utilisation)]
    utilisation: f64,
    #[command(flatten)]
    moved: Moved,
    /// Most partitions of a variant; never more than its layers.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    max_partitions: u32,
    /// Memory of a replica in bytes per weight, if it was not measured; 4 for 32-bit floats.
    #[arg(long, value_name = "BYTES", value_parser = positive)]
    bytes_per_weight: Option<f64>,
    /// Assume full utilisation of the device by a batch, if it was not measured.
    #[arg(long)]
    whole_device: bool,
    /// Solver of integer programs. `highs` needs a build with the feature `highs`; the others except `embedded` need `external-solvers`.
    #[arg(long, value_enum, default_value = "embedded")]
    solver: Solvers,
    /// Plan file to write.
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// SVG file to write: the placement.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Seed of the search.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Cascade to place.
#[derive(Debug, clap::Args)]
struct CascadeArgs {
    /// Plan with the cascade, as `kaskade plan cascade` writes it [default: that planner's choice for `--objective`].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["objective", "no_safety_margin", "no_skips"])]
    cascade: Option<PathBuf>,
    /// Objective of the cascade.
    #[arg(long, value_enum, default_value = "ap")]
    objective: Aim,
    /// Disable the safety margin against overfitting the validation set, as in the paper.
    #[arg(long)]
    no_safety_margin: bool,
    /// Add no skip connections to the cascade.
    #[arg(long)]
    no_skips: bool,
}

/// Devices to place on.
#[derive(Debug, clap::Args)]
struct Hardware {
    /// TOML file of the app: its workers are the devices, and its checkpoints have the layers to split by.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["devices", "per_host"])]
    app: Option<PathBuf>,
    /// Number of devices, if no app is given.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    devices: u32,
    /// Devices per host; one worker `w0`, `w1`, ... per host.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    per_host: u32,
    /// Memory of each device.
    #[arg(long, value_name = "SIZE", default_value = "16GB")]
    memory: ByteSize,
    /// Speed relative to the profiled device: one number for all devices, or one for each.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = positive)]
    speed: Vec<f64>,
    /// Use as few devices as can serve the load.
    #[arg(long)]
    minimise_devices: bool,
}

/// Sizes of messages, and times of their transfers.
#[derive(Debug, clap::Args)]
struct Moved {
    /// Transfer times within a device, within a host and over the network: a JSON file as `kaskade profile channels` writes it
    /// [default: figures of a typical machine].
    #[arg(long, value_name = "FILE")]
    channels: Option<PathBuf>,
    /// Bytes that a request carries from model to model.
    #[arg(long, value_name = "SIZE")]
    request_size: Option<ByteSize>,
    /// Bytes of the hidden state between partitions of a variant: `NAME=SIZE` [default: from the app's checkpoints].
    #[arg(long, value_name = "NAME=SIZE", value_parser = named::<ByteSize>)]
    hidden_size: Vec<(String, ByteSize)>,
    /// Layers of a variant, the most partitions it can have: `NAME=N` [default: from the app's checkpoints, or else the profile; 1 if neither
    /// states them].
    #[arg(long, value_name = "NAME=N", value_parser = named::<u32>)]
    layers: Vec<(String, u32)>,
}

/// Solver of integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Solvers {
    Embedded,
    Highs,
    Cbc,
    Glpk,
    Gurobi,
    Cplex,
}

impl From<Solvers> for Solver {
    fn from(solver: Solvers) -> Self {
        match solver {
            Solvers::Embedded => Self::Embedded,
            Solvers::Highs => Self::Highs,
            Solvers::Cbc => Self::Cbc,
            Solvers::Glpk => Self::Glpk,
            Solvers::Gurobi => Self::Gurobi,
            Solvers::Cplex => Self::Cplex,
        }
    }
}

/// Load to serve.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load(PlacementObjective);

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self(PlacementObjective::Most));
        }
        let qps = positive(text).map_err(|error| format!("{error}, or `max`"))?;
        Ok(Self(PlacementObjective::Carry { qps }))
    }
}

/// Parses `NAME=VALUE`.
fn named<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<(String, T), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = value.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), value))
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    planning_s: f64,
    overhead_per_request_s: f64,
    devices_used: usize,
    #[serde(flatten)]
    placed: &'a Placement,
}

/// Plans, writes and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // No integer program may turn out to be needed.
    Solver::from(args.solver).check_built()?;
    args.overwrite
        .check(once(args.out.as_path()).chain(args.svg.as_deref()))?;
    let app = args.hardware.app.as_deref().map(App::load_to_plan).transpose()?;
    let profile = read_profile(&args.profile)?;
    let options = options(args, app.as_ref(), &profile)?;
    let (cascade, constructed) = progress::timed(|| cascade(args, app.as_ref(), &profile));
    let (placed, took) = place(&profile, &cascade?, &options, args.json)?;
    if let Some(app) = &app {
        initial::check(app, &placed.plan)?;
    }
    report::write_file(&args.out, &placed.plan.to_json()?)?;
    let mut files = vec![args.out.as_path()];
    if let Some(path) = &args.svg {
        report::write_file(path, &deployment::svg(&picture::of(&placed))?)?;
        files.push(path);
    }
    let planning = constructed + took;
    if args.json {
        return output::print_json(&Report {
            files,
            planning_s: planning.as_secs_f64(),
            overhead_per_request_s: placed.overhead_per_request_s(),
            devices_used: placed.used(),
            placed: &placed,
        });
    }
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    output::print(&format!(
        "{}\n\nwritten to {}",
        text::of(&placed, planning),
        written.join(", ")
    ))
}

/// Places a cascade, and reports progress.
fn place(
    profile: &Profile,
    cascade: &Plan,
    options: &PlacementOptions,
    quiet: bool,
) -> anyhow::Result<(Placement, Duration)> {
    let progress = Progress::begin("plan placement", 1, quiet);
    let work = || progress::timed(|| plan_placement(profile, cascade, options));
    let (placed, took) = progress::with_progress_line("plan placement: searching", quiet, work);
    let placed = placed.map_err(|error| refusal::of(&error))?;
    progress.end(&format!(
        "{} on {}",
        units::count_of(placed.plan.placement.len(), "instance", "instances"),
        units::count_of(placed.used(), "device", "devices")
    ));
    Ok((placed, took))
}

/// Reads the cascade from a file, or plans it as `plan cascade` does.
fn cascade(args: &Args, app: Option<&App>, profile: &Profile) -> anyhow::Result<Plan> {
    if let Some(path) = &args.cascade.cascade {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "{} cannot be read; `kaskade plan cascade` writes one",
                path.display()
            )
        })?;
        return Plan::from_json(&text).with_context(|| path.display().to_string());
    }
    let mut planner = planning::cascade(profile)
        .objective(args.cascade.objective.into())
        .seed(args.seed)
        .skips(!args.cascade.no_skips);
    if let Some(app) = app {
        planner = planner.app(app);
    }
    if args.cascade.no_safety_margin {
        planner = planner.safety_margin(NonInferiorityTest::None);
    }
    Ok(planner.plan()?.plan)
}

fn options(args: &Args, app: Option<&App>, profile: &Profile) -> anyhow::Result<PlacementOptions> {
    let Load(goal) = args.rate;
    let mut options = PlacementOptions::new(devices(&args.hardware, app, profile)?, goal);
    options.fleet = if args.hardware.minimise_devices {
        Fleet::Fewest
    } else {
        Fleet::All
    };
    options.utilisation = args.utilisation;
    options.max_partitions = args.max_partitions;
    options.assumed = Assumptions {
        bytes_per_parameter: args.bytes_per_weight,
        whole_device: args.whole_device,
    };
    options.limits = SearchLimits {
        solver: args.solver.into(),
        solver_time: Some(SOLVER_TIME),
        ..SearchLimits::default()
    };
    options.seed = args.seed;
    for variant in &profile.variants {
        let layers = variant.layers.map_or(1, NonZeroU32::get);
        options.layers.insert(variant.name.clone(), layers);
    }
    if let Some(app) = app {
        for variant in &app.variants {
            // Only checkpoints can be split by layers.
            let Some(dir) = &variant.dir else { continue };
            let shape = partitions::of(app.task, app.generation.max_tokens, dir)?;
            options.layers.insert(variant.name.to_string(), shape.layers);
            options
                .hidden_bytes
                .insert(variant.name.to_string(), shape.hidden_bytes);
        }
    }
    check_names(&args.moved, profile)?;
    moved(&args.moved, &mut options)?;
    if app.is_none() && args.max_partitions.min(args.hardware.devices) > 1 {
        note_unknown_layers(args, profile);
    }
    Ok(options)
}

/// Says which variants are not split because nothing states their layers.
fn note_unknown_layers(args: &Args, profile: &Profile) {
    let is_stated = |name: &str| args.moved.layers.iter().any(|(stated, _)| stated == name);
    let unknown = profile.variants.iter();
    let unknown = unknown.filter(|variant| variant.layers.is_none() && !is_stated(&variant.name));
    let names: Vec<String> = unknown.map(|variant| format!("`{}`", variant.name)).collect();
    if !names.is_empty() {
        progress::say(&format!(
            "plan placement: the profile does not state the layers of {}, so each stays whole; give `--app` or `--layers NAME=N`, or profile \
             again",
            names.join(", ")
        ));
    }
}

/// Refuses settings of variants that the profile does not have.
fn check_names(moved: &Moved, profile: &Profile) -> anyhow::Result<()> {
    let layers = moved.layers.iter().map(|(name, _)| ("--layers", name));
    let hidden = moved.hidden_size.iter().map(|(name, _)| ("--hidden-size", name));
    for (flag, name) in layers.chain(hidden) {
        if !profile.variants.iter().any(|variant| variant.name == *name) {
            let known: Vec<String> = profile
                .variants
                .iter()
                .map(|variant| format!("`{}`", variant.name))
                .collect();
            let known = known.join(", ");
            return Err(Usage::new(format!(
                "{flag}: the profile has no variant `{name}`; it has {known}"
            ))
            .into());
        }
    }
    Ok(())
}

fn moved(moved: &Moved, options: &mut PlacementOptions) -> anyhow::Result<()> {
    if let Some(path) = &moved.channels {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "{} cannot be read; `kaskade profile channels` writes one",
                path.display()
            )
        })?;
        let channels: Channels = serde_json::from_str(&text).with_context(|| {
            format!(
                "{}: is not a channels file; `kaskade schema channels` prints its format",
                path.display()
            )
        })?;
        options.channels = channels;
    }
    options.request_bytes = moved.request_size.map_or(0.0, |size| size.bytes() as f64);
    for (name, size) in &moved.hidden_size {
        options.hidden_bytes.insert(name.clone(), size.bytes() as f64);
    }
    options.layers.extend(moved.layers.iter().cloned());
    Ok(())
}

/// Returns the workers of the app, or the given number of devices of the kind that was profiled.
fn devices(args: &Hardware, app: Option<&App>, profile: &Profile) -> anyhow::Result<Vec<DeviceSpec>> {
    let memory = args.memory.bytes();
    let mut devices = app.map_or_else(
        || Ok(DeviceSpec::fleet(args.devices as usize, memory)),
        |app| gears::devices(app, memory),
    )?;
    if app.is_none() {
        let each = args.per_host as usize;
        for (number, device) in devices.iter_mut().enumerate() {
            device.worker = format!("w{}", number / each);
            device.device = planning::device_name(profile, number % each);
        }
    }
    ensure!(
        args.speed.len() == 1 || args.speed.len() == devices.len(),
        Usage::new(format!(
            "--speed has {} for {}; give one for all, or one for each",
            units::count_of(args.speed.len(), "number", "numbers"),
            units::count_of(devices.len(), "device", "devices")
        ))
    );
    for (device, speed) in devices.iter_mut().zip(args.speed.iter().cycle()) {
        device.speed = *speed;
    }
    Ok(devices)
}
