//! Measures the same networks in torch, by an embedded program in a separate Python process.
//!
//! The protocol is one JSON object per line: first the device, then one request per measurement, each answered by one
//! line. The two programs alternate, so that other load on the machine affects both. A process that stays silent is
//! stopped, so a torch that hangs costs its measurements only.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::section::Section;
use super::shapes::{Family, Shape};
use crate::device::DeviceChoice;
use crate::precision::WeightType;

const PROGRAM: &str = include_str!("torch_baseline.py");
/// Importing torch from a cold disk takes a minute.
const REPLY_TIMEOUT: Duration = Duration::from_mins(3);

/// Version and settings of torch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchReport {
    /// Version of torch.
    pub torch: String,
    /// Implementation of the networks: `transformers` and its version, or `plain` modules with torch's scaled
    /// dot-product attention.
    pub modules: String,
    /// The device by torch's name.
    pub device: String,
    /// Precision of f32 matrix products: `high` allows TF32, `highest` does not.
    pub precision: String,
}

/// Measurement by torch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchFigure {
    /// Median latency of a batch, seconds.
    pub median_s: f64,
    /// Number of CPU threads: all or one, whichever was faster.
    pub threads: usize,
}

/// First message to the program.
#[derive(Debug, Serialize)]
struct Handshake {
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
    dtype: WeightType,
}

/// A line of its answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Report(TorchReport),
    Absent(String),
    Figure(TorchFigure),
    Error(String),
}

impl TorchPoint {
    pub(super) fn new(shape: Shape, batch: usize, dtype: WeightType) -> Self {
        let network = shape.network;
        Self {
            family: network.family,
            width: network.width,
            blocks: network.blocks,
            heads: network.heads,
            inner: network.inner,
            extent: shape.extent,
            batch,
            dtype,
        }
    }
}

/// The running program; dropping it stops the process.
pub(super) struct Torch {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    patience: Duration,
}

impl Torch {
    /// Starts the program; returns the settings of torch, and the program if torch is available.
    pub(super) fn start(
        python: &Path,
        device: DeviceChoice,
        budget: Duration,
    ) -> (Section<TorchReport>, Option<Self>) {
        let handshake = Handshake {
            device: device.to_string(),
            budget_s: budget.as_secs_f64(),
        };
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]);
        Self::open(command, REPLY_TIMEOUT, &handshake)
    }

    fn open(
        mut command: Command,
        patience: Duration,
        handshake: &Handshake,
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
        match torch.ask(handshake) {
            Ok(Line::Report(report)) => (Section::Done(report), Some(torch)),
            Ok(Line::Absent(reason)) => (Section::Skipped(reason), None),
            Ok(Line::Figure(_)) => (
                Section::Failed("torch's process did not report its version".into()),
                None,
            ),
            Ok(Line::Error(reason)) | Err(reason) => (Section::Failed(reason), None),
        }
    }

    /// Measures one batch size.
    ///
    /// # Errors
    /// The message of torch or of its process.
    pub(super) fn measure(&mut self, point: &TorchPoint) -> Result<TorchFigure, String> {
        match self.ask(point)? {
            Line::Figure(figure) => Ok(figure),
            Line::Error(reason) => Err(reason),
            Line::Report(_) | Line::Absent(_) => Err("torch's process reported its version twice".into()),
        }
    }

    fn ask(&mut self, request: &impl Serialize) -> Result<Line, String> {
        let mut line = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        line.push(b'\n');
        if let Some(stdin) = &mut self.stdin {
            // If the program has ended, reading its output gives the reason.
            let _ = stdin.write_all(&line).and_then(|()| stdin.flush());
        }
        let answer = self.lines.recv_timeout(self.patience).map_err(|_| {
            // A later answer would be taken for that to the next request.
            self.stop();
            "torch's process ended early or timed out".to_owned()
        })?;
        serde_json::from_str(&answer).map_err(|error| format!("torch's process returned `{answer}`: {error}"))
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

/// Reads the lines of a child's output on a separate thread, because a pipe has no read timeout.
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
        TorchPoint::new(BERT_TINY.at(16), 1, WeightType::F32)
    }

    fn talk(script: &str, patience: Duration) -> (Section<TorchReport>, Option<Torch>) {
        let handshake = Handshake {
            device: "cpu".into(),
            budget_s: 0.01,
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Torch::open(command, patience, &handshake)
    }

    fn open_script(script: &str) -> (Section<TorchReport>, Option<Torch>) {
        talk(script, Duration::from_secs(20))
    }

    #[test]
    fn each_request_gets_its_answer() {
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
    fn missing_torch_is_skipped_and_invalid_output_fails() {
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
    fn a_process_that_hangs_is_stopped() {
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
    fn a_missing_python_is_skipped() {
        let nowhere = Path::new("/nowhere/python3");
        let (report, _) = Torch::start(nowhere, DeviceChoice::Cpu, Duration::ZERO);
        assert!(matches!(report, Section::Skipped(reason) if reason.contains("/nowhere/python3")));
    }

    /// With this machine's Python: measurements, or the reason why there are none.
    #[test]
    fn the_embedded_program_follows_the_protocol() {
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
            Section::Skipped(reason) => {
                assert!(std::env::var_os("KASKADE_TEST_PYTHON").is_none(), "{reason}");
                eprintln!("not tested: {reason}; KASKADE_TEST_PYTHON names a Python that has PyTorch");
            }
            Section::Failed(reason) => panic!("{reason}"),
        }
    }
}
