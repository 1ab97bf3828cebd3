//! Tools that a request offers to a language model, and the calls of its answer.
//!
//! The chat template writes the tools into the prompt. Families of models write calls in different ways (`syntax`), which
//! their chat templates show. A call that is required is sampled under a grammar, the same for all models.

mod call;
mod offered;
mod parse;
mod python;
mod scanner;
mod syntax;

pub use call::{TOOL_CALLS, ToolCall};
pub use offered::{FORMAT_BESIDE_TOOLS, PARALLEL_TOOL_CALLS, TOOL_CHOICE, TOOLS, ToolChoice, Tools};
pub(super) use scanner::CallScanner;
pub(super) use syntax::Syntax;

#[cfg(test)]
mod tests;
