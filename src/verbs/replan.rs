//! `kaskade replan`: asks the planner of an app that is being served for another plan.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kaskade_actors::bus::Bus;
use kaskade_actors::subjects;
use kaskade_actors::wire::{Message as _, PlanReport, PlanRequest};
use kaskade_app::config::App;
use kaskade_app::serving;

use crate::args::{Broker, positive};
use crate::output;

/// What a planner may need beyond its own limit to say how it ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the planner of a served app (`[planner]` in its file) for another plan, and says how planning ended. Whatever it ends
/// in, the app goes on serving: by the new plan, or by the one it had.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// The highest load to plan for, requests per second; that of the running plan where absent.
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    qps: Option<f64>,
    /// Why, for the service's log.
    #[arg(long, value_name = "TEXT", default_value = "asked on the command line")]
    reason: String,
    #[command(flatten)]
    broker: Broker,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and reports; fails unless the plan that runs afterwards is the planner's.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    ensure!(
        args.broker.connection().url(&app).is_some(),
        "say where the app is served: give `--nats URL`, as `kaskade serve` printed it"
    );
    let request = PlanRequest {
        reason: args.reason.clone(),
        peak_qps: args.qps,
        ..PlanRequest::default()
    };
    let limit = app
        .planner
        .as_ref()
        .map_or(PATIENCE, |rule| rule.limit.duration() + PATIENCE);
    let report = serving::runtime()?.block_on(ask(&app, args, &request, limit))?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&as_text(&report))?;
    }
    match report {
        PlanReport::Adopted { .. } | PlanReport::Unchanged { .. } => Ok(()),
        _ => bail!("the running plan goes on serving"),
    }
}

async fn ask(app: &App, args: &Args, request: &PlanRequest, limit: Duration) -> anyhow::Result<PlanReport> {
    let subject = subjects::App::new(app.name.as_str())?.replan();
    let bus = Bus::connect(args.broker.connection().bus(app, "replan")).await?;
    let asked = bus.client().request(subject.clone(), request.encode()?);
    let reply = tokio::time::timeout(limit, asked)
        .await
        .with_context(|| format!("no report within {} s", limit.as_secs()))?
        .with_context(|| {
            format!("nobody plans on `{subject}`: serve the app with a `[planner]` in its file")
        })?;
    bus.close().await;
    Ok(PlanReport::decode(&reply.payload)?)
}

fn as_text(report: &PlanReport) -> String {
    match report {
        PlanReport::Adopted { epoch } => format!("a new plan runs, as epoch {epoch}"),
        PlanReport::Unchanged { epoch } => {
            format!("the plan that runs, epoch {epoch}, is still the one to run")
        }
        PlanReport::Refused { reason } => format!("no new plan: {reason}"),
        PlanReport::Crashed => "no new plan: the planner crashed; its log says where".to_owned(),
        PlanReport::TimedOut { limit_ms } => {
            format!("no new plan: not done within {limit_ms} ms; raise `planner.limit` or plan fewer ranges")
        }
        PlanReport::Stale { newest } => format!(
            "no new plan: somebody else's was written first{}",
            newest.map_or_else(String::new, |epoch| format!(", epoch {epoch}"))
        ),
        PlanReport::Busy => "no new plan: the planner is at work already; ask again".to_owned(),
    }
}
