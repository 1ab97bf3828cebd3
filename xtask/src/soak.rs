//! `cargo xtask soak`: half the load that they carry for a time, and what the processes hold at its beginning and its end.

use humantime::Duration as Span;

use crate::faults::soaking::{self, Steady};

/// How long, and how much.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value = "10m")]
    duration: Span,
    /// Part of what the machine carries, which is measured first.
    #[arg(long, default_value_t = 0.5)]
    share: f64,
    /// Requests a second, core and durable ones in turn, in place of a share.
    #[arg(long, conflicts_with = "share")]
    rate: Option<f64>,
}

/// Soaks; fails if anything grew.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let load = args.rate.map_or(Steady::Share(args.share), Steady::Rate);
    runtime.block_on(soaking::soak(args.duration.into(), load))
}
