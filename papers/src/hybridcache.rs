//! The comparisons of HybridServe (KAIST, §3 and §5), in simulation: four OPTs on the paper's machine, every figure of it stated.
//!
//! | module | holds |
//! |---|---|
//! | `field` | a load on the machine by a mode |
//! | `motivation` | batches and token recomputation (Figures 3, 4 and 6) |
//! | `throughput` | the hybrid against the baselines (Figure 12) |
//! | `traffic` | traffic of the link, utilisation of the device (Figures 13 and 14) |
//! | `policy` | lines, ratios, ablation (Figures 11 and 15) |
//! | `pictures` | the figures |

mod field;
mod motivation;
mod pictures;
mod policy;
mod throughput;
mod traffic;

use std::path::PathBuf;

use kaskade_simulator::offload::Load;
use kaskade_simulator::offload::decoders as stated;

use self::field::BLOCK_TOKENS;
use crate::reproduction::Reproduction;

/// Runs the comparisons of HybridServe (KAIST) in simulation and prints them beside the paper's figures: OPT-6.7B to 66B, offloaded from a 24 GB
/// GPU, with a hybrid cache against keys and values only, activations only, token recomputation and no mini-batches.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Requests of a batch, the same in Figures 12 and 15; the paper has 128.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    requests: u32,
    /// Tokens of each answer; the paper has 128.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=512))]
    answer: u32,
    /// Tokens of the prompts, each a group of bars. The last is the ablation's.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [128, 256, 512, 1_024, 1_920], value_parser = clap::value_parser!(u32).range(1..=2_046))]
    prompts: Vec<u32>,
    /// Directory of the plots.
    #[arg(long, value_name = "DIRECTORY", default_value = "reproduction")]
    pub out: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs everything.
///
/// # Errors
/// When prompt and answer exceed the models' context, or a picture cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Reproduction> {
    let hardware = stated::rtx_4090();
    let loads: Vec<Load> = args.prompts.iter().map(|prompt| load(args, *prompt)).collect();
    let last = args.prompts.last().copied().unwrap_or(1_920);
    let mut found = Reproduction {
        system: "hybridcache",
        assumptions: assumptions(args),
        ..Reproduction::default()
    };
    let runs = throughput::run(&hardware, &loads, args.json)?;
    throughput::compare(&hardware, &loads, &runs, &mut found)?;
    let ablation = policy::ablation(&hardware, &load(args, last))?;
    policy::compare(&hardware, &ablation, &mut found);
    let pairs = traffic::run(&hardware, &loads)?;
    traffic::compare(&pairs, &mut found);
    let [_, _, opt_30b, _] = stated::opt_models();
    let lines = policy::lines(&hardware, &opt_30b)?;
    policy::compare_lines(&lines, &mut found);
    let motivation = motivation::compare(&hardware, args.answer as usize, &mut found)?;
    let drawn = pictures::Drawn {
        motivation: &motivation,
        lines: &lines,
        runs: &runs,
        pairs: &pairs,
        ablation: &ablation,
    };
    pictures::draw(&drawn, &args.out, &mut found)?;
    Ok(found)
}

fn load(args: &Args, prompt: u32) -> Load {
    Load {
        requests: args.requests as usize,
        prompt: prompt as usize,
        answer: args.answer as usize,
        block_tokens: BLOCK_TOKENS,
    }
}

fn assumptions(args: &Args) -> Vec<String> {
    let machine = stated::assumptions(&stated::rtx_4090());
    let mut all: Vec<String> = machine
        .iter()
        .map(|assumption| format!("{}: {}", assumption.what, assumption.why))
        .collect();
    all.extend([
        format!(
            "{} requests at a time, prompts of {} tokens, answers of {}: the figures' axes are not in the paper's text, but for 1920 in Figure 15, which \
             with 128 more is OPT's whole context",
            args.requests,
            args.prompts.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            args.answer
        ),
        format!("blocks of {BLOCK_TOKENS} tokens, vLLM's default; the link carries whole blocks"),
        "every mode has the setup that serves it best: of several sizes of mini-batches and numbers of resident layers the one whose mean step is \
         simulated to be shortest"
            .to_owned(),
        "KV only also keeps blocks on the device where that is better than weights; no mini-batches keeps all blocks there, streams all weights and \
         has as many requests at a time as fit"
            .to_owned(),
        "throughput is tokens generated over the time from the first prompt to the last token (§5.2); means are geometric, over models and prompts"
            .to_owned(),
        "norms, biases and positions are left out; embeddings and head stay on the device".to_owned(),
    ]);
    all
}
