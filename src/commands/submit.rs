//! `kaskade submit`: sends one durable request to an app.

use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::serving::{self, Client};
use serde_json::json;

use super::infer::{self, RequestArgs};
use crate::app_address::TargetArgs;
use crate::args::Broker;
use crate::output;

/// Sends one durable request to an app that accepts them (`[durable]` in its file), and prints the id with which `kaskade result`
/// fetches its result. The request is stored in JetStream and survives crashes; submitted again with the same id, it is still
/// answered once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// The request's id [default: a random one].
    #[arg(long)]
    id: Option<String>,
    /// Time budget of each attempt [default: that of the app's file, otherwise 2s].
    #[arg(long, value_name = "TIME")]
    budget: Option<HumanDuration>,
    /// Wait at most this long for the result, and print it.
    #[arg(long, value_name = "TIME", visible_alias = "timeout")]
    wait: Option<HumanDuration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Submits, and prints the id or the result.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let (inputs, label) = args.request.read(target.app())?;
    let budget = target.budget(args.budget);
    let (accepted, reply) = serving::runtime()?.block_on(async {
        let client = Client::connect_with(target.client("submit"), target.name())
            .await?
            .budget(budget);
        let accepted = client.submit(inputs, args.id.as_deref()).await?;
        let reply = match args.wait {
            Some(timeout) => Some(client.wait(&accepted.id, timeout.duration()).await?),
            None => None,
        };
        client.close().await;
        anyhow::Ok((accepted, reply))
    })?;
    match reply {
        Some(reply) => infer::report_on(&reply, label.as_ref(), args.json),
        None if args.json => output::print_json(&json!({"id": accepted.id, "duplicate": accepted.duplicate})),
        None => output::print(&accepted.id),
    }
}
