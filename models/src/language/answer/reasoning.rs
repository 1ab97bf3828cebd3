//! Parser of reasoning between two markers.

use super::Parts;
use crate::generation::detokenizer::stop_prefix_len;

/// Separates reasoning between two markers from the text after it.
#[derive(Debug, Clone)]
pub(super) struct Marked {
    begin: &'static str,
    end: &'static str,
    state: State,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space and a prefix of the begin marker have been received.
    Start,
    /// Inside the reasoning, before its first letter.
    Begun,
    Reasoning,
    /// After the reasoning, before the first letter of the text.
    Ended,
    Text,
}

impl Marked {
    pub(super) const fn new(begin: &'static str, end: &'static str, is_open: bool) -> Self {
        Self {
            begin,
            end,
            state: if is_open { State::Begun } else { State::Start },
            held: String::new(),
        }
    }

    pub(super) const fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Begun | State::Reasoning)
    }

    pub(super) fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        let mut parts = Parts::default();
        loop {
            match self.state {
                State::Start => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(self.begin) {
                        self.held = rest.to_owned();
                        self.state = State::Begun;
                    } else if self.begin.starts_with(begun) {
                        return parts;
                    } else {
                        self.state = State::Text;
                    }
                }
                State::Begun => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return parts;
                    }
                    self.state = State::Reasoning;
                }
                State::Reasoning => {
                    let Some((reasoning, rest)) = self.held.split_once(self.end) else {
                        // White space before the end marker is not part of the reasoning.
                        let certain = self.held.len() - stop_prefix_len(&self.held, self.end);
                        let certain = self.held.get(..certain).map_or(0, |text| text.trim_end().len());
                        let held = self.held.split_off(certain);
                        parts.reasoning.push_str(&std::mem::replace(&mut self.held, held));
                        return parts;
                    };
                    parts.reasoning.push_str(reasoning.trim_end());
                    self.held = rest.to_owned();
                    self.state = State::Ended;
                }
                State::Ended => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return parts;
                    }
                    self.state = State::Text;
                }
                State::Text => {
                    parts.text.push_str(&std::mem::take(&mut self.held));
                    return parts;
                }
            }
        }
    }

    pub(super) fn finish(self) -> Parts {
        let mut parts = Parts::default();
        match self.state {
            State::Begun | State::Reasoning => parts.reasoning = self.held,
            State::Start | State::Ended | State::Text => parts.text = self.held,
        }
        parts
    }
}
