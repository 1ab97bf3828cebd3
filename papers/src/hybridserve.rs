//! The comparisons of HybridServe (Edinburgh, §VI), in simulation: three families of models on twelve servers with one GPU each.
//!
//! | module | holds |
//! |---|---|
//! | `field` | a family on the servers: constructed, placed, simulated |
//! | `paper` | the paper's figures of each family |
//! | `served`, `families` | results of each mode, and the claims on them (Tables III to V, Figures 4 and 5) |
//! | `eight` | eight models with and without skip connections (§IV-C) |
//! | `planning`, `synthetic`, `took` | the planner's time, growth and distance from the optimum (§V-D, §VI-D) |
//! | `routing` | cost of routing a result (Figure 8) |
//! | `live` | skip connections and co-location on real actors |
//! | `measured` | families of the project's own, from their profiles |
//! | `pictures` | the figures |

mod eight;
mod families;
mod field;
mod live;
mod measured;
mod paper;
mod pictures;
mod planning;
mod routing;
mod served;
pub mod synthetic;
mod took;

use std::path::PathBuf;

use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::report::progress::Progress;
use kaskade_stated::families::{StatedFamily, gpt, gpt_of_eight, t5, vit};

use self::field::{Field, SERVERS};
use self::paper::Paper;
use self::served::Served;
use crate::reproduction::Reproduction;

/// Runs HybridServe's comparisons (§VI) in simulation and prints them beside the paper's figures: T5, GPT and `ViT` on twelve servers by the
/// largest model alone, by AP and by EO; eight models with and without skips; the planner's time; and measured families.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compare this app's family, by the `profile.json` beside its file, instead of the project's own digits and sentiment. May be repeated.
    #[arg(long, value_name = "FILE")]
    app: Vec<PathBuf>,
    /// How long each simulated load lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(30..=86_400))]
    seconds: u32,
    /// Most devices of the table of how planning grows.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(16..=1_000))]
    devices: u32,
    /// Instead of simulating, serve this app in this process, by the profile beside its file: all its models as a chain, with skip
    /// connections and as the planner makes it, and ever more replicas on one device.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["app", "seconds", "devices"])]
    live: Option<PathBuf>,
    /// How long each live run is recorded.
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "live")]
    live_length: HumanDuration,
    /// Directory of the plots.
    #[arg(long, value_name = "DIRECTORY", default_value = "reproduction")]
    pub out: PathBuf,
    /// Seed of arrivals and searches.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs everything.
///
/// # Errors
/// When an app or its profile cannot be read, something cannot be planned or simulated, or a picture not be written.
pub fn run(args: &Args) -> anyhow::Result<Reproduction> {
    let measured = measured::profiles(&args.app)?;
    let mut found = Reproduction {
        system: "hybridserve",
        ..Reproduction::default()
    };
    if let Some(app) = &args.live {
        live::run(app, args.live_length.duration(), args.seed, &mut found)?;
        return Ok(found);
    }
    found.assumptions = assumptions(args);
    let field = |family: StatedFamily| Field::new(family, args.seconds, args.seed);
    let mut served = Vec::new();
    let mut progress = Progress::begin("families", 4, args.json);
    for (family, paper) in [(t5(), paper::T5), (gpt(), paper::GPT), (vit(), paper::VIT)] {
        assume(&family, &mut found);
        let one = Served::of(field(family))?;
        families::compare(&one, &paper, &mut found)?;
        served.push((one, paper));
        progress.advance(1);
    }
    let eight = eight::compare(&field(gpt_of_eight()), &mut found)?;
    progress.advance(1);
    progress.end("simulated");
    plan(&served, &eight, args, &mut found)?;
    measured::compare(&measured, &args.out, args.seed, &mut found)?;
    Ok(found)
}

/// The claims on the planner and the router, and the pictures.
fn plan(
    served: &[(Served, Paper)],
    eight: &[eight::Connected],
    args: &Args,
    found: &mut Reproduction,
) -> anyhow::Result<()> {
    planning::families(served, found)?;
    let grown = planning::growth(args.devices as usize, args.json, found)?;
    let fields: Vec<&Field> = served.iter().map(|(served, _)| &served.field).collect();
    planning::exact(&fields, args.json, found)?;
    planning::judged(args.json, found)?;
    pictures::draw(served, eight, &grown, &args.out, found)?;
    routing::compare(&args.out, found)
}

/// The stated figures of a family, without repetitions.
fn assume(family: &StatedFamily, found: &mut Reproduction) {
    for assumption in family.assumptions() {
        let line = format!("{}: {}", assumption.what, assumption.why);
        if !found.assumptions.contains(&line) {
            found.assumptions.push(line);
        }
    }
}

fn assumptions(args: &Args) -> Vec<String> {
    vec![
        format!(
            "{SERVERS} servers with one device each; messages take 300 us and 1.25 GB/s between them, and every hop of a simulation as long as the \
             largest thing that its placement sends"
        ),
        "the largest model alone is placed by the same planner as the cascades, in whole copies where it fits, with the same batches; the paper's baseline is \
         DeepSpeed, whose own figures are not published"
            .to_owned(),
        "AP and EO by the paper's rule, without a safety margin; every placement is for the most that the servers are found to carry, unless \
         stated otherwise"
            .to_owned(),
        format!(
            "loads are even, arrivals Poisson, {} s of them; a load is sustained if the last answer comes within 5 % of that after the last request. \
             Latencies are compared at half of what the largest model alone sustains, and kept to 0.8 %",
            args.seconds
        ),
        "cascades are chosen and placed by one draw of the models' answers; accuracies are judged, and requests simulated, on a second one"
            .to_owned(),
        "batches that share a device slow each other down where their kernels want more than its time; energy is the idle power of loaded devices, \
         what kernels add, and what devices that host nothing draw"
            .to_owned(),
    ]
}
