//! `kaskade plan request`: requests a plan from the planner of a running app.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::{Request, RequestErrorKind};
use kaskade_actors::bus::Bus;
use kaskade_actors::wire::{Message as _, PlanReport, PlanRequest};
use kaskade_actors::{Code, Fault, subjects};
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::load::trace_args::positive;
use kaskade_app::serving;

use crate::app_address::{Target, TargetArgs};
use crate::args::Broker;
use crate::output;

/// Time beyond the planner's timeout that its report may take.
const MARGIN: Duration = Duration::from_secs(5);

/// Default of `planner.timeout`, for an app whose file is not given.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// Requests a plan from the planner of a running app (`[planner]` in its file), and prints the outcome. The app continues to serve,
/// with the new plan or with the one it has.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The highest load to plan for, requests per second [default: that of the running plan].
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// How long to wait for the planner's report [default: 5s more than `planner.timeout` in the app's file, otherwise 65s].
    #[arg(long, value_name = "TIME", visible_alias = "timeout")]
    wait: Option<HumanDuration>,
    /// Reason, for the planner's log.
    #[arg(long, value_name = "TEXT", default_value = "requested on the command line")]
    reason: String,
    #[command(flatten)]
    broker: Broker,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Sends the request and prints the report; fails unless the running plan is then the planner's.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let request = PlanRequest {
        reason: args.reason.clone(),
        peak_qps: args.rate,
        ..PlanRequest::default()
    };
    let planner = target.app().and_then(|app| app.planner.as_ref());
    let timeout = planner.map_or(DEFAULT_TIMEOUT, |planner| planner.timeout.duration());
    let wait = args.wait.map_or(timeout + MARGIN, HumanDuration::duration);
    let report = serving::runtime()?.block_on(ask(&target, &request, wait))?;
    let is_planned = matches!(report, PlanReport::Adopted { .. } | PlanReport::Unchanged { .. });
    if args.json {
        output::print_json(&report)?;
    } else if is_planned {
        output::print(&report.to_string())?;
    }
    ensure!(is_planned, "{report}");
    Ok(())
}

async fn ask(target: &Target, request: &PlanRequest, wait: Duration) -> anyhow::Result<PlanReport> {
    let subject = subjects::App::new(target.name())?.replan();
    let bus = Bus::connect(target.client("replan")).await?;
    let refused = bus.connection().refused(&subject);
    let payload = Request::new().payload(request.encode()?).timeout(Some(wait));
    let reply = tokio::select! {
        biased;
        reply = bus.client().send_request(subject.clone(), payload) => reply,
        // A server that does not permit the question sends no reply.
        _ = refused => return Err(not_permitted(&subject).into()),
    };
    bus.close().await;
    match reply {
        Ok(reply) => Ok(PlanReport::decode(&reply.payload)?),
        Err(error) => match error.kind() {
            RequestErrorKind::NoResponders => Err(no_planner(target.name(), &subject).into()),
            RequestErrorKind::TimedOut => Err(no_report(wait).into()),
            _ => Err(error).context("the request did not reach the planner"),
        },
    }
}

/// The fault of an app without a planner that runs: it may start again.
fn no_planner(app: &str, subject: &str) -> Fault {
    let message = format!(
        "no planner of app `{app}` listens on `{subject}`: serve the app with a `[planner]` in its file"
    );
    Fault::new(Code::Unavailable, message)
}

/// The fault of a planner that has not answered in time.
fn no_report(wait: Duration) -> Fault {
    let wait = humantime::format_duration(wait);
    Fault::new(Code::NoReply, format!("the planner sent no report within {wait}"))
}

/// The fault of a user that may not send requests to the planner.
fn not_permitted(subject: &str) -> Fault {
    let message = format!(
        "this user may not publish to `{subject}`; connect as the planner (`--nkey auth/planner/nkey`)"
    );
    Fault::new(Code::NotPermitted, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    /// Both were final errors without a code.
    #[test]
    fn a_planner_that_does_not_answer_is_a_temporary_failure() {
        for (fault, code) in [
            (no_planner("digits", "kaskade.digits.replan"), "KSK0007"),
            (no_report(Duration::from_secs(65)), "KSK0022"),
        ] {
            let failure = Failure::from_error(&fault.into());
            assert_eq!(failure.exit(), 75, "{failure:?}");
            assert!(failure.message().starts_with(code), "{failure:?}");
        }
    }
}
