//! The parts of a chat's answer: what the model thinks before it answers, the text, and calls of tools.
//!
//! Families of models mark their reasoning in different ways, which their chat templates show.

mod harmony;
mod reasoning;

use super::tools::{CallScanner, ToolCall, Tools};
use harmony::Harmony;
use reasoning::Marked;

/// Name of the output that holds the reasoning of an answer.
pub const REASONING: &str = "reasoning";

/// Name of the output that counts the tokens of the reasoning.
pub const REASONING_TOKENS: &str = "reasoning_tokens";

/// Syntax of a model's reasoning. The chat template of its checkpoint shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReasoningSyntax {
    /// Between two marks, before the text.
    Marked {
        /// The mark before the reasoning, which the prompt may end with.
        begin: &'static str,
        /// The mark after it.
        end: &'static str,
    },
    /// Messages on channels, which also hold the text and calls of tools (gpt-oss).
    Harmony,
}

impl ReasoningSyntax {
    /// Returns the syntax that a chat template shows; `None` if it shows none.
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
        // Templates of some models that think only name the mark that ends it.
        let shown = MARKS
            .into_iter()
            .find(|marks| marks.iter().any(|mark| template.contains(mark)));
        shown.map(|[begin, end]| Self::Marked { begin, end })
    }

    /// Returns the marks of the reasoning, which may be special tokens.
    pub(super) fn marks(self) -> Vec<&'static str> {
        match self {
            Self::Marked { begin, end } => vec![begin, end],
            Self::Harmony => harmony::MARKS.to_vec(),
        }
    }

    /// Returns whether an answer to this prompt begins within the reasoning.
    pub(super) fn is_open_after(self, prompt: &str) -> bool {
        match self {
            Self::Marked { begin, .. } => prompt.trim_end().ends_with(begin),
            Self::Harmony => false,
        }
    }
}

/// New parts of an answer.
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

/// Separates the parts of an answer while it grows.
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
    /// Creates one for an answer with calls of these tools, and with reasoning of this syntax; `is_open` says whether it begins within
    /// the reasoning.
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
            // Channels say what is a call.
            calls: calls.filter(|_| !matches!(reasoning, Some(Reasoning::Harmony(_)))),
            reasoning,
        }
    }

    /// Returns whether the answer so far ends within the reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        match &self.reasoning {
            Some(Reasoning::Marked(marked)) => marked.is_reasoning(),
            Some(Reasoning::Harmony(harmony)) => harmony.is_reasoning(),
            None => false,
        }
    }

    /// Takes new text of the answer; returns what is certain of its parts.
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

    /// Ends the answer; returns the rest of its parts, and its calls. `is_cut` says that the maximum of tokens ended it.
    pub(super) fn finish(mut self, is_cut: bool) -> (Parts, Vec<ToolCall>) {
        let (rest, mut calls) = match self.reasoning.take() {
            Some(Reasoning::Marked(marked)) => (marked.finish(), Vec::new()),
            Some(Reasoning::Harmony(harmony)) => harmony.finish(is_cut),
            None => Default::default(),
        };
        let mut parts = self.without_calls(rest);
        if let Some(scanner) = self.calls {
            let (text, found) = scanner.finish(is_cut);
            parts.text.push_str(&text);
            calls.extend(found);
        }
        (parts, calls)
    }
}

#[cfg(test)]
mod tests;
