//! Tools that a request offers to a language model, and the tool calls in its answer.
//!
//! The chat template writes the tools into the prompt. Model families write calls in different ways (`syntax`), which
//! are detected from their chat templates. A required call is sampled under a grammar, which is the same for all
//! models. Beside a response format, an answer either has the format or begins with the marker of a call.

mod call;
mod offered;
mod parse;
mod python;
mod scanner;
mod syntax;

pub use call::{TOOL_CALLS, ToolCall};
pub(super) use offered::FORMAT_BESIDE_TOOLS;
pub use offered::{PARALLEL_TOOL_CALLS, TOOL_CHOICE, TOOLS, ToolChoice, Tools};
pub(super) use scanner::CallScanner;
pub(super) use syntax::Syntax;

#[cfg(test)]
mod tests;
