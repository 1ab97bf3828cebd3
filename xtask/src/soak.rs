//! `cargo xtask soak`: a steady load for a time, and what the processes hold at its beginning and its end.

use humantime::Duration as Span;

use crate::faults::soaking;

/// How long, and how much.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value = "10m")]
    duration: Span,
    /// Requests a second, core and durable ones in turn.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
}

/// Soaks; fails if anything grew.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(soaking::soak(args.duration.into(), args.rate))
}
