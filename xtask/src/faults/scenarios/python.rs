//! A stage in Python, by the package of `sdk/python`. The small model is never sure, so every request reaches it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kaskade_testkit::{NatsOptions, sdk_python};

use super::scenarios;
use crate::deployed_plan::{APP, LARGE, SMALL, plan};
use crate::faults::oracle::{Load, under};
use crate::faults::rig::{Process, Rig, Start};
use crate::faults::verdict::Verdict;
use crate::node::inputs;

scenarios! {
    "python-killed" "One of two Python stages is killed (SIGKILL) during a batch; its requests are sent to the other one." killed;
}

/// Run time of a batch, seconds: long enough to be interrupted.
const BATCH: &str = "0.01";

/// Longest time until a batch is under way.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A process with a replica of the large model.
struct PythonStage {
    process: Process,
    /// Requests in the batch that it runs.
    running: Arc<AtomicUsize>,
}

impl PythonStage {
    /// Starts a replica and returns when it serves.
    fn start(python: &Path, rig: &Rig, worker: &str) -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let log = std::fs::File::create(rig.file(&format!("{worker}.log")))?;
        let mut command = Command::new(python);
        command
            .arg(root.join("src/faults/python_stage.py"))
            .args([&rig.nats.url(), APP, LARGE, &format!("{LARGE}-{worker}"), BATCH])
            .env("PYTHONPATH", root.join("../sdk/python/src"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .stderr(log);
        let mut process = Process::start(&mut command);
        let out = process.child().stdout.take().context("the stage has no output")?;
        let mut lines = BufReader::new(out).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        if !first.starts_with("ready") {
            let said = std::fs::read_to_string(rig.file(&format!("{worker}.log")))?;
            anyhow::bail!("a Python stage did not start: {first} {said}");
        }
        let running = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&running);
        std::thread::spawn(move || {
            while let Some(Ok(line)) = lines.next() {
                if let Ok(size) = line.trim().parse() {
                    seen.store(size, Ordering::SeqCst);
                }
            }
        });
        Ok(Self { process, running })
    }
}

async fn killed() -> anyhow::Result<Verdict> {
    let python = match sdk_python() {
        Ok(python) => python,
        Err(reason) => return Ok(Verdict::skipped(reason)),
    };
    // No process has the names of these workers, so that none loads what is placed on them.
    let placed = plan(&[("w1", &[SMALL]), ("p1", &[LARGE]), ("p2", &[LARGE])]);
    let rig = Rig::with(NatsOptions::jetstream(), &placed)?;
    let (_worker, _ingress) = (rig.start(&Start::worker("w1"))?, rig.start(&Start::ingress())?);
    let mut first = PythonStage::start(&python, &rig, "p1")?;
    let _second = PythonStage::start(&python, &rig, "p2")?;
    let load = Load {
        asks: |number| inputs((number % 4) as f32, 0.1),
        ..Load::at(&rig.nats.url())
    };
    let mut interrupted = 0;
    let tally = under(&load, async || {
        let begun = Instant::now();
        while interrupted == 0 && begun.elapsed() < TIMEOUT {
            interrupted = first.running.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.process.kill();
        Ok(Instant::now())
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(interrupted > 0, "a batch is under way")
        .demand(tally.degraded() == 0, "the Python stage answers every request")
        .recovers_within(Duration::from_secs(1))
        .note(format!("requests in the interrupted batch: {interrupted}")))
}
