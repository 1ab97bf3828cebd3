//! Messages on channels (OpenAI 2025, "Harmony response format"): `<|channel|>analysis<|message|>...<|end|>`, then
//! `<|start|>assistant<|channel|>final<|message|>...`, or `commentary to=functions.NAME <|constrain|>json<|message|>{...}` for a call.

use super::Parts;
use crate::generation::detokenizer::stop_prefix_len;
use crate::language::tools::ToolCall;

/// The mark before the name of a channel.
pub(super) const CHANNEL: &str = "<|channel|>";

/// The mark between the header of a message and its text.
pub(super) const MESSAGE: &str = "<|message|>";

/// The mark before the header of a message; an answer begins behind it.
const START: &str = "<|start|>";

/// Marks after the text of a message. The last one of an answer ends it, and is no part of its text.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

/// All marks of an answer.
pub(super) const MARKS: [&str; 7] = [
    CHANNEL,
    MESSAGE,
    START,
    ENDS[0],
    ENDS[1],
    ENDS[2],
    "<|constrain|>",
];

/// How the header of the first message may begin.
const HEADERS: [&str; 3] = [CHANNEL, START, "to="];

/// What functions are called as.
const FUNCTIONS: &str = "functions.";

/// Separates the messages of an answer.
#[derive(Debug, Clone)]
pub(super) struct Harmony {
    /// Names of the functions that the request offers.
    functions: Vec<String>,
    state: State,
    held: String,
    calls: Vec<ToolCall>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Before the first message.
    Start,
    /// Within the header of a message.
    Header,
    Reasoning,
    Text,
    /// Within the arguments of a call of this function.
    Call(String),
    /// The answer has no messages.
    Plain,
}

impl Harmony {
    pub(super) const fn new(functions: Vec<String>) -> Self {
        Self {
            functions,
            state: State::Start,
            held: String::new(),
            calls: Vec::new(),
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    pub(super) fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        let mut parts = Parts::default();
        loop {
            match &self.state {
                State::Start => {
                    let begun = self.held.trim_start();
                    if HEADERS.into_iter().any(|mark| begun.starts_with(mark)) {
                        self.state = State::Header;
                    } else if HEADERS.into_iter().any(|mark| mark.starts_with(begun)) {
                        return parts;
                    } else {
                        self.state = State::Plain;
                    }
                }
                State::Header => {
                    let Some((header, rest)) = self.held.split_once(MESSAGE) else {
                        return parts;
                    };
                    self.state = self.of_header(header);
                    self.held = rest.to_owned();
                }
                State::Plain => {
                    parts.text.push_str(&std::mem::take(&mut self.held));
                    return parts;
                }
                State::Reasoning | State::Text | State::Call(_) => {
                    let marks = ENDS
                        .into_iter()
                        .filter_map(|mark| Some((self.held.find(mark)?, mark)));
                    let Some((at, mark)) = marks.min() else {
                        let kept = ENDS.into_iter().map(|mark| stop_prefix_len(&self.held, mark));
                        let certain = self.held.len() - kept.max().unwrap_or(0);
                        if !matches!(self.state, State::Call(_)) {
                            let held = self.held.split_off(certain);
                            let body = std::mem::replace(&mut self.held, held);
                            self.add(&body, &mut parts);
                        }
                        return parts;
                    };
                    let rest = self.held.split_off(at);
                    let body = std::mem::replace(&mut self.held, rest.replacen(mark, "", 1));
                    self.add(&body, &mut parts);
                    self.state = State::Header;
                }
            }
        }
    }

    /// Adds what is certain of a message. Arguments that are no JSON object are text.
    fn add(&mut self, body: &str, parts: &mut Parts) {
        match &self.state {
            State::Reasoning => parts.reasoning.push_str(body),
            State::Call(name) => {
                let arguments = serde_json::from_str(body.trim()).ok();
                match arguments.and_then(|arguments| ToolCall::new(name, arguments)) {
                    Some(call) => self.calls.push(call),
                    None => parts.text.push_str(body),
                }
            }
            _ => parts.text.push_str(body),
        }
    }

    /// Returns what a message with this header holds.
    fn of_header(&self, header: &str) -> State {
        let recipient = header.split_once("to=").map(|(_, after)| {
            let name = after.split(|letter: char| letter.is_whitespace() || letter == '<');
            name.into_iter().next().unwrap_or_default()
        });
        let function = recipient.map(|name| name.strip_prefix(FUNCTIONS).unwrap_or(name));
        if let Some(function) = function.filter(|name| self.functions.iter().any(|own| own == name)) {
            return State::Call(function.to_owned());
        }
        let channel = header
            .split_once(CHANNEL)
            .map_or("", |(_, after)| after.trim_start());
        if channel.starts_with("analysis") {
            State::Reasoning
        } else {
            State::Text
        }
    }

    /// Ends the answer. `is_cut` says that the maximum of tokens ended it, so that a call may lack arguments.
    pub(super) fn finish(mut self, is_cut: bool) -> (Parts, Vec<ToolCall>) {
        let mut parts = Parts::default();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Header => {}
            State::Call(_) if is_cut => parts.text = held,
            _ => self.add(&held, &mut parts),
        }
        (parts, self.calls)
    }
}
