//! `kaskade submit`: asks an app for an answer that survives whatever is lost meanwhile.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::serving::{self, Client};
use serde_json::json;

use super::infer::{self, Asked};
use crate::args::Broker;
use crate::output;

/// Submits one request to an app that keeps requests (`[durable]`), and prints the id that its result is fetched by with
/// `kaskade result`. Once this has succeeded the request is run, whichever process is lost; submitted again under the same id it is
/// still answered once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    #[command(flatten)]
    asked: Asked,
    /// The request's id; one is made where absent.
    #[arg(long)]
    id: Option<String>,
    /// Time budget of each attempt; the app's own where absent.
    #[arg(long, value_name = "TIME")]
    budget: Option<Span>,
    /// Wait for the result so long, and print it.
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Submits, and prints the id or the result.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    let connection = args.broker.connection();
    connection.url(&app).context("durable requests are kept by a nats-server; name it with `--nats URL` (or NATS_URL, or `nats.url` in the app)")?;
    let (inputs, label) = args.asked.read(&app)?;
    let budget = args.budget.unwrap_or(app.ingress.default_budget).duration();
    let (accepted, reply) = serving::runtime()?.block_on(async {
        let client = Client::open(app.name.as_str(), connection.bus(&app, "submit"), budget).await?;
        let accepted = client.submit(inputs, args.id.as_deref()).await?;
        let reply = match args.wait {
            Some(patience) => Some(client.wait_for(&accepted.id, patience.duration()).await?),
            None => None,
        };
        client.leave().await;
        anyhow::Ok((accepted, reply))
    })?;
    match reply {
        Some(reply) => infer::report_on(&reply, label.as_ref(), args.json),
        None if args.json => output::print_json(&json!({"id": accepted.id, "duplicate": accepted.duplicate})),
        None => output::print(&accepted.id),
    }
}
