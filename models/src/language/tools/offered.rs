//! The tools that a request offers.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::generation::Grammar;
use crate::generation::sampling::grammar::{NARROW_SPACE, strict, with_options};
use crate::language::inputs::{bad_input, only_text};
use crate::runtime::model::{Inputs, ModelError};
use crate::runtime::tensor::{Datatype, Tensor};

/// Name of the input with the tools, a JSON array.
pub const TOOLS: &str = "tools";

/// Name of the input that states whether a tool must be called.
pub const TOOL_CHOICE: &str = "tool_choice";

/// Name of the input that states whether an answer may have several calls.
pub const PARALLEL_TOOL_CALLS: &str = "parallel_tool_calls";

/// Reason for rejecting a response format together with tools that the model may call, if no marker begins its calls:
/// nothing tells which of the two an answer is.
pub(in crate::language) const FORMAT_BESIDE_TOOLS: &str = "this model's calls begin without a marker, so that a format and tools that it may call exclude each other; set `tool_choice` to `none` or `required`";

/// Type of a choice that allows a part of the tools.
const ALLOWED: &str = "\"allowed_tools\"";

/// Maximum number of tools per request.
const MAX_TOOLS: usize = 512;

/// Maximum number of calls per answer that a grammar allows.
const MAX_CALLS: usize = 32;

/// Which tools may or must be called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The prompt does not contain the tools.
    None,
    /// At least one tool must be called.
    Required,
    /// This function must be called, exactly once.
    Function(String),
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// The tools as the request states them.
    pub tools: Vec<Value>,
    /// Which tools may or must be called.
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

/// A tool in the format of the `OpenAI` API.
#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: String,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    parameters: Option<Value>,
    /// Whether the arguments must match the whole schema.
    #[serde(default)]
    strict: Option<bool>,
}

impl Tools {
    /// Parses the tools of a request; `None` without tools, or if none may be called.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a tool that is not a function, two functions of the same name, or a required tool
    /// that is missing.
    pub fn read(inputs: &Inputs) -> Result<Option<Self>, ModelError> {
        let text = |name: &str| {
            inputs
                .iter()
                .find(|input| input.name == name)
                .map(only_text)
                .transpose()
        };
        let choice = text(TOOL_CHOICE)?.map(choice).transpose()?;
        let tools: Vec<Value> = match text(TOOLS)? {
            None => Vec::new(),
            Some(json) => serde_json::from_str(json)
                .map_err(|error| bad_input(TOOLS, format!("it is not a JSON array of functions: {error}")))?,
        };
        if tools.len() > MAX_TOOLS {
            return Err(bad_input(
                TOOLS,
                format!("at most {MAX_TOOLS} tools are supported"),
            ));
        }
        let own = Self {
            tools,
            choice: choice.unwrap_or_default(),
            parallel: parallel(inputs)?,
        };
        let functions = own.functions()?;
        let names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
        let twice = names
            .iter()
            .enumerate()
            .find(|(at, name)| names.iter().take(*at).any(|other| other == *name));
        if let Some((_, name)) = twice {
            return Err(bad_input(TOOLS, format!("two functions have the name `{name}`")));
        }
        match &own.choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Function(name) if !names.contains(&name.as_str()) => {
                return Err(bad_input(
                    TOOL_CHOICE,
                    format!("no tool has the name `{name}`; the tools are {names:?}"),
                ));
            }
            ToolChoice::Required if names.is_empty() => {
                return Err(bad_input(TOOL_CHOICE, "a call is required, and `tools` is empty"));
            }
            _ => {}
        }
        Ok(Some(own).filter(|own| !own.tools.is_empty()))
    }

    fn functions(&self) -> Result<Vec<Function>, ModelError> {
        let functions = self.tools.iter().map(|tool| match Tool::deserialize(tool) {
            Ok(Tool { kind, function }) if kind == "function" => {
                let is_schema = function
                    .parameters
                    .as_ref()
                    .is_none_or(|schema| schema.is_object() || schema.is_null());
                if is_schema {
                    Ok(function)
                } else {
                    Err(bad_input(
                        TOOLS,
                        format!("the `parameters` of `{}` are no JSON Schema", function.name),
                    ))
                }
            }
            Ok(_) => Err(other_kind(tool)),
            Err(_) if kind_of(tool).is_some_and(|kind| kind != "function") => Err(other_kind(tool)),
            Err(error) => Err(bad_input(
                TOOLS,
                format!("a tool is not `{{type, function: {{name}}}}`: {error}"),
            )),
        });
        functions.collect()
    }

    /// Returns whether the answer must be a call.
    pub(in crate::language) const fn is_required(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Function(_))
    }

    /// Returns the names of the functions.
    pub(in crate::language) fn names(&self) -> Vec<String> {
        let functions = self.functions().unwrap_or_default().into_iter();
        functions.map(|function| function.name).collect()
    }

    /// Returns the names of the functions, each with the schemas of its parameters.
    pub(super) fn signatures(&self) -> Vec<(String, Value)> {
        let functions = self.functions().unwrap_or_default().into_iter();
        let signatures = functions.map(|function| {
            let properties = function
                .parameters
                .as_ref()
                .and_then(|schema| schema.get("properties"));
            (function.name, properties.cloned().unwrap_or_default())
        });
        signatures.collect()
    }

    /// Returns the grammar of an answer that consists of calls: `[{"name": ..., "arguments": ...}, ...]`. `None` if
    /// the model decides.
    pub fn grammar(&self) -> Option<Grammar> {
        let (named, most) = match &self.choice {
            ToolChoice::Auto | ToolChoice::None => return None,
            ToolChoice::Required => (None, if self.parallel { MAX_CALLS } else { 1 }),
            ToolChoice::Function(name) => (Some(name), 1),
        };
        let functions = self.functions().unwrap_or_default();
        let functions = functions
            .iter()
            .filter(|function| named.is_none_or(|name| *name == function.name));
        let (mut calls, mut rules) = (Vec::new(), Vec::new());
        for (number, function) in functions.enumerate() {
            let before = format!(
                "{{\"name\": {}, \"arguments\": ",
                Value::from(function.name.as_str())
            );
            let schema = function.parameters.as_ref().filter(|schema| schema.is_object());
            let schema = schema
                .cloned()
                .unwrap_or_else(|| json!({"type": "object", "properties": {}}));
            let schema = if function.strict == Some(true) {
                strict(schema)
            } else {
                schema
            };
            let schema = with_options(schema, NARROW_SPACE);
            // Each schema is its own document, so that its references resolve inside it.
            rules.push(format!(
                "f{number}: {} a{number} \"}}\"\na{number}: %json {schema}\n",
                Value::from(before)
            ));
            calls.push(format!("f{number}"));
        }
        let more = match most - 1 {
            0 => String::new(),
            more => format!("(\", \" call){{0,{more}}} "),
        };
        let list = format!(
            "start: \"[\" call {more}\"]\"\ncall: {}\n{}",
            calls.join(" | "),
            rules.concat()
        );
        Some(Grammar::Lark(list))
    }
}

fn kind_of(tool: &Value) -> Option<&str> {
    tool.get("type").and_then(Value::as_str)
}

/// Returns the rejection of a tool that is not a function.
fn other_kind(tool: &Value) -> ModelError {
    let kind = kind_of(tool).unwrap_or_default();
    bad_input(
        TOOLS,
        format!("a tool has the type `{kind}`; only functions are supported"),
    )
}

/// Returns whether an answer may have several calls; true by default.
fn parallel(inputs: &[Tensor]) -> Result<bool, ModelError> {
    let Some(input) = inputs.iter().find(|input| input.name == PARALLEL_TOOL_CALLS) else {
        return Ok(true);
    };
    match (input.datatype, input.data.as_ref()) {
        (Datatype::Bool, [value]) => Ok(*value != 0),
        _ => Err(bad_input(PARALLEL_TOOL_CALLS, "it must be one BOOL")),
    }
}

/// Parses a tool choice: `auto`, `none`, `required`, or an object that names a function.
fn choice(text: &str) -> Result<ToolChoice, ModelError> {
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        function: Option<Function>,
    }
    match text {
        "auto" => return Ok(ToolChoice::Auto),
        "none" => return Ok(ToolChoice::None),
        "required" | "any" => return Ok(ToolChoice::Required),
        _ => {}
    }
    let named: Option<Named> = serde_json::from_str(text).ok();
    let name = named.and_then(|named| named.function.map(|function| function.name).or(named.name));
    name.map(ToolChoice::Function).ok_or_else(|| {
        if text.contains(ALLOWED) {
            let reason = "`allowed_tools` is not supported; send only the allowed tools as `tools`, and their mode as `tool_choice`";
            return bad_input(TOOL_CHOICE, reason);
        }
        bad_input(TOOL_CHOICE, "it is none of `auto`, `none`, `required` and `{\"type\": \"function\", \"function\": {\"name\": ...}}`")
    })
}
