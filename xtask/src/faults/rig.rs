//! A deployment of real processes over a real nats-server.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade::policy::plan::Plan;
use kaskade_actors::bus::{Bus, BusConfig};
pub(super) use kaskade_testkit::Process;
use kaskade_testkit::{NatsOptions, NatsServer, http_get};
use tempfile::TempDir;

use crate::deployed_plan::{APP, plan};
use crate::node::PROBES;

/// Time that a process may take to stop on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A nats-server, and a folder for the plan and the logs of the app's processes.
pub(super) struct Rig {
    pub(super) nats: NatsServer,
    folder: TempDir,
}

/// A process to start.
#[derive(Debug, Clone, Default)]
pub(super) struct Start<'a> {
    /// The name of its worker, if it hosts one.
    pub(super) worker: Option<&'a str>,
    /// Whether it hosts an ingress.
    pub(super) ingress: bool,
    /// The URL that it connects to, if not the server's own.
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

    /// An ingress.
    pub(super) fn ingress() -> Self {
        Self {
            ingress: true,
            ..Self::default()
        }
    }

    /// A planner that takes this long to make a plan.
    pub(super) fn planner(takes: &str) -> Self {
        Self::default().flag("--planner").flag(takes)
    }

    /// Returns the process with another flag.
    pub(super) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Returns the process, connected to another URL.
    pub(super) fn through(self, url: String) -> Self {
        Self {
            through: Some(url),
            ..self
        }
    }

    /// Returns the process with a variable in its environment.
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

    /// Starts the same deployment with another server or plan.
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

    /// Starts a process and returns when it serves.
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
        let mut process = Process::start(command.stdout(Stdio::piped()).stderr(log));
        let out = process
            .child()
            .stdout
            .take()
            .context("the process has no output")?;
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        ensure!(
            line.trim() == "serving",
            "a process did not start: {}",
            self.logs()
        );
        Ok(process)
    }

    /// Starts an ingress and two workers, and returns them in this order.
    pub(super) fn start_all(&self) -> anyhow::Result<(Process, Process, Process)> {
        let first = self.start(&Start::worker("w1"))?;
        let second = self.start(&Start::worker("w2"))?;
        let ingress = self.start(&Start::ingress())?;
        Ok((ingress, first, second))
    }

    /// The last line of each process's log.
    fn logs(&self) -> String {
        let read = ["w1", "w2", "w3", "other"].map(|name| {
            let log = std::fs::read_to_string(self.file(&format!("{name}.log")));
            let log = log.unwrap_or_default();
            log.lines().last().unwrap_or_default().to_owned()
        });
        read.join(" | ")
    }

    /// The status line and body that the probes of a process answer; `log` is the name of its log.
    pub(super) fn probe(&self, log: &str, path: &str) -> anyhow::Result<String> {
        let text = std::fs::read_to_string(self.file(&format!("{log}.log")))?;
        let mut lines = text.lines().rev();
        let address = lines.find_map(|line| line.strip_prefix(PROBES));
        let address = address.context("the process gives no address of its probes")?;
        let (head, body) = http_get(address, path).context("the probes do not answer")?;
        Ok(format!("{}\n{body}", head.lines().next().unwrap_or_default()))
    }

    /// A new connection to the server.
    pub(super) async fn bus(&self) -> anyhow::Result<Bus> {
        Ok(Bus::connect(BusConfig::new(APP).url(self.nats.url())).await?)
    }
}

/// Waits until a process has ended.
pub(super) async fn ended(process: &mut Process) -> anyhow::Result<ExitStatus> {
    process.wait(TIMEOUT).await.context("a process did not end")
}

/// The resident memory of a process, MiB.
pub(super) fn mebibytes(process: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes.context("no VmRSS")?.trim().parse::<f64>()? / 1024.0)
}

/// A cascade on two workers that each host both models.
pub(super) fn pair() -> Plan {
    plan(&[("w1", &["small", "large"]), ("w2", &["small", "large"])])
}
