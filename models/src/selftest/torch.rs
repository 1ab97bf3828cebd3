//! The same networks in torch, where a Python has it: an embedded program in a process of its own.
//!
//! It gets one JSON object and answers with one JSON object per line: first what it is, then one figure per point. It is
//! given up after a silence, so a torch that hangs costs a section and not the suite.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Section;
use super::shapes::{Family, Shape};
use crate::device::DeviceChoice;

const PROGRAM: &str = include_str!("torch_baseline.py");
/// Importing torch from a cold disk takes a minute.
const PATIENCE: Duration = Duration::from_mins(3);

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

#[derive(Debug, Serialize)]
pub(super) struct Request {
    device: String,
    budget_s: f64,
    points: Vec<TorchPoint>,
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

impl Request {
    pub(super) fn new(device: DeviceChoice, budget: Duration, points: Vec<TorchPoint>) -> Self {
        Self {
            device: device.to_string(),
            budget_s: budget.as_secs_f64(),
            points,
        }
    }
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

/// What torch is, and a figure or the reason why there is none for each point, as far as it came.
pub(super) fn measure(
    python: &Path,
    request: &Request,
    progress: &mut dyn FnMut(&str),
) -> (Section<TorchReport>, Vec<Result<TorchFigure, String>>) {
    match start(python, request) {
        Ok(mut child) => {
            let answer = converse(&mut child, request.points.len(), PATIENCE, progress);
            // Both fail only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
            answer
        }
        Err(error) => {
            let reason = format!("{}: {error}", python.display());
            (Section::Skipped(reason), Vec::new())
        }
    }
}

fn start(python: &Path, request: &Request) -> std::io::Result<Child> {
    let mut child = Command::new(python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let request = serde_json::to_vec(request)?;
        // A program that ends before it reads says so on its output, or says nothing; both are seen there.
        let _ = stdin.write_all(&request);
    }
    Ok(child)
}

fn converse(
    child: &mut Child,
    points: usize,
    patience: Duration,
    progress: &mut dyn FnMut(&str),
) -> (Section<TorchReport>, Vec<Result<TorchFigure, String>>) {
    progress("starting Python for torch");
    let lines = lines_of(child);
    let next = || -> Result<Line, String> {
        let line = lines
            .recv_timeout(patience)
            .map_err(|_| "torch's process ended early or said nothing for too long".to_owned())?;
        serde_json::from_str(&line).map_err(|error| format!("torch's process said `{line}`: {error}"))
    };
    let report = match next() {
        Ok(Line::Report(report)) => report,
        Ok(Line::Absent(reason)) => return (Section::Skipped(reason), Vec::new()),
        Ok(Line::Error(reason)) | Err(reason) => return (Section::Failed(reason), Vec::new()),
        Ok(Line::Figure(_)) => {
            return (
                Section::Failed("torch's process did not introduce itself".into()),
                Vec::new(),
            );
        }
    };
    let mut figures = Vec::new();
    for point in 1..=points {
        progress(&format!("timing torch, {point} of {points}"));
        match next() {
            Ok(Line::Figure(figure)) => figures.push(Ok(figure)),
            Ok(Line::Error(reason)) => figures.push(Err(reason)),
            Ok(Line::Report(_) | Line::Absent(_)) => {
                return (
                    Section::Failed("torch's process introduced itself twice".into()),
                    figures,
                );
            }
            Err(reason) => return (Section::Failed(reason), figures),
        }
    }
    (Section::Done(report), figures)
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

    fn request(points: usize) -> Request {
        let point = TorchPoint::new(BERT_TINY.at(16), 1);
        Request::new(DeviceChoice::Cpu, Duration::from_millis(10), vec![point; points])
    }

    fn answer_of(script: &str, points: usize) -> (Section<TorchReport>, Vec<Result<TorchFigure, String>>) {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answer = converse(&mut child, points, Duration::from_secs(20), &mut |_| ());
        let _ = child.kill();
        child.wait().unwrap();
        answer
    }

    const REPORT: &str =
        r#"{"report": {"torch": "2", "modules": "plain", "device": "cpu", "precision": "highest"}}"#;

    const FIGURE: &str = r#"{"figure": {"median_s": 0.25, "threads": 2}}"#;

    #[test]
    fn answers_are_read_line_by_line() {
        let script = format!("echo '{REPORT}'; echo '{FIGURE}'; echo '{{\"error\": \"out of memory\"}}'");
        let (report, figures) = answer_of(&script, 2);
        assert_eq!(report.done().unwrap().torch, "2");
        let figure = TorchFigure {
            median_s: 0.25,
            threads: 2,
        };
        assert_eq!(figures, [Ok(figure), Err("out of memory".into())]);
    }

    #[test]
    fn no_torch_is_skipped_and_a_crash_is_a_failure_that_keeps_what_came() {
        let (report, figures) = answer_of("echo '{\"absent\": \"no torch\"}'", 1);
        assert_eq!(
            (report, figures),
            (Section::Skipped("no torch".into()), Vec::new())
        );
        let (report, figures) = answer_of(&format!("echo '{REPORT}'; echo '{FIGURE}'; exit 139"), 3);
        assert!(report.failed());
        assert_eq!(figures.len(), 1);
        for nonsense in [
            "echo hello",
            "true",
            "echo '{\"figure\": {}}'",
            "echo '{\"report\": {}}'",
        ] {
            assert!(answer_of(nonsense, 1).0.failed(), "{nonsense}");
        }
    }

    #[test]
    fn a_python_that_is_not_there_is_skipped() {
        let (report, _) = measure(Path::new("/nowhere/python3"), &request(1), &mut |_| ());
        assert!(matches!(report, Section::Skipped(reason) if reason.contains("/nowhere/python3")));
    }

    /// Whatever this machine's Python has: figures from a torch, or the reason why there is none.
    #[test]
    fn the_embedded_program_answers_as_agreed() {
        let python = std::env::var("KASKADE_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let (report, figures) = measure(Path::new(&python), &request(2), &mut |_| ());
        match report {
            Section::Done(report) => {
                assert_eq!(report.device, "cpu");
                assert!(
                    figures
                        .iter()
                        .all(|figure| figure.as_ref().is_ok_and(|figure| figure.median_s > 0.0)),
                    "{figures:?}"
                );
                assert_eq!(figures.len(), 2);
            }
            Section::Skipped(reason) => assert!(!reason.is_empty()),
            Section::Failed(reason) => panic!("{reason}"),
        }
    }
}
