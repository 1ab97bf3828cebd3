//! `kaskade feedback`: tells an app the right answers to requests that it has answered.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use kaskade_actors::wire::{Feedback, FeedbackLabel, FeedbackReply};
use kaskade_actors::{Code, Fault};
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::serving::{self, Client};
use serde_json::json;

use crate::app_address::TargetArgs;
use crate::args::Broker;
use crate::output;

/// Labels that wait for their replies at the same time.
const AT_ONCE: usize = 64;

/// Tells an app the right answers to requests that it has answered, for the live accuracy of its certified plan. Give `--id` and
/// `--label`, or one JSON object `{"id": "...", "label": 7}` per line on standard input. Send labels whether or not an audit differed: a
/// choice by the answers would bias what they show.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The id that the request was given.
    #[arg(long, requires = "label")]
    id: Option<String>,
    /// The right answer: the number of a class or its name, or a text.
    #[arg(long, requires = "id")]
    label: Option<String>,
    /// Time after which a request counts as unknown.
    #[arg(long, value_name = "TIME", default_value = "1s", visible_alias = "timeout")]
    wait: HumanDuration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// What became of the labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    right: u64,
    wrong: u64,
    audited: u64,
    unknown: u64,
    refused: u64,
    /// Labels that were counted although no worker announces the names of the classes.
    unchecked: u64,
    /// Why one label was refused.
    reason: Option<String>,
}

/// Sends the labels, and prints what became of them.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let labels = match (&args.id, &args.label) {
        (Some(id), Some(label)) => vec![Feedback {
            id: id.clone(),
            label: parse(label),
        }],
        _ => read(std::io::stdin().lock())?,
    };
    let timeout = args.wait.duration();
    let tally = serving::runtime()?.block_on(async {
        let client = Client::connect_with(target.client("feedback"), target.name()).await?;
        let replies = futures::stream::iter(labels)
            .map(|Feedback { id, label }| {
                let client = client.clone();
                async move { client.feedback(&id, label, timeout).await }
            })
            .buffer_unordered(AT_ONCE);
        let mut replies = std::pin::pin!(replies);
        let mut tally = Tally::default();
        while let Some(reply) = replies.next().await {
            tally.add(reply?.as_ref());
        }
        client.close().await;
        anyhow::Ok(tally)
    })?;
    if args.json {
        output::print_json(&json!({
            "right": tally.right, "wrong": tally.wrong, "audited": tally.audited, "unknown": tally.unknown,
            "refused": tally.refused, "unchecked": tally.unchecked,
        }))?;
    } else {
        output::print(&tally.as_text())?;
    }
    tally.check()
}

impl Tally {
    fn add(&mut self, reply: Option<&FeedbackReply>) {
        match reply {
            None => self.unknown += 1,
            Some(FeedbackReply {
                refused: Some(reason),
                ..
            }) => {
                self.refused += 1;
                self.reason.get_or_insert_with(|| reason.clone());
            }
            Some(reply) => {
                self.right += u64::from(reply.right);
                self.wrong += u64::from(!reply.right);
                self.audited += u64::from(reply.audited);
                self.unchecked += u64::from(reply.unchecked);
            }
        }
    }

    /// Checks that labels were taken.
    ///
    /// # Errors
    /// When one was refused, or all are unknown.
    fn check(&self) -> anyhow::Result<()> {
        if let Some(reason) = &self.reason {
            let message = match self.refused {
                1 => format!("the label cannot be compared with the answer: {reason}"),
                refused => format!("{refused} labels cannot be compared with the answers, such as: {reason}"),
            };
            return Err(Fault::new(Code::InvalidInput, message).into());
        }
        ensure!(
            self.right + self.wrong > 0,
            "no label was taken: the app knows none of these ids; check the name of the app and the ids, send labels earlier or raise \
             `[ingress] recent_replies`, and check that the plan is certified"
        );
        Ok(())
    }

    fn as_text(&self) -> String {
        let mut counted = format!(
            "{} right, {} wrong; {} of these requests were audited",
            self.right, self.wrong, self.audited
        );
        if self.unchecked > 0 {
            let _ = write!(
                counted,
                "\n{} not checked: no worker announces the names of the classes, so that a misspelt name counts as another class",
                self.unchecked
            );
        }
        match self.unknown {
            0 => counted,
            unknown => format!(
                "{counted}\n{unknown} unknown: the request had no id, was labelled before or is too old (`[ingress] recent_replies`), or \
                 the plan is not certified"
            ),
        }
    }
}

/// Reads one label per line; empty lines are skipped.
fn read(lines: impl std::io::BufRead) -> anyhow::Result<Vec<Feedback>> {
    let mut labels = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.context("standard input cannot be read")?;
        if line.trim().is_empty() {
            continue;
        }
        let label = serde_json::from_str(&line).with_context(|| {
            format!(
                "line {number} is not a label; write `{{\"id\": \"...\", \"label\": 7}}`, or a text or the name of a class as the label"
            )
        })?;
        labels.push(label);
    }
    ensure!(
        !labels.is_empty(),
        "standard input has no labels; give `--id` and `--label`, or one JSON object per line"
    );
    Ok(labels)
}

fn parse(label: &str) -> FeedbackLabel {
    label
        .parse()
        .map_or_else(|_| FeedbackLabel::Text(label.to_owned()), FeedbackLabel::Class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_line_by_line() {
        let labels =
            read("{\"id\": \"a\", \"label\": 7}\n\n{\"id\": \"b\", \"label\": \"yes\"}\n".as_bytes())
                .unwrap();
        assert_eq!(labels.len(), 2);
        assert_eq!(labels[0].label, FeedbackLabel::Class(7));
        let error = read("{\"id\": \"a\"}".as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        assert!(
            read("\n".as_bytes())
                .unwrap_err()
                .to_string()
                .contains("no labels")
        );
        assert_eq!(parse("3"), FeedbackLabel::Class(3));
        assert_eq!(parse("three"), FeedbackLabel::Text("three".to_owned()));
    }

    #[test]
    fn what_is_unknown_is_said() {
        let mut tally = Tally::default();
        tally.add(None);
        // A label that was not taken looked like one that was.
        let error = tally.check().unwrap_err().to_string();
        assert!(error.contains("no label was taken"), "{error}");
        tally.add(Some(&FeedbackReply {
            right: true,
            ..FeedbackReply::default()
        }));
        let refused = |reason: &str| FeedbackReply {
            refused: Some(reason.to_owned()),
            ..FeedbackReply::default()
        };
        tally.check().unwrap();
        assert!(!tally.as_text().contains("not checked"));
        tally.add(Some(&FeedbackReply {
            right: true,
            unchecked: true,
            ..FeedbackReply::default()
        }));
        assert!(tally.as_text().contains("1 not checked: no worker announces"));
        tally.add(Some(&refused("3 is none of the 3 classes")));
        tally.add(Some(&refused("4 is none of the 3 classes")));
        assert_eq!(tally.refused, 2);
        assert_eq!(tally.reason.as_deref(), Some("3 is none of the 3 classes"));
        assert!(tally.check().unwrap_err().to_string().contains("3 is none of"));
        let text = tally.as_text();
        assert!(
            text.contains("2 right, 0 wrong") && text.contains("1 unknown"),
            "{text}"
        );
    }
}
