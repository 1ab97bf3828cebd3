//! A tool call.

use serde_json::{Value, json};

/// Name of the output with the calls, each a JSON object with `name` and `arguments`.
pub const TOOL_CALLS: &str = "tool_calls";

/// Call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Arguments, a JSON object.
    pub arguments: Value,
}

impl ToolCall {
    /// Creates a call; `None` without a name, or if the arguments are not an object.
    pub(in crate::language) fn new(name: &str, arguments: Value) -> Option<Self> {
        let name = name.trim();
        (arguments.is_object() && !name.is_empty()).then(|| Self {
            name: name.to_owned(),
            arguments,
        })
    }

    /// Returns the call as an element of [`TOOL_CALLS`].
    pub fn json(&self) -> String {
        json!({"name": self.name, "arguments": self.arguments}).to_string()
    }
}
