//! `kaskade serve`: serves an app until it is stopped.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ops::probes::Probes;
use kaskade_actors::shutdown::{self, Shutdown};
use kaskade_app::config::data::DataSet;
use kaskade_app::config::scalar::Address;
use kaskade_app::config::{App, Task};
use kaskade_app::family::Family;
use kaskade_app::planning::initial;
use kaskade_app::serving::service::worker_of;
use kaskade_app::serving::{DEFAULT_ADDRESS, Role, Service, gateway, telemetry};
use kaskade_gateway::Gateway;
use kaskade_policy::plan::Plan;
use tokio::runtime::{Builder, Runtime};

use crate::args::Broker;
use crate::failure::Interrupted;
use crate::failure::{INTERRUPTED, Usage};
use crate::stderr::say;

/// Time after the second signal within which the process ends by itself; then it is ended.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves an app: its ingress, its replicas, its planner, or all of them. On SIGTERM, SIGHUP or Ctrl-C it accepts no more requests,
/// answers those in flight, and ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// A plan file to write to the plan store if it is empty, instead of the plan that the app names. A stored plan stays;
    /// `kaskade plan apply` replaces it.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The part of the app that this process serves.
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// Which of the app's workers this process is, if it has several.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Wait for a plan in the plan store if it is empty, instead of writing the app's.
    #[arg(long, conflicts_with = "plan")]
    stored_plan: bool,
    /// I/O threads (shards). Each has its own broker connection and, where this process has an ingress, its own ingress
    /// [default: `shards` of the app's file, or else one per four cores, at most 8].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
    shards: Option<u32>,
    /// Address for HTTP: probes and metrics (`/live`, `/ready`, `/metrics`), and with the roles `all` and `gateway` the
    /// gateway: Open Inference Protocol (`/v2`), OpenAI's API (`/v1`) and the dashboard (`/`).
    #[arg(long, value_name = "ADDRESS", env = "KASKADE_HTTP")]
    http: Option<Address>,
    /// Loopback address on which the embedded broker listens, without a nats-server; port 0 selects a free port
    /// [default: 127.0.0.1:4222].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    #[command(flatten)]
    broker: Broker,
}

/// Checks that an app configures a planner: `[pipeline.planner]` if it is a pipeline, otherwise `[planner]`.
fn check_planner(app: &App, path: &Path) -> anyhow::Result<()> {
    let (table, has_planner) = match &app.pipeline {
        Some(pipeline) => ("[pipeline.planner]", pipeline.planner.is_some()),
        None => ("[planner]", app.planner.is_some()),
    };
    ensure!(
        has_planner,
        "{}: has no `{table}` to run; `kaskade schema app` prints what that may hold",
        path.display()
    );
    Ok(())
}

/// Starts, serves, drains.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut connection = match args.listen {
        Some(listen) => args.broker.embedded(listen.socket())?,
        None => args.broker.connection()?,
    };
    let app = App::load_to_serve(&args.app)?;
    ensure!(
        args.role == Role::All || connection.url(&app).is_some(),
        Usage::new(
            "a process that serves a part of an app needs a nats-server that the other processes reach: give `--nats URL`"
        )
    );
    if connection.url(&app).is_none() {
        connection.listen.get_or_insert(DEFAULT_ADDRESS);
    }
    let plan = match &args.plan {
        _ if args.stored_plan => None,
        Some(path) => Some(initial::read(&app, path)?),
        None => Some(initial::of(&app)?),
    };
    if args.role == Role::Planner {
        check_planner(&app, &args.app)?;
    }
    let worker = worker_of(&app, args.role, args.worker.clone())?;
    // Before anything listens.
    let family = Family::from_app(&app);
    family.check_classes()?;
    family.check_tokenizers(&app.data)?;
    let bus = connection.serve(&app, "serve")?;
    let front = front(&app, args)?;
    // Dropped at the end of this function: what waits is sent then.
    let _exporter = telemetry::start(&app)?;
    let mut stop = signals(app.ingress.drain_timeout.duration())?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if args.role == Role::Gateway {
        return gateway_alone(&app, front, bus, runtime, &mut stop);
    }
    let service = start(&app, args, family, plan, bus.clone())?;
    match &front {
        Some(Front::Probes(probes)) => probes.watch(service.node().health().clone()),
        Some(Front::Gateway(gateway)) => {
            gateway.watch(service.node().health().clone());
            let options = gateway::options(&app).with_local_ingress(service.node().local_intake());
            gateway.serve(options, bus)?;
        }
        None => {}
    }
    announce(&app, &args.app, args.role, &worker, &service);
    until_stopped(runtime, &mut stop, service, front)
}

/// Returns the shutdown that signals start. A thread of its own awaits them, so that they never wait for an actor; it ends the process
/// if the second one does not.
fn signals(grace: Duration) -> anyhow::Result<Shutdown> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let stop = runtime.block_on(async { shutdown::on_signals(grace) })?;
    let mut second = stop.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(second.grace_ended());
        thread::sleep(END_TIMEOUT);
        process::exit(INTERRUPTED.into());
    })?;
    Ok(stop)
}

/// Starts what the role has, with models that are checked; without a plan, it waits for a stored one.
fn start(
    app: &App,
    args: &Args,
    family: Family,
    plan: Option<Plan>,
    bus: BusConfig,
) -> anyhow::Result<Service> {
    let service = Service::builder(app).checked_family(family);
    let mut service = service.role(args.role).bus(bus);
    if let Some(worker) = &args.worker {
        service = service.worker(worker);
    }
    if let Some(shards) = args.shards.and_then(NonZeroU32::new) {
        service = service.shards(shards);
    }
    let service = match plan {
        Some(plan) => service.plan(plan),
        None => service.stored_plan(),
    };
    Ok(service.start()?)
}

/// Says what is served and where, and how to send a request.
fn announce(app: &App, file: &Path, role: Role, worker: &str, service: &Service) {
    say(&format!(
        "serving `{}` on {}, {}",
        app.name,
        service.url(),
        running(service)
    ));
    let newest = service.node().plans().newest();
    if let Some(warning) = newest
        .filter(|_| role.runs_worker())
        .and_then(|version| idle(&version.plan, worker))
    {
        say(&warning);
    }
    if matches!(role, Role::All | Role::Ingress) {
        say(&request_command(app, file, service.url()));
    }
}

/// Serves until a signal or a failure, then drains; a second signal ends that.
fn until_stopped(
    runtime: Runtime,
    stop: &mut Shutdown,
    service: Service,
    front: Option<Front>,
) -> anyhow::Result<()> {
    let failed = runtime.block_on(async {
        tokio::select! {
            _ = stop.wait() => None,
            failed = service.failure() => Some(failed),
        }
    });
    let drained = drain(runtime, stop, move || {
        if let Some(Front::Gateway(gateway)) = front {
            gateway.stop();
        }
        service.stop();
    });
    failed.map_or(drained, |error| Err(error.into()))
}

/// Returns which plan the service runs.
fn running(service: &Service) -> String {
    match service.node().plans().current() {
        Some((version, _)) => format!("plan {} (epoch {})", version.plan.made_by, version.epoch),
        None => "waiting for a plan in the plan store".to_owned(),
    }
}

/// Returns a warning if the plan places no replica on this worker, but some on others; `worker` is empty in a process without one.
fn idle(plan: &Plan, worker: &str) -> Option<String> {
    let named: BTreeSet<&str> = plan
        .placement
        .iter()
        .map(|replica| replica.worker.as_str())
        .collect();
    if worker.is_empty() || named.is_empty() || named.contains(worker) {
        return None;
    }
    let named: Vec<&str> = named.into_iter().collect();
    Some(format!(
        "warning: the plan places nothing on worker `{worker}`, only on `{}`: apply a plan for this worker (`kaskade plan apply`), or start \
         the process as one of those (`--worker`)",
        named.join("`, `")
    ))
}

/// Whether a checkpoint has a tokenizer: a network without one takes tensors alone.
fn reads_text(dir: &Path) -> bool {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.any(|name| {
        name.starts_with("tokenizer")
            || name.starts_with("vocab")
            || [".model", ".gguf", ".spm"].iter().any(|end| name.ends_with(end))
    })
}

/// Returns the command that sends a request to the app.
fn request_command(app: &App, file: &Path, url: &str) -> String {
    let sets = [&app.data.test, &app.data.validation];
    let tensors = sets
        .into_iter()
        .flatten()
        .any(|set| matches!(set, DataSet::Idx(_) | DataSet::Scenes(_)));
    let dir = app.variants.iter().find_map(|variant| variant.dir.as_deref());
    let has = |name: &str| dir.is_some_and(|dir| dir.join(name).is_file());
    // A model of images and texts has both files, and takes a text alone.
    let images = has("preprocessor_config.json") && !has("tokenizer.json");
    let by_index = sets
        .into_iter()
        .flatten()
        .next()
        .is_some_and(|set| matches!(set, DataSet::Idx(_)));
    if by_index {
        return format!(
            "send a request: kaskade infer --app {} --index 0 --nats {url}",
            file.display()
        );
    }
    let inputs = if tensors || dir.is_some_and(|dir| !images && !reads_text(dir)) {
        "--tensors FILE"
    } else if images {
        "--image photo.jpg"
    } else if app.task == Task::Ranking {
        "--query \"some text\" --passage \"one text\" --passage \"another text\""
    } else if app.task == Task::QuestionAnswering {
        "--text \"a question\" --text-pair \"the text that answers it\""
    } else if app.task == Task::Reranking {
        "--text \"a query\" --text-pair \"a text to score\""
    } else {
        "--text \"some text\""
    };
    format!("send a request: kaskade infer {} {inputs} --nats {url}", app.name)
}

/// The listener for HTTP.
enum Front {
    /// Probes and metrics.
    Probes(Probes),
    /// The gateway, which answers probes too.
    Gateway(Gateway),
}

/// Starts the listener, if one is configured. It starts before the models are loaded, and reports that they are not.
fn front(app: &App, args: &Args) -> anyhow::Result<Option<Front>> {
    let Some(address) = args.http.or(app.http.map(|http| http.address)) else {
        ensure!(
            args.role != Role::Gateway,
            Usage::new("a gateway needs an address: give `--http ADDRESS`, such as `--http 127.0.0.1:8080`")
        );
        return Ok(None);
    };
    let has_gateway = args.role.has_gateway();
    let front = if has_gateway {
        Front::Gateway(gateway::listen(app, address.socket())?)
    } else {
        Front::Probes(Probes::listen(address.socket())?)
    };
    let bound = match &front {
        Front::Gateway(gateway) => gateway.address(),
        Front::Probes(probes) => probes.address(),
    };
    say(&format!("probes and metrics at http://{bound}"));
    let scheme = if app.gateway.tls.is_some() {
        "https"
    } else {
        "http"
    };
    if has_gateway {
        say(&format!(
            "gateway at {scheme}://{bound}: dashboard `/`, Open Inference Protocol `/v2` and gRPC, OpenAI's API `/v1`"
        ));
        if app.gateway.keys.is_empty() && !bound.ip().is_loopback() {
            say("the gateway needs no key, and other hosts reach it; add `[gateway.keys]` to the app's file");
        }
    }
    Ok(Some(front))
}

/// Drains what `end` stops; the second signal ends the process without waiting for it.
///
/// # Errors
/// When the second signal came first.
fn drain(runtime: Runtime, stop: &mut Shutdown, end: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    say("draining");
    let (drained, done) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        end();
        drop(drained);
    });
    let is_drained = runtime.block_on(async {
        tokio::select! {
            () = stop.grace_ended() => false,
            _ = tokio::task::spawn_blocking(move || done.recv()) => true,
        }
    });
    // Does not wait for the blocking task if the second signal came first.
    runtime.shutdown_background();
    ensure!(
        is_drained,
        Interrupted::new("a second signal ended the process before it had answered all accepted requests")
    );
    say("stopped");
    Ok(())
}

/// Serves the gateway until a signal, then drains it.
fn gateway_alone(
    app: &App,
    front: Option<Front>,
    bus: BusConfig,
    runtime: Runtime,
    stop: &mut Shutdown,
) -> anyhow::Result<()> {
    let Some(Front::Gateway(gateway)) = front else {
        return Ok(());
    };
    let url = bus.url.clone().unwrap_or_default();
    gateway.serve(gateway::options(app), bus)?;
    say(&format!("serving `{}` on {url} over HTTP", app.name));
    runtime.block_on(stop.wait());
    drain(runtime, stop, move || gateway.stop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_the_plan_leaves_out_is_told() {
        let plan = Plan::cascade("a").stage("s", "one").worker("w1").build().unwrap();
        assert_eq!(idle(&plan, "w1"), None);
        assert_eq!(idle(&plan, ""), None);
        let warning = idle(&plan, "local").unwrap();
        assert!(
            warning.contains("worker `local`") && warning.contains("`w1`"),
            "{warning}"
        );
    }

    /// The planner of a pipeline was refused.
    #[test]
    fn the_planner_role_runs_the_planner_of_a_pipeline() {
        let variants = "[[variants]]\nname = \"one\"\ndir = \"one\"\n";
        let pipeline = "[pipeline]\nprofile = \"pipeline.json\"\n[[pipeline.tasks]]\nname = \"find\"\nvariants = [\"one\"]\n";
        let checked = |tables: &str| {
            let app = format!("name = \"a\"\n{variants}{tables}");
            check_planner(&App::parse(&app).unwrap(), Path::new("a.toml")).map_err(|error| error.to_string())
        };
        checked(&format!("{pipeline}[pipeline.planner]\n")).unwrap();
        checked("[planner]\nprofile = \"profile.json\"\n").unwrap();
        let error = checked(pipeline).unwrap_err();
        assert!(error.contains("`[pipeline.planner]`"), "{error}");
        let error = checked("").unwrap_err();
        assert!(error.contains("`[planner]`"), "{error}");
    }

    #[test]
    fn the_command_sends_what_the_models_take() {
        let dir = tempfile::tempdir().unwrap();
        let command = |task: &str| {
            let variant = format!("[[variants]]\nname = \"one\"\ndir = {:?}\n", dir.path());
            let app = App::parse(&format!("name = \"a\"\ntask = \"{task}\"\n{variant}")).unwrap();
            request_command(&app, Path::new("a.toml"), "nats://127.0.0.1:4222")
        };
        assert!(command("classification").contains("infer a --tensors FILE"));
        let sets = "name = \"a\"\n[[variants]]\nname = \"one\"\ndir = \"one\"\n[data.test.idx]\nimages = \"i\"\nlabels = \"l\"\n";
        let by_set = request_command(&App::parse(sets).unwrap(), Path::new("a.toml"), "nats://x:4222");
        assert_eq!(
            by_set,
            "send a request: kaskade infer --app a.toml --index 0 --nats nats://x:4222"
        );
        std::fs::write(dir.path().join("vocab.txt"), "").unwrap();
        assert!(command("classification").contains("infer a --text"));
        assert!(command("question_answering").contains("--text-pair"));
        assert!(command("reranking").contains("--text-pair \"a text to score\""));
        assert!(command("ranking").contains("--query"));
        std::fs::write(dir.path().join("preprocessor_config.json"), "{}").unwrap();
        assert!(command("classification").contains("infer a --image"));
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        assert!(command("classification").contains("infer a --text"));
    }
}
