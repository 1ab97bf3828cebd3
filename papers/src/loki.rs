//! Loki's comparisons (§6), in simulation but for the last: capacity, a day, policies of early dropping, objectives, the allocator itself.
//!
//! | module | holds |
//! |---|---|
//! | `field` | a pipeline and a load, and the systems that manage it |
//! | `capacity` | how much a cluster serves, at which accuracy (Figure 1) |
//! | `day`, `pictures` | Loki, `InferLine` and Proteus over a day (Figures 5 and 6) |
//! | `dropping` | policies of early dropping (Figure 7) |
//! | `objectives` | tighter and looser objectives (Figure 8) |
//! | `live` | a live pipeline under a load that rises and falls, and the same simulated (§6.4) |
//! | `allocator` | optimality and speed of the allocator and the balancer (§4, §6.5) |

mod allocator;
mod capacity;
mod day;
mod dropping;
mod field;
mod live;
mod objectives;
mod pictures;

use std::path::PathBuf;

use kaskade_policy::pipeline::Pipeline;
use kaskade_simulator::trace::{Diurnal, Trace};
use kaskade_stated::pipelines::stated_social;

use self::capacity::Phases;
use self::field::{CONTROL_INTERVAL_US, Field, HEADROOM, LOADING_US};
use crate::args::PipelineArgs;
use crate::reproduction::Reproduction;
use kaskade_app::load::trace_args::TraceArgs;

/// Load of the busiest second of the day, as a multiple of the capacity of hardware scaling: the paper's gain by accuracy scaling (§6.2).
const PEAK: f64 = 2.5;

/// The quietest second of a generated day, as a share of the busiest.
const TROUGH: f64 = 0.1;

/// Noise of each second of a generated day.
const NOISE: f64 = 0.05;

/// Seconds in a day.
const DAY_S: usize = 86_400;

/// Runs Loki's comparisons (§6) in simulation and prints them beside the paper's figures: a day against `InferLine` and Proteus,
/// the capacity of the cluster by accuracy, ways of dropping early, other objectives, and the allocator itself.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// Duration of the load: a generated day is compressed into this many seconds. Of a trace, this many seconds around the busiest second
    /// of its first day are used, at their own speed; 86400 is the whole day.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(60..=86_400))]
    seconds: u32,
    /// Serve this app, a pipeline, live in this process under a load that rises and falls, instead, and compare it with the simulator: twice
    /// `--live-seconds`, after the app was measured.
    #[arg(long, value_name = "APP")]
    live: Option<PathBuf>,
    /// How long each live run lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 90, requires = "live", value_parser = clap::value_parser!(u32).range(10..=86_400))]
    live_seconds: u32,
    /// Workers of the cluster; the paper has 20.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    workers: u32,
    /// Directory of the plots.
    #[arg(long, value_name = "DIRECTORY", default_value = "reproduction")]
    pub out: PathBuf,
    /// Seed of arrivals and draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs everything.
///
/// # Errors
/// When a pipeline or trace cannot be read, the pipeline cannot be planned, or a picture not be written.
pub fn run(args: &Args) -> anyhow::Result<Reproduction> {
    if let Some(app) = &args.live {
        return live::run(app, &args.out, args.live_seconds, args.seed);
    }
    let named = args.pipeline.read()?;
    let mut found = Reproduction {
        system: "loki",
        assumptions: assumptions(args),
        ..Reproduction::default()
    };
    found.assumptions.extend(named.notes);
    let traffic = named.pipeline;
    let phases = Phases::new(&traffic, args.workers)?;
    let traffic = field(traffic, phases.hardware.served_qps, args, &mut found.assumptions)?;
    capacity::compare(&traffic, args, &mut found)?;
    day::compare(&traffic, day::Paper::TRAFFIC, args, &mut found)?;
    dropping::compare(&traffic, args, &mut found)?;
    objectives::compare(&traffic, args, &mut found)?;
    let social = stated_social();
    found
        .assumptions
        .push("the social media pipeline of Figure 6: every figure is assumed; nothing of it was published that could be planned with".to_owned());
    let phases = Phases::new(&social, args.workers)?;
    let social = field(social, phases.hardware.served_qps, args, &mut Vec::new())?;
    day::compare(&social, day::Paper::SOCIAL, args, &mut found)?;
    allocator::compare(&traffic.pipeline, args, &mut found)?;
    Ok(found)
}

fn assumptions(args: &Args) -> Vec<String> {
    vec![
        format!("{} workers; a model takes {} s to load", args.workers, LOADING_US as f64 / 1e6),
        format!(
            "all systems estimate the demand every {} ms, plan every 10 s, and 2 s after the last time if it changed by a quarter; Proteus \
             if that at any task did",
            CONTROL_INTERVAL_US / 1000
        ),
        format!(
            "all systems plan for {HEADROOM} times the demand that is estimated: arrivals are random (Poisson), and workers that are \
             to be busy all the time let queues grow. The paper plans for the demand itself, the authors' simulator for 1.05 times the \
             multiplicative factors; what 1 to 1.3 do is in the claim on early dropping"
        ),
        "over the day, a request whose objective has passed leaves the queues, for every contestant; Loki drops and reroutes as the paper \
         says, InferLine and Proteus drop nothing else, which serves InferLine best and Proteus as well as anything"
            .to_owned(),
        "InferLine has the most accurate variants. Proteus has an app per task with an equal slice of the objective, counts what arrives \
         at each, and splits the workers for the highest mean accuracy over the requests of all"
            .to_owned(),
        "a request misses its objective if any of its branches does".to_owned(),
    ]
}

/// A pipeline under a day whose busiest second is [`PEAK`] times what hardware scaling serves.
fn field(
    pipeline: Pipeline,
    hardware_qps: f64,
    args: &Args,
    assumed: &mut Vec<String>,
) -> anyhow::Result<Field> {
    let seconds = args.seconds as usize;
    let peak_qps = PEAK * hardware_qps;
    let trace = if let Some(trace) = args.trace.read()? {
        let busy = trace.without_idle_seconds()?;
        let day = busy.excerpt(0, busy.seconds().min(DAY_S))?;
        let (part, from) = day.around_busiest(seconds)?;
        assumed.push(format!(
            "the load: {} s around the busiest second of the first day in the file, from second {from} with requests on",
            part.seconds()
        ));
        part
    } else {
        assumed.push(format!(
            "the load: a generated day compressed into {seconds} s, between {TROUGH} and all of its peak, with {} % noise (seed {})",
            100.0 * NOISE,
            args.seed
        ));
        generated(seconds, args.seed)?
    };
    assumed.push(format!(
        "the busiest second of the load has {PEAK} times what {} workers serve by hardware scaling, {peak_qps:.0} requests/s",
        args.workers
    ));
    Ok(Field {
        profile: pipeline.profile(),
        trace: trace.scale_to_peak(peak_qps)?,
        workers: args.workers,
        seed: args.seed,
        pipeline,
    })
}

fn generated(seconds: usize, seed: u64) -> anyhow::Result<Trace> {
    let day = Diurnal {
        low_qps: TROUGH,
        high_qps: 1.0,
        period_s: seconds as f64,
        noise: NOISE,
    };
    Ok(day.trace(seconds, seed)?)
}
