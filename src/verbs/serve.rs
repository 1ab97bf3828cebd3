//! `kaskade serve`: serves an app until it is told to stop.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use kaskade::App;
use kaskade::actors::ops::probes::Probes;
use kaskade::actors::shutdown;
use kaskade::config::scalar::Address;

use crate::appplan;
use crate::family::Family;
use crate::report::progress::say;
use crate::serving::{self, Broker, Role};

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
        args.role == Role::All || args.broker.url(&app).is_some(),
        "a process that is not the whole app needs a broker that the others reach too: give `--nats URL`"
    );
    let plan = match &args.plan {
        _ if args.stored_plan => None,
        // A planner serves nothing: the app's plan is for the store, and only where that has none.
        None if args.role == Role::Planner => None,
        Some(path) => Some(appplan::read(&app, path).with_context(|| path.display().to_string())?),
        None => Some(appplan::of(&app)?),
    };
    ensure!(
        args.role != Role::Planner || app.planner.is_some(),
        "{}: has no `[planner]` to run; `kaskade schema app` prints what that may hold",
        args.app.display()
    );
    let worker = worker(&app, args)?;
    let made_by = plan
        .as_ref()
        .map_or_else(|| "of the plan store".to_owned(), |plan| plan.made_by.clone());
    let bus = args.broker.bus(&app, "serve");
    let probes = probes(&app, args.http)?;
    // A runtime of its own waits for signals: the actors' thread has better things to do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let grace = app.ingress.drain.duration();
    let mut stop = runtime.block_on(async { shutdown::on_signals(grace) })?;
    if args.role == Role::Planner && args.plan.is_none() && !args.stored_plan {
        runtime.block_on(serving::first_plan(&app, &appplan::of(&app)?, bus.clone()))?;
    }
    let node = serving::start(&app, Family::of(&app), args.role, &worker, plan, bus)?;
    if let Some(probes) = &probes {
        probes.watch(node.health().clone());
    }
    say(&format!(
        "serving `{}` on {}, plan {made_by}",
        app.name,
        node.bus().url()
    ));
    runtime.block_on(stop.wait());
    say("draining");
    // The second signal ends the process without waiting for the rest.
    let (drained, done) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        node.stop();
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

/// The worker that this process is.
fn worker(app: &App, args: &Args) -> anyhow::Result<String> {
    let names: Vec<&str> = app.workers.iter().map(|worker| worker.name.as_str()).collect();
    match (&args.worker, names.as_slice()) {
        (Some(name), _) if names.contains(&name.as_str()) => Ok(name.clone()),
        (Some(name), _) => bail!("the app has no worker `{name}`; it has {names:?}"),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) if !args.role.works() => Ok(String::new()),
        (None, _) => {
            bail!("the app has the workers {names:?}; say with `--worker` which one this process is")
        }
    }
}
