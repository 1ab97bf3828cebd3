//! `kaskade plan placement`: decides where a cascade runs: copies, partitions, devices.
mod refusal;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_app::charts::deployment;
use kaskade_app::config::App;
use kaskade_app::config::scalar::{Size, Span};
use kaskade_app::planning::placement::{picture, slices, text};
use kaskade_app::planning::{self, read_profile};
use kaskade_app::planning::{gears, initial};
use kaskade_app::report::progress::{self, Progress};
use kaskade_app::report::{self};
use kaskade_planners::cascade::Objective;
use kaskade_planners::gears::DeviceSpec;
use kaskade_planners::lp::Solver;
use kaskade_planners::placement::{
    Assumed, Channels, Effort, Fleet, Goal, Placed, PlacementOptions, plan_placement,
};
use kaskade_planners::thresholds::NonInferiorityTest;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use serde::Serialize;

use crate::args::positive;
use crate::output;

/// Places a cascade on devices (HybridServe): giants are cut where memory ends, models that many requests reach are copied, and all of
/// it is put where requests travel least and no device is asked for more than it has. The same profile, cascade and options give the
/// same plan.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The profile, as `kaskade profile` writes it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    #[command(flatten)]
    chosen: Chosen,
    /// The load to carry, requests per second, or `most`: as many as the devices are found to carry.
    #[arg(long, value_name = "PER_SECOND", default_value = "most")]
    qps: Load,
    #[command(flatten)]
    hardware: Hardware,
    /// How much of a device its instances may ask for together, above 0 and at most 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    utilisation: f64,
    #[command(flatten)]
    moved: Moved,
    /// Most partitions of any variant. With `--app`, no more than its layers in any case.
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_partitions: u32,
    /// Requests of one period, over which devices are kept busy and batches are cut; 32 per device where absent.
    #[arg(long, value_name = "N")]
    period: Option<u32>,
    /// Memory of a replica where none was measured: this many bytes per weight. 4 for 32-bit floats.
    #[arg(long, value_name = "BYTES", value_parser = positive)]
    bytes_per_weight: Option<f64>,
    /// Where utilisation was not measured, take a batch to keep the whole device busy.
    #[arg(long)]
    whole_device: bool,
    #[command(flatten)]
    solving: Solving,
    /// Where to write the plan.
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// Where to draw the placement.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The seed of the search.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The cascade to place.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// The cascade to place, a plan as `kaskade plan cascade` writes it. That verb's choice for `--objective` where absent.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["objective", "no_guard", "no_skips"])]
    cascade: Option<PathBuf>,
    /// What the cascade is chosen for.
    #[arg(long, value_enum, default_value = "ap")]
    objective: Aim,
    /// Choose the cascade without a distance for luck, as the paper does.
    #[arg(long)]
    no_guard: bool,
    /// Leave skip connections out of the cascade.
    #[arg(long)]
    no_skips: bool,
}

/// The devices there are.
#[derive(Debug, clap::Args)]
struct Hardware {
    /// The TOML file of the app: its workers are the devices, and its checkpoints say what can be cut.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["devices", "per_host"])]
    app: Option<PathBuf>,
    /// Number of devices, where no app names them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    devices: u32,
    /// How many of them are on each host; one worker `w0`, `w1`, ... per host.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    per_host: u32,
    /// Memory of each device.
    #[arg(long, value_name = "SIZE", default_value = "16GB")]
    memory: Size,
    /// How many times as fast as the device that was profiled: one figure for all, or one for each.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = positive)]
    speed: Vec<f64>,
    /// Use as few of the devices as carry the load; the rest host nothing.
    #[arg(long)]
    fewest: bool,
}

/// What travels, and how fast.
#[derive(Debug, clap::Args)]
struct Moved {
    /// How long messages take on a device, over a host's bus and over the network: a JSON file with a `given` or a `measured` channel for
    /// each (`kaskade schema channels`). Stated figures of a usual machine where absent.
    #[arg(long, value_name = "FILE")]
    channels: Option<PathBuf>,
    /// What a request carries from model to model.
    #[arg(long, value_name = "SIZE")]
    request_size: Option<Size>,
    /// What a request carries from partition to partition of a variant, its hidden state: `NAME=SIZE`. An app's checkpoints say it.
    #[arg(long, value_name = "NAME=SIZE", value_parser = named::<Size>)]
    hidden_size: Vec<(String, Size)>,
    /// Layers of a variant, which is cut into no more partitions: `NAME=N`. An app's checkpoints say it.
    #[arg(long, value_name = "NAME=N", value_parser = named::<u32>)]
    layers: Vec<(String, u32)>,
}

/// Who proves what.
#[derive(Debug, clap::Args)]
struct Solving {
    /// Prove placements of up to so many instances times devices by an integer program; 0 proves none that way.
    #[arg(long, value_name = "CELLS", default_value_t = Effort::default().exact_cells)]
    exact: usize,
    /// Who solves it. All but `embedded` need the feature `highs` or `external-solvers` of `kaskade-plans`.
    #[arg(long, value_enum, default_value = "embedded")]
    solver: Solvers,
    /// Longest that another solver may take for one program, by its own clock.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    solver_time: Span,
    /// Moves of the annealing.
    #[arg(long, value_name = "N", default_value_t = Effort::default().moves)]
    moves: u64,
}

/// What a cascade may be chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Aim {
    /// The accuracy of the best variant at the least energy (AP).
    Ap,
    /// The knee of the accuracy-energy curve, never under the second-best variant (EO).
    Eo,
    /// The largest variant alone.
    Largest,
}

/// Who may solve integer programs.
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

/// The load to carry.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load(Goal);

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "most" {
            return Ok(Self(Goal::Most));
        }
        let qps = positive(text).map_err(|error| format!("{error}, or `most`"))?;
        Ok(Self(Goal::Carry { qps }))
    }
}

/// `NAME=VALUE`.
fn named<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<(String, T), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = value.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), value))
}

/// What is printed for machines.
#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    planning_s: f64,
    overhead_per_request_s: f64,
    devices_used: usize,
    #[serde(flatten)]
    placed: &'a Placed,
}

/// Plans, writes and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = args.hardware.app.as_deref().map(App::load).transpose()?;
    let profile = read_profile(&args.profile)?;
    let options = options(args, app.as_ref())?;
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

/// Places a cascade, saying from time to time that it is still at it.
fn place(
    profile: &Profile,
    cascade: &Plan,
    options: &PlacementOptions,
    quiet: bool,
) -> anyhow::Result<(Placed, Duration)> {
    let progress = Progress::begin("plan placement", 1, quiet);
    let work = || progress::timed(|| plan_placement(profile, cascade, options));
    let (placed, took) = progress::while_saying("plan placement: still looking", quiet, work);
    let placed = placed.map_err(|error| refusal::of(&error))?;
    progress.end(&format!(
        "{} instances on {} devices",
        placed.plan.placement.len(),
        placed.used()
    ));
    Ok((placed, took))
}

/// The cascade of a file, or the one that `plan cascade` would choose.
fn cascade(args: &Args, app: Option<&App>, profile: &Profile) -> anyhow::Result<Plan> {
    if let Some(path) = &args.chosen.cascade {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "{} cannot be read; `kaskade plan cascade` writes one",
                path.display()
            )
        })?;
        return Plan::from_json(&text).with_context(|| path.display().to_string());
    }
    let objective = match args.chosen.objective {
        Aim::Ap => Objective::Ap,
        Aim::Eo => Objective::Eo,
        Aim::Largest => Objective::Largest,
    };
    let mut planner = planning::cascade(profile)
        .objective(objective)
        .seed(args.seed)
        .skips(!args.chosen.no_skips);
    if let Some(app) = app {
        planner = planner.app(app);
    }
    if args.chosen.no_guard {
        planner = planner.guard(NonInferiorityTest::None);
    }
    Ok(planner.plan()?.plan)
}

fn options(args: &Args, app: Option<&App>) -> anyhow::Result<PlacementOptions> {
    let Load(goal) = args.qps;
    let mut options = PlacementOptions::new(devices(&args.hardware, app)?, goal);
    options.fleet = if args.hardware.fewest {
        Fleet::Fewest
    } else {
        Fleet::All
    };
    options.utilisation = args.utilisation;
    options.max_partitions = args.max_partitions;
    options.batch = args.period.unwrap_or(options.batch);
    options.assumed = Assumed {
        bytes_per_parameter: args.bytes_per_weight,
        whole_device: args.whole_device,
    };
    options.effort = Effort {
        exact_cells: args.solving.exact,
        moves: args.solving.moves,
        solver: args.solving.solver.into(),
        solver_time: Some(args.solving.solver_time.duration()),
        ..Effort::default()
    };
    options.seed = args.seed;
    if let Some(app) = app {
        for variant in &app.variants {
            let shape = slices::of(&variant.dir)?;
            options.layers.insert(variant.name.to_string(), shape.layers);
            options
                .hidden_bytes
                .insert(variant.name.to_string(), shape.hidden_bytes);
        }
    }
    moved(&args.moved, &mut options)?;
    Ok(options)
}

fn moved(moved: &Moved, options: &mut PlacementOptions) -> anyhow::Result<()> {
    if let Some(path) = &moved.channels {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{} cannot be read; `kaskade channels` writes one", path.display()))?;
        let channels: Channels = serde_json::from_str(&text).with_context(|| {
            format!(
                "{}: no channels; `kaskade schema channels` says how they are written",
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

/// The workers of the app, or as many devices as are asked for, so many on each host.
fn devices(args: &Hardware, app: Option<&App>) -> anyhow::Result<Vec<DeviceSpec>> {
    let memory = args.memory.bytes();
    let mut devices = app.map_or_else(
        || DeviceSpec::fleet(args.devices as usize, memory),
        |app| gears::devices(app, memory),
    );
    if app.is_none() {
        let each = args.per_host as usize;
        for (number, device) in devices.iter_mut().enumerate() {
            device.worker = format!("w{}", number / each);
            device.device = format!("cuda:{}", number % each);
        }
    }
    ensure!(
        args.speed.len() == 1 || args.speed.len() == devices.len(),
        "--speed has {} figures for {} devices; give one for all, or one for each",
        args.speed.len(),
        devices.len()
    );
    for (device, speed) in devices.iter_mut().zip(args.speed.iter().cycle()) {
        device.speed = *speed;
    }
    Ok(devices)
}
