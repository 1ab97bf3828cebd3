//! Loki's comparisons.
mod live;

use std::path::PathBuf;

use super::Reproduction;

/// Runs Loki's comparisons.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Live.
    #[arg(long, value_name = "APP")]
    live: PathBuf,
    /// Seconds.
    #[arg(long, default_value_t = 90)]
    seconds: u32,
    /// Where.
    #[arg(long, default_value = "loki")]
    out: PathBuf,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Reproduction> {
    live::run(&args.live, &args.out, args.seconds, args.seed)
}
