//! `kaskade serve`: serves an app until it is told to stop.

use std::path::PathBuf;

use anyhow::ensure;
use kaskade_actors::ops::probes::Probes;
use kaskade_actors::shutdown;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Address;
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_app::serving::service::worker_of;
use kaskade_app::serving::{self, Service};

use crate::args::{Broker, Role};

/// Serves an app: its doors, its replicas, its planner, or all of them, until SIGTERM or Ctrl-C; then what is in flight is answered first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// A plan file, instead of the one that the app names.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// What this process takes on.
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// Which of the app's workers this process is, where it has several.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Serve the plan in the plan store rather than the app's.
    #[arg(long, conflicts_with = "plan")]
    stored_plan: bool,
    /// Answer probes and tell metrics here: `/live`, `/ready` and `/metrics`.
    #[arg(long, value_name = "ADDRESS", env = "KASKADE_HTTP")]
    http: Option<Address>,
    #[command(flatten)]
    broker: Broker,
}

/// Starts, serves, drains.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    ensure!(
        args.role == Role::All || args.broker.connection().url(&app).is_some(),
        "a process that is not the whole app needs a broker that the others reach too: give `--nats URL`"
    );
    let plan = match &args.plan {
        _ if args.stored_plan => None,
        // A planner serves nothing: the app's plan is for the store, and only where that has none.
        None if args.role == Role::Planner => None,
        Some(path) => Some(initial::read(&app, path)?),
        None => Some(initial::of(&app)?),
    };
    ensure!(
        args.role != Role::Planner || app.planner.is_some(),
        "{}: has no `[planner]` to run; `kaskade schema app` prints what that may hold",
        args.app.display()
    );
    worker_of(&app, args.role.into(), args.worker.clone())?;
    let made_by = plan
        .as_ref()
        .map_or_else(|| "of the plan store".to_owned(), |plan| plan.made_by.clone());
    let connection = args.broker.connection();
    let bus = connection.bus(&app, "serve");
    let probes = probes(&app, args.http)?;
    // A runtime of its own waits for signals: the actors' thread has better things to do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let grace = app.ingress.drain.duration();
    let mut stop = runtime.block_on(async { shutdown::on_signals(grace) })?;
    if args.role == Role::Planner && args.plan.is_none() && !args.stored_plan {
        runtime.block_on(serving::first_plan(&app, &initial::of(&app)?, bus.clone()))?;
    }
    let mut service = Service::builder(&app).role(args.role.into()).bus(bus);
    if let Some(worker) = &args.worker {
        service = service.worker(worker);
    }
    let service = match plan {
        Some(plan) => service.plan(plan),
        None => service.stored_plan(),
    };
    let service = service.start()?;
    if let Some(probes) = &probes {
        probes.watch(service.node().health().clone());
    }
    say(&format!(
        "serving `{}` on {}, plan {made_by}",
        app.name,
        service.url()
    ));
    runtime.block_on(stop.wait());
    say("draining");
    // The second signal ends the process without waiting for the rest.
    let (drained, done) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        service.stop();
        drop(drained);
    });
    runtime.block_on(async {
        tokio::select! {
            () = stop.hurry() => {}
            _ = tokio::task::spawn_blocking(move || done.recv()) => {}
        }
    });
    // A blocking wait that was overtaken is not waited for.
    runtime.shutdown_background();
    say("stopped");
    Ok(())
}

/// The listener of the probes, if one is wanted. It is there before the models are, and says that they are not.
fn probes(app: &App, address: Option<Address>) -> anyhow::Result<Option<Probes>> {
    let Some(address) = address.or(app.http.map(|http| http.address)) else {
        return Ok(None);
    };
    let probes = Probes::listen(address.socket())?;
    say(&format!("probes and metrics at http://{}", probes.address()));
    Ok(Some(probes))
}
