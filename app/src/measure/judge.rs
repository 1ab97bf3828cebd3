//! Runs a program that judges answers: it reads one JSON object per line and writes one verdict per line.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// Longest verdict line, bytes.
const MAX_LINE: u64 = 1 << 20;

/// Poll interval for the exit of a program that has answered everything.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Error of a judge program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The command is empty, or has an unclosed quotation mark.
    #[error("`{command}` is not a command; write a program and its arguments, quoted as in a shell")]
    Command {
        /// The command.
        command: String,
    },
    /// The program cannot be started.
    #[error("the judge `{program}` does not start")]
    Start {
        /// The program.
        program: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The program ended early, or with an error.
    #[error("the judge ended ({status}) after {answered} of {asked} verdicts")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// Number of verdicts.
        answered: usize,
        /// Number of questions.
        asked: usize,
    },
    /// The program wrote nothing for too long.
    #[error(
        "the judge gave {answered} of {asked} verdicts and then none for {} s; it must answer every line, flush its output and end with \
         its input (`--judge-timeout` is the limit)",
        after.as_secs_f64()
    )]
    Silent {
        /// The time limit.
        after: Duration,
        /// Number of verdicts.
        answered: usize,
        /// Number of questions.
        asked: usize,
    },
    /// A line is not a verdict.
    #[error(
        "line {line} of the judge is not a verdict: {found}; write {{\"right\": true}}, {{\"right\": false}} or {{\"score\": NUMBER}}"
    )]
    Garbage {
        /// Number of the line, from 1.
        line: usize,
        /// Beginning of the line.
        found: String,
    },
    /// The program wrote more verdicts than there are questions.
    #[error("the judge gives more than {asked} verdicts; it must write one line for each of its input")]
    TooMany {
        /// Number of questions.
        asked: usize,
    },
    /// The program returned a score, but the app states no lowest score of a correct answer.
    #[error("the judge gives scores; set `min_score` under `[data]`, the least score of a right answer")]
    NoThreshold,
    /// The program's output cannot be read.
    #[error("the judge's output cannot be read")]
    Unreadable(#[source] std::io::Error),
}

/// A program that judges answers.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeProgram {
    command: String,
    words: Vec<String>,
    /// Longest time without a verdict.
    silence: Duration,
}

/// A question to the judge: an answer to a sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Question<'a> {
    /// Index of the sample, from 0.
    pub sample: usize,
    /// Texts of the request by input; numbers and images are omitted.
    pub input: &'a Map<String, Value>,
    /// The answer.
    pub answer: &'a Value,
    /// The reference answer, if the set has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<&'a Value>,
}

/// A line written by the program.
#[derive(Deserialize)]
struct Verdict {
    right: Option<bool>,
    score: Option<f64>,
}

impl JudgeProgram {
    /// Creates a judge from a command: a program with arguments, quoted as in a shell. Its time limit without a verdict
    /// is five minutes.
    ///
    /// # Errors
    /// [`JudgeError::Command`] if it is empty or malformed.
    pub fn new(command: &str) -> Result<Self, JudgeError> {
        let words = shlex::split(command).filter(|words| !words.is_empty());
        Ok(Self {
            command: command.to_owned(),
            words: words.ok_or_else(|| JudgeError::Command {
                command: command.to_owned(),
            })?,
            silence: Duration::from_mins(5),
        })
    }

    /// Sets the longest time without a verdict.
    #[must_use]
    pub fn with_timeout(mut self, longest: Duration) -> Self {
        self.silence = longest;
        self
    }

    /// Returns the command.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Runs the program once over all questions, and returns which answers are correct. Scores are correct from
    /// `min_score` on.
    ///
    /// # Errors
    /// [`JudgeError`] if the program does not start, fails, is silent for too long, or does not write one verdict per
    /// question.
    pub fn judge(&self, questions: &[Question<'_>], min_score: Option<f64>) -> Result<Vec<bool>, JudgeError> {
        let lines: Vec<String> = questions
            .iter()
            .map(|question| serde_json::to_string(question).unwrap_or_default())
            .collect();
        let (program, arguments) = self.words.split_first().ok_or_else(|| JudgeError::Command {
            command: self.command.clone(),
        })?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = ChildGuard(child.map_err(|source| JudgeError::Start {
            program: program.clone(),
            source,
        })?);
        let replies = child.talk(lines);
        let mut verdicts = Vec::with_capacity(questions.len());
        let progress = |answered: usize| JudgeError::Silent {
            after: self.silence,
            answered,
            asked: questions.len(),
        };
        for line in 1.. {
            match replies.recv_timeout(self.silence) {
                Ok(read) => {
                    let text = read.map_err(JudgeError::Unreadable)?;
                    if text.trim_ascii().is_empty() {
                        continue;
                    }
                    if verdicts.len() == questions.len() {
                        return Err(JudgeError::TooMany {
                            asked: questions.len(),
                        });
                    }
                    verdicts.push(right(&text, line, min_score)?);
                }
                Err(RecvTimeoutError::Timeout) => return Err(progress(verdicts.len())),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child
            .ended(self.silence)
            .map_err(JudgeError::Unreadable)?
            .ok_or_else(|| progress(verdicts.len()))?;
        if verdicts.len() < questions.len() || !status.success() {
            return Err(JudgeError::Ended {
                status,
                answered: verdicts.len(),
                asked: questions.len(),
            });
        }
        Ok(verdicts)
    }
}

/// Parses a verdict: returns whether the answer is correct.
fn right(text: &[u8], line: usize, min_score: Option<f64>) -> Result<bool, JudgeError> {
    const SHOWN: usize = 80;
    let garbage = || {
        let text = String::from_utf8_lossy(text);
        let shown: String = text.trim().chars().take(SHOWN).collect();
        JudgeError::Garbage {
            line,
            found: format!("{shown:?}"),
        }
    };
    let verdict: Verdict = serde_json::from_slice(text).map_err(|_| garbage())?;
    match (verdict.right, verdict.score) {
        (Some(right), None) => Ok(right),
        (None, Some(score)) => Ok(score >= min_score.ok_or(JudgeError::NoThreshold)?),
        _ => Err(garbage()),
    }
}

/// Kills the process when dropped.
struct ChildGuard(Child);

impl ChildGuard {
    /// Writes the lines to the process and returns the lines that it writes. Separate threads read and write, so that
    /// neither a process that reads everything first nor one that answers early blocks.
    fn talk(&mut self, lines: Vec<String>) -> Receiver<std::io::Result<Vec<u8>>> {
        if let Some(mut input) = self.0.stdin.take() {
            thread::spawn(move || {
                for line in lines {
                    // A process that stops reading has ended, or will lack verdicts.
                    if writeln!(input, "{line}").is_err() {
                        return;
                    }
                }
            });
        }
        let (sender, replies) = sync_channel(1024);
        if let Some(output) = self.0.stdout.take() {
            thread::spawn(move || read_lines(BufReader::new(output), &sender));
        }
        replies
    }

    /// Waits at most `longest` for the exit of the process; `None` if it still runs.
    fn ended(&mut self, longest: Duration) -> std::io::Result<Option<ExitStatus>> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if began.elapsed() >= longest {
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The process has ended, or is no longer needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_lines(mut output: impl BufRead, sender: &SyncSender<std::io::Result<Vec<u8>>>) {
    loop {
        let mut line = Vec::new();
        let read = output.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let line = match read {
            Ok(0) => return,
            Ok(_) => Ok(line),
            Err(error) => Err(error),
        };
        let ends = line.is_err();
        if sender.send(line).is_err() || ends {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::in_one_line;

    /// Judges the numbers 0, 1, ... with a Python program.
    fn judged(program: &str, questions: usize, min_score: Option<f64>) -> Result<Vec<bool>, JudgeError> {
        let command = format!("python3 -c {}", shlex::try_quote(program).unwrap());
        let judge = JudgeProgram::new(&command)?.with_timeout(Duration::from_secs(20));
        let input = json!({"text": "how many?"});
        let answers: Vec<Value> = (0..questions).map(Value::from).collect();
        let reference = Value::from(2);
        let questions: Vec<Question<'_>> = answers
            .iter()
            .zip(0..)
            .map(|(answer, sample)| Question {
                sample,
                input: input.as_object().unwrap(),
                answer,
                reference: (sample > 0).then_some(&reference),
            })
            .collect();
        judge.judge(&questions, min_score)
    }

    #[test]
    fn verdicts_and_scores_are_read_line_by_line() {
        let echo = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    assert asked["input"] == {"text": "how many?"} and ("reference" in asked) == (asked["sample"] > 0)
    print(json.dumps({"right": asked["answer"] == asked.get("reference"), "reason": "none"}), flush=True)
"#;
        assert_eq!(judged(echo, 4, None).unwrap(), [false, false, true, false]);
        // A program that reads more than a pipe holds before it writes.
        let whole = r#"
import json, sys
asked = [json.loads(line) for line in sys.stdin]
print("\n".join(json.dumps({"score": one["answer"] / 10}) for one in asked))
"#;
        let right = judged(whole, 5_000, Some(1.0)).unwrap();
        assert!(
            right
                .iter()
                .zip(0..)
                .all(|(right, number)| *right == (number >= 10))
        );
        assert_eq!(judged(whole, 0, None).unwrap(), [] as [bool; 0]);
    }

    #[test]
    fn what_is_wrong_with_a_judge_is_named() {
        let refused =
            |program: &str| in_one_line(&judged(&format!("import sys\n{program}"), 3, None).unwrap_err());
        let each = |body: &str| refused(&format!("for line in sys.stdin:\n    {body}"));
        for (found, message) in [
            (
                each("print('yes', flush=True)"),
                "line 1 of the judge is not a verdict: \"yes\"",
            ),
            (each("print('{}', flush=True)"), "not a verdict"),
            (each("print('{\"right\": true, \"score\": 1}')"), "not a verdict"),
            (each("print('{\"right\": 1}')"), "not a verdict"),
            (each("print('{\"score\": NaN}')"), "not a verdict"),
            (each("print('{\"score\": 0.5}')"), "min_score"),
            (each("print('{\"right\": true}\\n' * 2)"), "more than 3"),
            (refused("print('{\"right\": true}')"), "after 1 of 3 verdicts"),
            (
                refused("for line in sys.stdin: print('{\"right\": true}')\nsys.exit(3)"),
                "exit status: 3) after 3 of 3",
            ),
            (refused("raise SystemExit(2)"), "exit status: 2) after 0 of 3"),
        ] {
            assert!(found.contains(message), "{found}");
        }
    }

    #[test]
    fn a_silent_judge_is_ended() {
        for program in [
            // A program that answers nothing, and one that answers but does not exit.
            "import sys, time\ntime.sleep(1000)",
            "import sys, time\nfor line in sys.stdin: print('{\"right\": true}', flush=True)\nsys.stdout.close()\ntime.sleep(1000)",
        ] {
            let command = format!("python3 -c {}", shlex::try_quote(program).unwrap());
            let judge = JudgeProgram::new(&command)
                .unwrap()
                .with_timeout(Duration::from_millis(300));
            let input = Map::new();
            let question = Question {
                sample: 0,
                input: &input,
                answer: &Value::Null,
                reference: None,
            };
            let error = judge.judge(&[question], None).unwrap_err();
            assert!(matches!(error, JudgeError::Silent { .. }), "{error}");
        }
    }

    #[test]
    fn a_command_is_words_in_quotation_marks() {
        assert_eq!(
            JudgeProgram::new("judge 'a b' c").unwrap().words,
            ["judge", "a b", "c"]
        );
        for command in ["", "  ", "judge 'open"] {
            assert!(JudgeProgram::new(command).is_err(), "{command:?}");
        }
        let missing = JudgeProgram::new("/nowhere/judge").unwrap().judge(&[], None);
        assert!(matches!(missing, Err(JudgeError::Start { .. })));
    }
}
