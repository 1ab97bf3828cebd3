//! A deployment of real processes over a real nats-server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kaskade::actors::bus::{Bus, BusConfig};
use kaskade::policy::plan::Plan;
use kaskade_testkit::{NatsOptions, NatsServer};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::node::{APP, plan};

/// How long a process may take to serve, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A nats-server and a folder for what its processes read.
pub(super) struct Rig {
    pub(super) nats: NatsServer,
    folder: TempDir,
}

/// A process to start.
#[derive(Debug, Clone, Default)]
pub(super) struct Start<'a> {
    /// Its worker's name.
    pub(super) worker: Option<&'a str>,
    /// Whether it takes requests.
    pub(super) ingress: bool,
    /// Where it connects, if not to the server itself.
    pub(super) through: Option<String>,
    /// Further flags.
    pub(super) flags: Vec<String>,
    /// Variables of its environment.
    pub(super) variables: Vec<(String, String)>,
}

impl<'a> Start<'a> {
    /// A worker of that name.
    pub(super) fn worker(name: &'a str) -> Self {
        Self {
            worker: Some(name),
            ..Self::default()
        }
    }

    /// The doors.
    pub(super) fn ingress() -> Self {
        Self {
            ingress: true,
            ..Self::default()
        }
    }

    /// A planner that takes so long for a plan.
    pub(super) fn planner(takes: &str) -> Self {
        Self::default().flag("--planner").flag(takes)
    }

    /// The same with another flag.
    pub(super) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// The same, connected elsewhere.
    pub(super) fn through(self, url: String) -> Self {
        Self {
            through: Some(url),
            ..self
        }
    }

    /// The same with a variable.
    pub(super) fn variable(mut self, name: &str, value: &Path) -> Self {
        self.variables
            .push((name.to_owned(), value.display().to_string()));
        self
    }
}

impl Rig {
    /// A server, and the plan of a cascade on two workers that each host both models.
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::with(NatsOptions::jetstream(), &pair())
    }

    /// The same with another server or plan.
    pub(super) fn with(options: NatsOptions, plan: &Plan) -> anyhow::Result<Self> {
        let rig = Self {
            nats: NatsServer::start(options),
            folder: tempfile::tempdir()?,
        };
        std::fs::write(rig.plan_file(), plan.to_json()?)?;
        Ok(rig)
    }

    /// A file beside its plan.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plan_file(&self) -> PathBuf {
        self.file("plan.json")
    }

    /// Starts a process, and returns once it serves.
    pub(super) fn start(&self, start: &Start<'_>) -> anyhow::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").arg("--plan").arg(self.plan_file());
        command
            .arg("--nats")
            .arg(start.through.clone().unwrap_or_else(|| self.nats.url()));
        command.args(start.worker.into_iter().flat_map(|name| ["--worker", name]));
        command.args(start.ingress.then_some("--ingress"));
        command.args(&start.flags).envs(start.variables.iter().cloned());
        let log = self.file(&format!("{}.log", start.worker.unwrap_or("other")));
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn()?;
        let out = child.stdout.take().context("it has no output")?;
        let process = Process(child);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        ensure!(
            line.trim() == "serving",
            "a process did not start: {}",
            self.logs()
        );
        Ok(process)
    }

    /// The doors and two workers.
    pub(super) fn start_all(&self) -> anyhow::Result<(Process, Process, Process)> {
        let first = self.start(&Start::worker("w1"))?;
        let second = self.start(&Start::worker("w2"))?;
        let doors = self.start(&Start::ingress())?;
        Ok((doors, first, second))
    }

    /// The last of what its processes have said.
    fn logs(&self) -> String {
        let read = ["w1", "w2", "w3", "other"].map(|name| {
            let log = std::fs::read_to_string(self.file(&format!("{name}.log")));
            let log = log.unwrap_or_default();
            log.lines().last().unwrap_or_default().to_owned()
        });
        read.join(" | ")
    }

    /// A connection of one's own.
    pub(super) async fn bus(&self) -> anyhow::Result<Bus> {
        Ok(Bus::connect(BusConfig::new(APP).url(self.nats.url())).await?)
    }
}

/// A cascade on two workers that each host both models.
pub(super) fn pair() -> Plan {
    plan(&[("w1", &["small", "large"]), ("w2", &["small", "large"])])
}

/// A process of the app, killed when dropped.
pub(super) struct Process(Child);

impl Process {
    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Stands it still.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Whether it has ended, and how.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits until it has ended.
    pub(super) async fn end(&mut self) -> anyhow::Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            ensure!(begun.elapsed() < PATIENCE, "a process did not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("no process")?, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that stands still dies of it all the same.
        self.kill();
    }
}
