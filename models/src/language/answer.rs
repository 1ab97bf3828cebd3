//! Splits a chat answer into reasoning, text and tool calls.
//!
//! Model families delimit their reasoning in different ways, which are detected from their chat templates.

mod harmony;
mod reasoning;

use super::tools::{CallScanner, ToolCall, Tools};
use harmony::Harmony;
use reasoning::Marked;

/// Name of the output with the reasoning of an answer.
pub const REASONING: &str = "reasoning";

/// Name of the output with the number of reasoning tokens.
pub const REASONING_TOKENS: &str = "reasoning_tokens";

/// Syntax of a model's reasoning, detected from the chat template of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReasoningSyntax {
    /// Reasoning between two markers, before the text.
    Marked {
        /// Marker before the reasoning; the prompt may end with it.
        begin: &'static str,
        /// Marker after the reasoning.
        end: &'static str,
    },
    /// Messages on channels, which also hold the text and the tool calls (gpt-oss).
    Harmony,
}

impl ReasoningSyntax {
    /// Detects the syntax from a chat template; `None` if the template contains no markers.
    pub(super) fn of_template(template: &str) -> Option<Self> {
        const MARKS: [[&str; 2]; 4] = [
            ["<think>", "</think>"],
            ["[THINK]", "[/THINK]"],
            ["<seed:think>", "</seed:think>"],
            ["<|START_THINKING|>", "<|END_THINKING|>"],
        ];
        if template.contains(harmony::CHANNEL) && template.contains(harmony::MESSAGE) {
            return Some(Self::Harmony);
        }
        // Templates of some reasoning models contain only the end marker.
        let shown = MARKS
            .into_iter()
            .find(|marks| marks.iter().any(|mark| template.contains(mark)));
        shown.map(|[begin, end]| Self::Marked { begin, end })
    }

    /// Returns the reasoning markers, which may be special tokens.
    pub(super) fn marks(self) -> Vec<&'static str> {
        match self {
            Self::Marked { begin, end } => vec![begin, end],
            Self::Harmony => harmony::MARKS.to_vec(),
        }
    }

    /// Returns whether a prompt ends inside the reasoning, so that the answer begins there.
    pub(super) fn is_open_after(self, prompt: &str) -> bool {
        match self {
            Self::Marked { begin, .. } => prompt.trim_end().ends_with(begin),
            Self::Harmony => false,
        }
    }
}

/// Parts of an answer since the previous update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Parts {
    pub(super) reasoning: String,
    pub(super) text: String,
}

impl Parts {
    pub(super) fn append(&mut self, next: &Self) {
        self.reasoning.push_str(&next.reasoning);
        self.text.push_str(&next.text);
    }
}

/// Splits an answer into its parts while it is generated.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerScanner {
    reasoning: Option<Reasoning>,
    calls: Option<CallScanner>,
}

#[derive(Debug, Clone)]
enum Reasoning {
    Marked(Marked),
    Harmony(Harmony),
}

impl AnswerScanner {
    /// Creates a scanner for an answer with calls of `tools` and with reasoning in the given syntax. The boolean
    /// states whether the answer begins inside the reasoning.
    pub(super) fn new(
        reasoning: Option<(ReasoningSyntax, bool)>,
        calls: Option<CallScanner>,
        tools: Option<&Tools>,
    ) -> Self {
        let names = || tools.map(Tools::names).unwrap_or_default();
        let reasoning = reasoning.map(|(syntax, is_open)| match syntax {
            ReasoningSyntax::Marked { begin, end } => Reasoning::Marked(Marked::new(begin, end, is_open)),
            ReasoningSyntax::Harmony => Reasoning::Harmony(Harmony::new(names())),
        });
        Self {
            // With channels, message headers identify the calls.
            calls: calls.filter(|_| !matches!(reasoning, Some(Reasoning::Harmony(_)))),
            reasoning,
        }
    }

    /// Returns whether the answer so far ends inside the reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        match &self.reasoning {
            Some(Reasoning::Marked(marked)) => marked.is_reasoning(),
            Some(Reasoning::Harmony(harmony)) => harmony.is_reasoning(),
            None => false,
        }
    }

    /// Appends new text of the answer; returns the parts that are certain.
    pub(super) fn push(&mut self, text: &str) -> Parts {
        let parts = match &mut self.reasoning {
            Some(Reasoning::Marked(marked)) => marked.push(text),
            Some(Reasoning::Harmony(harmony)) => harmony.push(text),
            None => Parts {
                text: text.to_owned(),
                ..Parts::default()
            },
        };
        self.without_calls(parts)
    }

    fn without_calls(&mut self, parts: Parts) -> Parts {
        match &mut self.calls {
            Some(calls) => Parts {
                text: calls.push(&parts.text),
                ..parts
            },
            None => parts,
        }
    }

    /// Finishes the answer; returns the rest of its parts, and its calls. `hit_max_tokens` states that `max_tokens` ended it.
    pub(super) fn finish(mut self, hit_max_tokens: bool) -> (Parts, Vec<ToolCall>) {
        let (rest, mut calls) = match self.reasoning.take() {
            Some(Reasoning::Marked(marked)) => (marked.finish(), Vec::new()),
            Some(Reasoning::Harmony(harmony)) => harmony.finish(hit_max_tokens),
            None => Default::default(),
        };
        let mut parts = self.without_calls(rest);
        if let Some(scanner) = self.calls {
            let (text, found) = scanner.finish(hit_max_tokens);
            parts.text.push_str(&text);
            calls.extend(found);
        }
        (parts, calls)
    }
}

#[cfg(test)]
mod tests;
