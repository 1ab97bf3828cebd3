//! The same networks in torch, where a Python has it: an embedded program in a process of its own.
//!
//! It gets one JSON object per line, first the device and then a point each, and answers each with one: so the two
//! sides take turns, and a machine that gets busier does so for both. It is given up after a silence, so a torch that
//! hangs costs its figures and not the suite.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Section;
use super::shapes::{Family, Shape};
use crate::device::DeviceChoice;

const PROGRAM: &str = include_str!("torch_baseline.py");
/// Importing torch from a cold disk takes a minute.
const REPLY_TIMEOUT: Duration = Duration::from_mins(3);

/// What torch measured with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchReport {
    /// Version of torch.
    pub torch: String,
    /// Whose modules: `transformers` and its version, or `plain` ones over torch's scaled dot-product attention.
    pub modules: String,
    /// The device it ran on, as torch calls it.
    pub device: String,
    /// How it multiplies matrices in single precision: `high` allows TF32, `highest` does not.
    pub precision: String,
}

/// What torch takes for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchFigure {
    /// Median latency of a batch, seconds.
    pub median_s: f64,
    /// Processor threads it did so with: all or one, whichever was faster.
    pub threads: usize,
}

/// What the program is told first.
#[derive(Debug, Serialize)]
struct Opening {
    device: String,
    budget_s: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct TorchPoint {
    family: Family,
    width: usize,
    blocks: usize,
    heads: usize,
    inner: usize,
    extent: usize,
    batch: usize,
}

/// A line of the answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Report(TorchReport),
    Absent(String),
    Figure(TorchFigure),
    Error(String),
}

impl TorchPoint {
    pub(super) fn new(shape: Shape, batch: usize) -> Self {
        let network = shape.network;
        Self {
            family: network.family,
            width: network.width,
            blocks: network.blocks,
            heads: network.heads,
            inner: network.inner,
            extent: shape.extent,
            batch,
        }
    }
}

/// The program while it runs; it ends with this value.
pub(super) struct Torch {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    patience: Duration,
}

impl Torch {
    /// Starts it: what torch is, and the program where there is one.
    pub(super) fn start(
        python: &Path,
        device: DeviceChoice,
        budget: Duration,
    ) -> (Section<TorchReport>, Option<Self>) {
        let opening = Opening {
            device: device.to_string(),
            budget_s: budget.as_secs_f64(),
        };
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]);
        Self::open(command, REPLY_TIMEOUT, &opening)
    }

    fn open(
        mut command: Command,
        patience: Duration,
        opening: &Opening,
    ) -> (Section<TorchReport>, Option<Self>) {
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let program = Path::new(command.get_program()).display();
                return (Section::Skipped(format!("{program}: {error}")), None);
            }
        };
        let mut torch = Self {
            stdin: child.stdin.take(),
            lines: lines_of(&mut child),
            child,
            patience,
        };
        match torch.ask(opening) {
            Ok(Line::Report(report)) => (Section::Done(report), Some(torch)),
            Ok(Line::Absent(reason)) => (Section::Skipped(reason), None),
            Ok(Line::Figure(_)) => (
                Section::Failed("torch's process did not introduce itself".into()),
                None,
            ),
            Ok(Line::Error(reason)) | Err(reason) => (Section::Failed(reason), None),
        }
    }

    /// What torch takes for a point.
    ///
    /// # Errors
    /// What torch or its process says, for people.
    pub(super) fn measure(&mut self, point: &TorchPoint) -> Result<TorchFigure, String> {
        match self.ask(point)? {
            Line::Figure(figure) => Ok(figure),
            Line::Error(reason) => Err(reason),
            Line::Report(_) | Line::Absent(_) => Err("torch's process introduced itself twice".into()),
        }
    }

    fn ask(&mut self, request: &impl Serialize) -> Result<Line, String> {
        let mut line = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        line.push(b'\n');
        if let Some(stdin) = &mut self.stdin {
            // A program that ended says why on its output, or says nothing; both are seen there.
            let _ = stdin.write_all(&line).and_then(|()| stdin.flush());
        }
        let answer = self.lines.recv_timeout(self.patience).map_err(|_| {
            // What it says from now on would be taken for the answer to the next request.
            self.stop();
            "torch's process ended early or said nothing for too long".to_owned()
        })?;
        serde_json::from_str(&answer).map_err(|error| format!("torch's process said `{answer}`: {error}"))
    }

    fn stop(&mut self) {
        self.stdin = None;
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The lines of a child's output, read by a thread of their own: a pipe cannot be waited for with a time limit.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::shapes::BERT_TINY;

    const REPORT: &str =
        r#"{"report": {"torch": "2", "modules": "plain", "device": "cpu", "precision": "highest"}}"#;
    const FIGURE: &str = r#"{"figure": {"median_s": 0.25, "threads": 2}}"#;

    fn point() -> TorchPoint {
        TorchPoint::new(BERT_TINY.at(16), 1)
    }

    fn talk(script: &str, patience: Duration) -> (Section<TorchReport>, Option<Torch>) {
        let opening = Opening {
            device: "cpu".into(),
            budget_s: 0.01,
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Torch::open(command, patience, &opening)
    }

    fn open_script(script: &str) -> (Section<TorchReport>, Option<Torch>) {
        talk(script, Duration::from_secs(20))
    }

    #[test]
    fn each_point_gets_its_answer() {
        let script = format!(
            "read opening; echo '{REPORT}'; read point; echo '{FIGURE}'; read point; echo '{{\"error\": \"out of memory\"}}'"
        );
        let (report, torch) = open_script(&script);
        assert_eq!(report.done().unwrap().torch, "2");
        let mut torch = torch.unwrap();
        let figure = TorchFigure {
            median_s: 0.25,
            threads: 2,
        };
        assert_eq!(torch.measure(&point()), Ok(figure));
        assert_eq!(torch.measure(&point()), Err("out of memory".into()));
        assert!(
            torch
                .measure(&point())
                .is_err_and(|reason| reason.contains("ended early"))
        );
    }

    #[test]
    fn no_torch_is_skipped_and_nonsense_is_a_failure() {
        let (report, torch) = open_script("echo '{\"absent\": \"no torch\"}'");
        assert_eq!(report, Section::Skipped("no torch".into()));
        assert!(torch.is_none());
        for nonsense in ["echo hello", "true", "echo '{\"report\": {}}'"] {
            assert!(open_script(nonsense).0.failed(), "{nonsense}");
        }
        assert!(open_script(&format!("echo '{FIGURE}'")).0.failed());
        let (_, twice) = open_script(&format!("echo '{REPORT}'; echo '{REPORT}'"));
        assert!(twice.unwrap().measure(&point()).is_err());
    }

    #[test]
    fn a_process_that_hangs_is_given_up() {
        let (report, torch) = talk(
            &format!("echo '{REPORT}'; exec sleep 600"),
            Duration::from_secs(2),
        );
        assert!(report.done().is_some());
        let mut torch = torch.unwrap();
        assert!(torch.measure(&point()).is_err());
        assert!(torch.child.try_wait().unwrap().is_some(), "it was ended");
    }

    #[test]
    fn a_python_that_is_not_there_is_skipped() {
        let nowhere = Path::new("/nowhere/python3");
        let (report, _) = Torch::start(nowhere, DeviceChoice::Cpu, Duration::ZERO);
        assert!(matches!(report, Section::Skipped(reason) if reason.contains("/nowhere/python3")));
    }

    /// Whatever this machine's Python has: figures from a torch, or the reason why there is none.
    #[test]
    fn the_embedded_program_answers_as_agreed() {
        let python = std::env::var("KASKADE_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let (report, torch) = Torch::start(Path::new(&python), DeviceChoice::Cpu, Duration::from_millis(10));
        match report {
            Section::Done(report) => {
                assert_eq!(report.device, "cpu");
                let mut torch = torch.unwrap();
                for _ in 0..2 {
                    let figure = torch.measure(&point()).unwrap();
                    assert!(figure.median_s > 0.0 && figure.threads >= 1, "{figure:?}");
                }
            }
            Section::Skipped(reason) => assert!(!reason.is_empty()),
            Section::Failed(reason) => panic!("{reason}"),
        }
    }
}
