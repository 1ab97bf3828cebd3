//! Parses tool calls from the text of an answer.

use serde_json::{Map, Value};

use super::call::ToolCall;
use super::python;
use super::syntax::{DEEPSEEK_CALL, MISTRAL_ARGUMENTS, MISTRAL_CALLS, MISTRAL_ID, PYTHON_TAG, Syntax};

/// Parses the calls of a text that begins with them; `None` if it is malformed. `signatures` are the functions with
/// the schemas of their parameters.
pub(super) fn calls(syntax: Syntax, text: &str, signatures: &[(String, Value)]) -> Option<Vec<ToolCall>> {
    match syntax {
        Syntax::Marked { begin, end } => {
            let bodies = between(text, begin, end).into_iter();
            let calls = bodies.map(|body| marked(body, begin, signatures));
            Some(calls.collect::<Option<Vec<_>>>()?.concat())
        }
        Syntax::Python { begin, end } => {
            let bodies = between(text, begin, end).into_iter();
            Some(bodies.map(python::calls).collect::<Option<Vec<_>>>()?.concat())
        }
        Syntax::Mistral => mistral(text),
        Syntax::Deepseek => deepseek(text),
        Syntax::Bare => {
            let text = text.trim().trim_start_matches(PYTHON_TAG);
            let calls = json_calls(text).or_else(|| python::calls(text))?;
            // Without a marker, JSON is a call only if it names a function of the request.
            let is_known = |call: &ToolCall| signatures.iter().any(|(name, _)| *name == call.name);
            calls.iter().all(is_known).then_some(calls)
        }
    }
}

/// Parses consecutive JSON objects or lists that are calls; semicolons may separate them.
pub(super) fn json_calls(text: &str) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    loop {
        rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ';');
        if rest.is_empty() {
            return Some(calls);
        }
        let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match documents.next()?.ok()? {
            Value::Array(several) => {
                calls.extend(several.iter().map(json_call).collect::<Option<Vec<_>>>()?);
            }
            one => calls.push(json_call(&one)?),
        }
        rest = rest.get(documents.byte_offset()..)?;
    }
}

/// Parses the complete calls of a JSON list that may be truncated.
pub(super) fn whole_calls(text: &str) -> Vec<ToolCall> {
    let is_between = |letter: char| letter.is_whitespace() || letter == ',';
    let mut rest = text.trim_start().strip_prefix('[').unwrap_or_default();
    let mut calls = Vec::new();
    loop {
        rest = rest.trim_start_matches(is_between);
        let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let Some(call) = documents.next().and_then(Result::ok).as_ref().and_then(json_call) else {
            return calls;
        };
        calls.push(call);
        rest = rest.get(documents.byte_offset()..).unwrap_or_default();
    }
}

fn json_call(value: &Value) -> Option<ToolCall> {
    let function = value.get("function");
    let object = function.filter(|function| function.is_object()).unwrap_or(value);
    let field = |names: &[&str]| names.iter().find_map(|name| object.get(name));
    let name = field(&["name", "tool_name", "function"])?.as_str()?;
    let arguments = match field(&["arguments", "parameters", "args"]) {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(arguments) => arguments.clone(),
    };
    ToolCall::new(name, arguments)
}

/// Returns the texts between begin and end markers; the last end marker may be missing.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let mut bodies = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(begin) {
        let (body, next) = after.split_once(end).unwrap_or((after, ""));
        bodies.push(body);
        rest = next;
    }
    bodies
}

/// Parses the text between the markers of a call: JSON, `<function=name>` with parameters (Qwen3-Coder), or a name
/// with `<arg_key>` and `<arg_value>` (GLM 4.5).
fn marked(body: &str, begin: &str, signatures: &[(String, Value)]) -> Option<Vec<ToolCall>> {
    const FUNCTION: &str = "<function=";
    let body = body.trim();
    if begin == FUNCTION {
        return Some(vec![elements(body, signatures)?]);
    }
    if body.starts_with(['{', '[']) {
        return json_calls(body);
    }
    if body.starts_with(FUNCTION) {
        let functions = between(body, FUNCTION, "</function>").into_iter();
        return functions.map(|function| elements(function, signatures)).collect();
    }
    let name = body
        .split(|letter: char| letter == '<' || letter.is_whitespace())
        .next()?;
    let keys = between(body, "<arg_key>", "</arg_key>");
    let values = between(body, "<arg_value>", "</arg_value>");
    if keys.len() != values.len() {
        return None;
    }
    let arguments = keys.into_iter().zip(values);
    let arguments =
        arguments.map(|(key, value)| (key.trim().to_owned(), typed(value, name, key.trim(), signatures)));
    Some(vec![ToolCall::new(name, Value::Object(arguments.collect()))?])
}

/// Parses `name>` followed by JSON, or by elements `<parameter=key>value</parameter>`.
fn elements(body: &str, signatures: &[(String, Value)]) -> Option<ToolCall> {
    let (name, rest) = body.split_once('>')?;
    if rest.trim_start().starts_with('{') {
        return ToolCall::new(name, serde_json::from_str(rest.trim()).ok()?);
    }
    let parameters = between(rest, "<parameter=", "</parameter>").into_iter();
    let parameters = parameters.map(|parameter| {
        let (key, value) = parameter.split_once('>')?;
        Some((key.to_owned(), typed(value, name, key, signatures)))
    });
    ToolCall::new(name, Value::Object(parameters.collect::<Option<Map<_, _>>>()?))
}

/// Converts the text of an argument to a type of the function's parameter, without the line breaks that surround it.
/// If the schema allows a string, other types are chosen only if the schema names them too.
fn typed(text: &str, function: &str, parameter: &str, signatures: &[(String, Value)]) -> Value {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let known = signatures.iter().find(|(name, _)| name == function);
    let schema = known.and_then(|(_, properties)| properties.get(parameter));
    let types = schema.map(types).unwrap_or_default();
    let read = serde_json::from_str(text.trim()).ok();
    let read = read.filter(|value| !types.contains(&"string") || types.iter().any(|kind| is_of(value, kind)));
    read.unwrap_or_else(|| text.into())
}

/// Returns the types that a JSON Schema allows.
fn types(schema: &Value) -> Vec<&str> {
    let own = match schema.get("type") {
        Some(Value::Array(several)) => several.as_slice(),
        one => one.map(std::slice::from_ref).unwrap_or_default(),
    };
    let options = ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|name| schema.get(name)?.as_array());
    let options = options.flatten().flat_map(types);
    own.iter().filter_map(Value::as_str).chain(options).collect()
}

/// Returns whether a value has this JSON Schema type; `value` is not a string.
fn is_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => kind == "number" || kind == "integer" && !number.is_f64(),
        Value::String(_) => false,
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// Parses `[TOOL_CALLS]` before a JSON list, or before each function name, which `[ARGS]` or the arguments follow.
fn mistral(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for body in text.split(MISTRAL_CALLS).skip(1) {
        let body = body.trim();
        if body.starts_with(['{', '[']) {
            calls.extend(json_calls(body)?);
        } else {
            let (name, arguments) = body
                .split_once(MISTRAL_ARGUMENTS)
                .or_else(|| body.split_at_checked(body.find('{')?))?;
            // Some models write the call id after the name.
            let name = name.split(MISTRAL_ID).next()?;
            calls.push(ToolCall::new(name, serde_json::from_str(arguments.trim()).ok()?)?);
        }
    }
    Some(calls)
}

/// Parses names with their arguments; `function` and a Markdown code block may surround them (`DeepSeek` V3 and R1).
fn deepseek(text: &str) -> Option<Vec<ToolCall>> {
    let [begin, separator, end] = DEEPSEEK_CALL;
    let calls = between(text, begin, end).into_iter().map(|body| {
        let (before, after) = body.split_once(separator)?;
        if let Some((name, arguments)) = after.split_once("```json") {
            let arguments = arguments.trim().trim_end_matches('`');
            return ToolCall::new(name, serde_json::from_str(arguments).ok()?);
        }
        ToolCall::new(before, serde_json::from_str(after.trim()).ok()?)
    });
    calls.collect()
}
