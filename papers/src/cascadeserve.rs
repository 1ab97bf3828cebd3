//! CascadeServe's comparisons (§6) in simulation: cost, a spike, the planner, ablations.
//!
//! | module | holds |
//! |---|---|
//! | `field` | a workload, and the systems that plan for it |
//! | `work` | the device time that cascading can save at all |
//! | `cost` | devices by latency and accuracy (Figures 5 to 7) |
//! | `spike` | a load that jumps (Figure 8) |
//! | `live` | simulated against live (Figure 13), and a live spike |
//! | `planning` | quality and speed of planning, ablations (Figures 10 to 12) |

mod cost;
mod field;
mod live;
mod planning;
mod spike;
mod work;

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_app::planning::read_profile;
use kaskade_app::report::progress::say;
use kaskade_models::CoreShare;
use kaskade_policy::plan::Slo;
use kaskade_policy::profile::Profile;
use kaskade_simulator::trace::{Trace, TwitterLike};
use kaskade_stated::workloads;
use kaskade_stated::workloads::StatedWorkload;

use self::cost::Goals;
use self::field::{ENTRY_HOP_US, Field, HOP_US};
use crate::reproduction::Reproduction;
use kaskade_app::load::trace_args::TraceArgs;

/// Factor on the paper's peaks where devices are counted: at the peaks themselves most goals take one or two devices, and halves cannot be
/// counted.
const FINER: f64 = 2.0;

/// Fleets that are tried.
const FLEETS: [usize; 13] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24];

/// The measured family that is compared beside the stated ones.
const DIGITS: &str = include_str!("../../examples/digits/profile.json");

/// Runs CascadeServe's comparisons (§6) in simulation and prints them beside the paper's figures: devices by latency and
/// accuracy against DynBa, MS+ and Cocktail+, a spike, ablations, and the planner against exhaustive and random search.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    /// Length of the trace, seconds; the paper plays 20 minutes.
    #[arg(long, value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u32).range(10..=86_400))]
    seconds: u32,
    /// Compare the simulator with this app, served live in this process, instead: 15 gear plans on 3 traces, and a spike of ten
    /// times the load (about 30 minutes, on a machine that does nothing else).
    #[arg(long, value_name = "APP")]
    live: Option<PathBuf>,
    /// Part of a core that each model may take in `--live` [default: the app's]. Models that are a thousand times smaller than
    /// the paper's take no longer than a message does; at a share of a core, computing outweighs messaging as it does there.
    #[arg(long, value_name = "SHARE", requires = "live", value_parser = core_share)]
    core_share: Option<CoreShare>,
    /// Share of the processor that other processes may take during a run of `--live`: it waits until they do, and repeats what they
    /// disturbed. With 1 it measures whatever they do.
    #[arg(long, value_name = "SHARE", requires = "live", default_value_t = 0.03)]
    foreign: f64,
    /// How often `--live` serves each plan on each trace; the median of the runs is compared with the simulator.
    #[arg(long, value_name = "COUNT", requires = "live", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Workloads to count devices on [default: all].
    #[arg(long, value_enum, value_name = "NAME")]
    workload: Vec<Workload>,
    /// Custom profile to compare on, instead of that of the digits, or of one that `--live` measures.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Directory of the plots.
    #[arg(long, value_name = "DIRECTORY", default_value = "reproduction")]
    pub out: PathBuf,
    /// Seed of arrivals and searches.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The workloads for which devices are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// BERT Tiny to Base on a V100, stated.
    Bert,
    /// Llama 3b to 70b on a V100, stated.
    Llama,
    /// The digits, measured, or the family of `--profile`.
    Digits,
}

impl Args {
    fn wants(&self, workload: Workload) -> bool {
        self.workload.is_empty() || self.workload.contains(&workload)
    }
}

/// Runs everything.
///
/// # Errors
/// When a trace or profile cannot be read, or a picture not be written.
pub fn run(args: &Args) -> anyhow::Result<Reproduction> {
    if let Some(app) = &args.live {
        let profile = args.profile.as_deref().map(read_profile).transpose()?;
        return live::run(app, profile, args);
    }
    let mut found = Reproduction {
        system: "cascadeserve",
        assumptions: vec![
            format!("messages take {HOP_US} us between stages and {ENTRY_HOP_US} us between client and service, there and back"),
            format!("where devices are counted, the load is {FINER} times the paper's, for a finer resolution; fleets up to 24 are tried"),
            "every contestant has the distribution of the trace's load; Cocktail+ has the load of every second beforehand".to_owned(),
            "Cocktail+ gets a device at once and answers with it 10 s later; it pays for devices by the second".to_owned(),
            "an objective counts as reached if the 95th percentile over the whole trace and the share of right answers do, to a thousandth".to_owned(),
        ],
        ..Reproduction::default()
    };
    let trace = trace(args, &mut found)?;
    let (bert, llama) = (workloads::bert(), workloads::llama());
    let mut ablated = Vec::new();
    for (kind, workload, goals_us) in [
        (Workload::Bert, &bert, [100, 200, 400, 800].map(|ms| ms * 1000)),
        (
            Workload::Llama,
            &llama,
            [1_000, 2_000, 4_000, 8_000].map(|ms| ms * 1000),
        ),
    ] {
        let field = stated_field(workload, &trace, args.seed)?;
        let crowded = Field {
            trace: trace.scale_to_peak(workload.peak_qps * FINER)?,
            ..field.clone()
        };
        found.assumptions.extend(
            workload
                .assumptions()
                .into_iter()
                .map(|assumption| format!("{}: {} ({})", workload.name, assumption.what, assumption.why)),
        );
        let goals = Goals {
            p95_us: goals_us.to_vec(),
            accuracies: goals_between(&field.profile),
            fleets: FLEETS.to_vec(),
        };
        if args.wants(kind) {
            cost(&crowded, &goals, args, &mut found)?;
        }
        ablated.push((field, goals_us));
    }
    if args.wants(Workload::Digits) {
        own(args, &trace, &mut found)?;
    }
    planner(&bert, &ablated, args, &mut found)?;
    Ok(found)
}

/// The trace of a flag, or one that is generated: its part around the busiest second, since an even load is no
/// challenge. `--excerpt` names another part.
fn trace(args: &Args, found: &mut Reproduction) -> anyhow::Result<Trace> {
    const DAY_S: usize = 86_400;
    let seconds = args.seconds as usize;
    let (trace, what) = match args.trace.read()? {
        Some(trace) => (trace, "the file named".to_owned()),
        None => (
            TwitterLike { mean_qps: 1000.0 }.trace(DAY_S, args.seed)?,
            format!(
                "a generated day, similar to the Twitter stream (seed {})",
                args.seed
            ),
        ),
    };
    let (part, from) = trace.around_busiest(seconds)?;
    let length = part.seconds();
    let trace = part.without_idle_seconds()?;
    let statistics = trace.statistics();
    found.assumptions.push(format!(
        "the trace: {length} s of {what}, from second {from} on, around its busiest second; scaled to each workload's peak, which is {:.1} \
         times its mean",
        statistics.peak_qps / statistics.mean_qps
    ));
    Ok(trace)
}

fn stated_field(workload: &StatedWorkload, trace: &Trace, seed: u64) -> anyhow::Result<Field> {
    Ok(Field {
        profile: workload.profile(),
        memory_bytes: workload.memory_bytes,
        trace: trace.scale_to_peak(workload.peak_qps)?,
        seed,
    })
}

/// Accuracies between the second smallest variant's and the largest's, none of them a single variant's but the last: at a
/// single variant's own accuracy there is nothing for a cascade to gain.
fn goals_between(profile: &Profile) -> Vec<f64> {
    const WAYS: [f64; 5] = [0.1, 0.3, 0.5, 0.75, 1.0];
    let mut accuracies: Vec<f64> = profile
        .variants
        .iter()
        .map(|variant| {
            let right = variant.validation.correct.iter().filter(|right| **right).count();
            right as f64 / profile.samples.max(1) as f64
        })
        .collect();
    accuracies.sort_by(f64::total_cmp);
    let low = accuracies.get(1).or(accuracies.first()).copied().unwrap_or(0.0);
    let high = accuracies.last().copied().unwrap_or(1.0);
    WAYS.iter().map(|way| low + (high - low) * way).collect()
}

fn cost(field: &Field, goals: &Goals, args: &Args, found: &mut Reproduction) -> anyhow::Result<()> {
    let quiet = args.json;
    let needs = cost::needs(field, goals, &|line| {
        if !quiet {
            say(line);
        }
    })?;
    let name = format!("cost: {} ({})", field.profile.app, field.profile.device);
    found.claims.push(needs.claim(name, goals));
    found
        .files
        .extend(needs.draw(&field.profile.app, goals, &args.out)?);
    Ok(())
}

fn own_profile(args: &Args) -> anyhow::Result<Profile> {
    match &args.profile {
        Some(path) => Ok(read_profile(path)?),
        None => Profile::from_json(DIGITS).context("the profile of the digits"),
    }
}

/// The measured family, under a load that its largest variant needs several devices for.
fn own(args: &Args, trace: &Trace, found: &mut Reproduction) -> anyhow::Result<()> {
    let profile = own_profile(args)?;
    let largest = profile.variants.last().context("the profile has no variants")?;
    let slowest = largest.costs.last().context("the largest variant has no costs")?;
    let capacity = f64::from(slowest.batch) / slowest.latency_s;
    let alone = largest
        .costs
        .first()
        .map_or(slowest.latency_s, |cost| cost.latency_s);
    let field = Field {
        trace: trace.scale_to_peak(16.0 * capacity)?,
        memory_bytes: 1 << 40,
        seed: args.seed,
        profile: profile.clone(),
    };
    found.assumptions.push(format!(
        "{}: measured by `kaskade profile` on {}; the peak is what sixteen devices of the largest variant carry, {:.0} requests/s",
        profile.app,
        profile.device,
        16.0 * capacity
    ));
    let goals = Goals {
        p95_us: [4.0, 8.0, 16.0]
            .map(|times| (alone * times * 1e6) as u64)
            .to_vec(),
        accuracies: goals_between(&profile),
        fleets: FLEETS.to_vec(),
    };
    cost(&field, &goals, args, found)
}

/// The spike, the planner, the ablations.
fn planner(
    bert: &StatedWorkload,
    ablated: &[(Field, [u64; 4])],
    args: &Args,
    found: &mut Reproduction,
) -> anyhow::Result<()> {
    let spiky = Field {
        trace: spike::course(bert.peak_qps)?,
        ..stated_field(bert, &spike::course(1.0)?, args.seed)?
    };
    let (claims, file) = spike::compare(&spiky, &args.out)?;
    found.claims.extend(claims);
    found.files.push(file);
    found.assumptions.push(format!(
        "the spike: five stretches between a tenth and all of {} requests/s; the objective is {} ms (the paper's figure was lost)",
        bert.peak_qps,
        spike::P95_US / 1000
    ));
    // Devices that are too few to serve the largest variant at the peak: there the planner has to choose.
    let cases: Vec<(&Field, usize, u64)> = ablated
        .iter()
        .map(|(field, [_, _, p95_us, _])| (field, 2, *p95_us))
        .collect();
    let (claim, file) = planning::ablations(&cases, &args.out)?;
    found.claims.push(claim);
    found.files.push(file);
    if let Some((field, [_, _, p95_us, _])) = ablated.first() {
        found.claims.push(planning::quality(field, 2)?);
        found
            .claims
            .push(planning::speed(field, 4, Slo::Latency { p95_us: *p95_us })?);
    }
    Ok(())
}

fn core_share(text: &str) -> Result<CoreShare, String> {
    let share: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    CoreShare::try_from(share).map_err(|error| error.to_string())
}
