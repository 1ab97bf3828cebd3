//! Syntaxes of tool calls.

/// Syntax of a model's tool calls, detected from the chat template of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::language) enum Syntax {
    /// Each call between two markers: JSON, or the parts of a call as elements (Hermes, Qwen, GLM, Granite, Phi).
    Marked {
        /// Marker before a call.
        begin: &'static str,
        /// Marker after a call, which may be missing at the end of an answer.
        end: &'static str,
    },
    /// Python calls in a list between two markers (LFM2).
    Python {
        /// Marker before the list.
        begin: &'static str,
        /// Marker after the list.
        end: &'static str,
    },
    /// `[TOOL_CALLS]`, then a JSON list of calls, or a name and its arguments (Mistral).
    Mistral,
    /// Names and arguments between several markers (`DeepSeek`).
    Deepseek,
    /// No markers: the whole answer is one or several calls, as JSON or a list of Python calls (Llama).
    Bare,
}

/// Marker of `DeepSeek` before the list of calls.
pub(super) const DEEPSEEK_CALLS: &str = "<｜tool▁calls▁begin｜>";
pub(super) const DEEPSEEK_CALL: [&str; 3] =
    ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"];

/// Marker of Mistral before calls.
pub(super) const MISTRAL_CALLS: &str = "[TOOL_CALLS]";

/// Marker of Mistral before the arguments of a call.
pub(super) const MISTRAL_ARGUMENTS: &str = "[ARGS]";

/// Marker of Mistral before the id of a call.
pub(super) const MISTRAL_ID: &str = "[CALL_ID]";

/// Markers inside a call.
const ELEMENTS: [&str; 8] = [
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// Marker that Llama may write before a call.
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";

impl Syntax {
    /// Detects the syntax from a chat template.
    pub(in crate::language) fn of_template(template: &str) -> Self {
        const MARKED: [[&str; 2]; 4] = [
            ["<tool_call>", "</tool_call>"],
            ["<|tool_call|>", "<|/tool_call|>"],
            ["<|START_ACTION|>", "<|END_ACTION|>"],
            ["<function=", "</function>"],
        ];
        if template.contains(MISTRAL_CALLS) {
            return Self::Mistral;
        }
        if template.contains(DEEPSEEK_CALLS) {
            return Self::Deepseek;
        }
        let [begin, end] = ["<|tool_call_start|>", "<|tool_call_end|>"];
        if template.contains(begin) {
            return Self::Python { begin, end };
        }
        let marked = MARKED.iter().find(|[begin, _]| template.contains(begin));
        marked.map_or(Self::Bare, |[begin, end]| Self::Marked { begin, end })
    }

    /// Returns the marker that begins calls; `None` if only the start of an answer can be a call.
    pub(in crate::language) const fn begin(self) -> Option<&'static str> {
        match self {
            Self::Marked { begin, .. } | Self::Python { begin, .. } => Some(begin),
            Self::Mistral => Some(MISTRAL_CALLS),
            Self::Deepseek => Some(DEEPSEEK_CALLS),
            Self::Bare => None,
        }
    }

    /// Returns the markers of calls, which may be special tokens.
    pub(in crate::language) fn marks(self) -> Vec<&'static str> {
        match self {
            Self::Marked { begin, end } => [&[begin, end], &ELEMENTS[..]].concat(),
            Self::Python { begin, end } => vec![begin, end],
            Self::Mistral => vec![MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_ID],
            Self::Deepseek => [&[DEEPSEEK_CALLS], &DEEPSEEK_CALL[..]].concat(),
            Self::Bare => vec![PYTHON_TAG],
        }
    }

    /// Returns whether the last call of a text lacks its end marker, in a syntax where only that marker shows that its
    /// arguments are complete.
    pub(super) fn is_open(self, text: &str) -> bool {
        match self {
            Self::Marked { begin, end } => text.rfind(begin) > text.rfind(end),
            Self::Python { .. } | Self::Mistral | Self::Deepseek | Self::Bare => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_show_the_syntax() {
        for (template, begin) in [
            (
                "<tools>{{ tools }}</tools> return within <tool_call></tool_call>",
                Some("<tool_call>"),
            ),
            (
                "{%- if tools %}[AVAILABLE_TOOLS]{%- endif %}[TOOL_CALLS][",
                Some("[TOOL_CALLS]"),
            ),
            (
                "List of tools: <|tool_list_start|> <|tool_call_start|>",
                Some("<|tool_call_start|>"),
            ),
            (
                "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'",
                Some("<｜tool▁calls▁begin｜>"),
            ),
            (
                "Respond in the format {\"name\": function name, \"parameters\": ...}",
                None,
            ),
        ] {
            assert_eq!(Syntax::of_template(template).begin(), begin);
        }
    }
}
