//! `kaskade result`: fetches the result of a durable request.

use std::time::Duration;

use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::serving::{self, Client};

use super::infer;
use crate::app_address::TargetArgs;
use crate::args::Broker;

/// Prints the result of a durable request. The app keeps results for the time that `[durable]` in its file sets.
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The id that `kaskade submit` printed, or was given.
    #[arg(value_name = "ID")]
    id: String,
    /// Wait at most this long if there is no result yet.
    #[arg(long, value_name = "TIME", visible_alias = "timeout")]
    wait: Option<HumanDuration>,
    /// Print the reply as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Fetches and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let timeout = args.wait.map_or(Duration::ZERO, HumanDuration::duration);
    let reply = serving::runtime()?.block_on(async {
        let client = Client::connect_with(target.client("result"), target.name()).await?;
        let reply = client.wait(&args.id, timeout).await;
        client.close().await;
        anyhow::Ok(reply?)
    })?;
    infer::report_on(&reply, None, args.json)
}
