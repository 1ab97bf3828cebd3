//! `kaskade result`: fetches the result of a durable request.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::serving::{self, Client};

use super::infer;
use crate::args::Broker;

/// Fetches the result of a request that was submitted. It is kept for the time that the app's `durable.results` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// The id that `kaskade submit` printed, or was given.
    #[arg(long)]
    id: String,
    /// Wait so long, if it is not there yet.
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Print the reply as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Fetches and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    let connection = args.broker.connection();
    connection.url(&app).context(
        "results are kept by a nats-server; name it with `--nats URL` (or NATS_URL, or `nats.url` in the app)",
    )?;
    let patience = args.wait.map_or(Duration::ZERO, Span::duration);
    let reply = serving::runtime()?.block_on(async {
        let bus = connection.bus(&app, "result");
        let client = Client::open(app.name.as_str(), bus, Duration::ZERO).await?;
        let reply = client.wait_for(&args.id, patience).await;
        client.leave().await;
        anyhow::Ok(reply?)
    })?;
    infer::report_on(&reply, None, args.json)
}
