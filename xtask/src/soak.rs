//! `cargo xtask soak`: a steady load, by default half the capacity; memory and other resources must not grow.

use humantime::Duration as Span;

use crate::faults::soaking::{self, Steady};

/// Duration and load of a soak.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration of the load.
    #[arg(long, default_value = "10m")]
    duration: Span,
    /// Share of the capacity, which is measured first.
    #[arg(long, default_value_t = 0.5)]
    share: f64,
    /// Requests per second, core and durable ones in equal parts, instead of a share.
    #[arg(long, conflicts_with = "share")]
    rate: Option<f64>,
}

/// Runs a soak; fails if a resource grew.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let load = args.rate.map_or(Steady::Share(args.share), Steady::Rate);
    runtime.block_on(soaking::soak(args.duration.into(), load))
}
