//! Parser of the Harmony response format, with messages on channels (OpenAI 2025, "Harmony response format"):
//! `<|channel|>analysis<|message|>...<|end|>`, then `<|start|>assistant<|channel|>final<|message|>...`, or `commentary
//! to=functions.NAME <|constrain|>json<|message|>{...}` for a call.

use super::Parts;
use crate::generation::detokenizer::stop_prefix_len;
use crate::language::tools::ToolCall;

/// Marker before the name of a channel.
pub(super) const CHANNEL: &str = "<|channel|>";

/// Marker between the header of a message and its text.
pub(super) const MESSAGE: &str = "<|message|>";

/// Marker before the header of a message. The prompt usually ends with the first one and the role.
const START: &str = "<|start|>";

/// Markers after the text of a message. The last marker ends the answer and is not part of its text.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

/// All markers of an answer.
pub(super) const MARKS: [&str; 7] = [
    CHANNEL,
    MESSAGE,
    START,
    ENDS[0],
    ENDS[1],
    ENDS[2],
    "<|constrain|>",
];

/// Prefixes of the header of the first message.
const HEADERS: [&str; 3] = [CHANNEL, START, "to="];

/// Namespace of functions in call recipients.
const FUNCTIONS: &str = "functions.";

/// Parser of the messages of an answer.
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
    /// Inside the header of a message.
    Header,
    Reasoning,
    Text,
    /// Inside the arguments of a call of this function.
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

    /// Adds the certain part of a message. Arguments that are not a JSON object are treated as text.
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

    /// Returns the kind of content that follows a message header.
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

    /// Finishes the answer. `hit_max_tokens` states that `max_tokens` ended it, so that a call may lack arguments.
    pub(super) fn finish(mut self, hit_max_tokens: bool) -> (Parts, Vec<ToolCall>) {
        let mut parts = Parts::default();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Header => {}
            State::Call(_) if hit_max_tokens => parts.text = held,
            _ => self.add(&held, &mut parts),
        }
        (parts, self.calls)
    }
}
