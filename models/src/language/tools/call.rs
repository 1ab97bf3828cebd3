//! A call of a tool.

use serde_json::{Value, json};

/// Name of the output that holds the calls, each a JSON object of `name` and `arguments`.
pub const TOOL_CALLS: &str = "tool_calls";

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: Value,
}

impl ToolCall {
    /// Returns a call; `None` without a name, or if the arguments are no object.
    pub(in crate::language) fn new(name: &str, arguments: Value) -> Option<Self> {
        let name = name.trim();
        (arguments.is_object() && !name.is_empty()).then(|| Self {
            name: name.to_owned(),
            arguments,
        })
    }

    /// Returns the call as an element of the output `tool_calls`.
    pub fn json(&self) -> String {
        json!({"name": self.name, "arguments": self.arguments}).to_string()
    }
}
