//! Separates the calls of an answer from its text while it grows.

use serde_json::Value;

use super::call::ToolCall;
use super::offered::{ToolChoice, Tools};
use super::parse;
use super::syntax::{PYTHON_TAG, Syntax};
use crate::generation::detokenizer::stop_prefix_len;

/// Separates calls from text: it holds back text that is a call, or may become one.
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
    /// No call has begun.
    Text,
    /// What is held is a call.
    Call,
    /// What is held is a JSON list of calls, which a grammar has forced.
    Required,
    /// No call can begin any more.
    Plain,
}

impl CallScanner {
    pub(in crate::language) fn new(syntax: Syntax, tools: &Tools) -> Self {
        Self {
            syntax,
            signatures: tools.signatures(),
            state: match tools.choice {
                ToolChoice::Required | ToolChoice::Function(_) => State::Required,
                ToolChoice::Auto => State::Text,
                ToolChoice::None => State::Plain,
            },
            held: String::new(),
        }
    }

    /// Takes new text of the answer; returns the text that is no call.
    pub(in crate::language) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let shown = match self.state {
            State::Call | State::Required => 0,
            State::Plain => self.held.len(),
            State::Text => self.text_before_calls(),
        };
        let rest = self.held.split_off(shown);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the length of what is certainly no call.
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
        // White space before a call is no part of the text.
        self.held.get(..before).map_or(0, |text| text.trim_end().len())
    }

    /// Ends the answer; returns the rest of its text and its calls. What is no well-formed call is text, and so is a call that the
    /// maximum of tokens has cut off (`is_cut`): its last argument would be a part of one. Of a list that a grammar has forced, the calls
    /// before the one that was cut off remain.
    pub(in crate::language) fn finish(self, is_cut: bool) -> (String, Vec<ToolCall>) {
        let calls = match self.state {
            State::Plain => None,
            State::Text | State::Call if is_cut && self.syntax.is_open(&self.held) => None,
            State::Required if is_cut => Some(parse::whole_calls(&self.held)),
            State::Required => parse::json_calls(&self.held),
            State::Text | State::Call => parse::calls(self.syntax, &self.held, &self.signatures),
        };
        match calls.filter(|calls| !calls.is_empty()) {
            Some(calls) => (String::new(), calls),
            None => (self.held, Vec::new()),
        }
    }
}
