//! Separates tool calls from the text of an answer while it is generated.

use serde_json::Value;

use super::call::ToolCall;
use super::offered::{ToolChoice, Tools};
use super::parse;
use super::syntax::{PYTHON_TAG, Syntax};
use crate::generation::detokenizer::stop_prefix_len;

/// Separates calls from text. Holds back text that is a call, or may become one.
#[derive(Debug, Clone)]
pub(in crate::language) struct CallScanner {
    syntax: Syntax,
    /// Names and parameters of the functions.
    signatures: Vec<(String, Value)>,
    state: State,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside of a call.
    Text,
    /// At the start of an answer that has a format unless it begins with a call.
    First,
    /// The held text is a call.
    Call,
    /// The held text is a JSON list of calls, enforced by a grammar.
    Required,
    /// No call can begin any more.
    Plain,
}

impl CallScanner {
    /// Creates one for an answer; `has_format` says that it has a format unless it begins with a call.
    pub(in crate::language) fn new(syntax: Syntax, tools: &Tools, has_format: bool) -> Self {
        Self {
            syntax,
            signatures: tools.signatures(),
            state: match tools.choice {
                ToolChoice::Required | ToolChoice::Function(_) => State::Required,
                ToolChoice::Auto if has_format => State::First,
                ToolChoice::Auto => State::Text,
                ToolChoice::None => State::Plain,
            },
            held: String::new(),
        }
    }

    /// Appends new text of the answer; returns the text that is certainly not part of a call.
    pub(in crate::language) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let shown = match self.state {
            State::Call | State::Required => 0,
            State::Plain => self.held.len(),
            State::First => self.text_of_format(),
            State::Text => self.text_before_calls(),
        };
        let rest = self.held.split_off(shown);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the length of the held text that is certainly not part of a call.
    fn text_before_calls(&mut self) -> usize {
        let Some(mark) = self.syntax.begin() else {
            let begun = self.held.trim_start();
            let may_be_call = begun.starts_with(['{', '['])
                || begun.starts_with(PYTHON_TAG)
                || PYTHON_TAG.starts_with(begun);
            if !may_be_call {
                self.state = State::Plain;
                return self.held.len();
            }
            if begun.starts_with(['{', '[']) {
                self.state = State::Call;
            }
            return 0;
        };
        let before = if let Some(at) = self.held.find(mark) {
            self.state = State::Call;
            at
        } else {
            self.held.len() - stop_prefix_len(&self.held, mark)
        };
        // White space before a call is not part of the text.
        self.held.get(..before).map_or(0, |text| text.trim_end().len())
    }

    /// Returns the length of the held text that certainly has the format.
    fn text_of_format(&mut self) -> usize {
        let mark = self.syntax.begin().unwrap_or_default();
        if self.held.starts_with(mark) {
            self.state = State::Call;
        } else if !mark.starts_with(&self.held) {
            self.state = State::Plain;
            return self.held.len();
        }
        0
    }

    /// Finishes the answer; returns the rest of its text and its calls. A malformed call is returned as text, and so
    /// is a call that `max_tokens` truncated (`hit_max_tokens`), because its last argument would be incomplete. From a list
    /// that a grammar enforced, the calls before the truncated one are kept.
    pub(in crate::language) fn finish(self, hit_max_tokens: bool) -> (String, Vec<ToolCall>) {
        let calls = match self.state {
            State::Plain | State::First => None,
            State::Text | State::Call if hit_max_tokens && self.syntax.is_open(&self.held) => None,
            State::Required if hit_max_tokens => Some(parse::whole_calls(&self.held)),
            State::Required => parse::json_calls(&self.held),
            State::Text | State::Call => parse::calls(self.syntax, &self.held, &self.signatures),
        };
        match calls.filter(|calls| !calls.is_empty()) {
            Some(calls) => (String::new(), calls),
            None => (self.held, Vec::new()),
        }
    }
}
