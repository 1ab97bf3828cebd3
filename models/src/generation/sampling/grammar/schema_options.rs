//! llguidance's options for a JSON Schema.

use serde_json::{Map, Value, json};

/// Key of llguidance's options in a JSON Schema.
pub(super) const OPTIONS: &str = "x-guidance";

/// Option of llguidance to ignore unsupported keywords.
const LENIENT: &str = "lenient";

/// String formats that llguidance supports; others are annotations in JSON Schema.
const FORMATS: [&str; 11] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "unknown",
];

/// Sets options in a JSON Schema; `white_space` is a regular expression of the text allowed between two elements.
/// Options in the schema take precedence. Unsupported formats are treated as annotations, even in a [`strict`] schema.
pub(crate) fn with_options(mut schema: Value, white_space: &str) -> Value {
    if is_strict(&schema) {
        drop_unknown_formats(&mut schema);
    }
    if let Some(schema) = schema.as_object_mut() {
        // `oneOf` is treated like `anyOf`: whether a second branch matches cannot be checked token by token.
        let defaults = json!({"whitespace_pattern": white_space, "coerce_one_of": true, LENIENT: true});
        let stated = schema.entry(OPTIONS).or_insert_with(|| json!({}));
        if let (Some(stated), Value::Object(defaults)) = (stated.as_object_mut(), defaults) {
            for (name, value) in defaults {
                stated.entry(name).or_insert(value);
            }
        }
    }
    schema
}

/// Marks a JSON Schema as strict: unsupported keywords are an error.
pub(crate) fn strict(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        let options = schema.entry(OPTIONS).or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut() {
            options.insert(LENIENT.to_owned(), false.into());
        }
    }
    schema
}

/// Reverts [`strict`]; returns whether the schema was strict.
pub(crate) fn take_strict(schema: &mut Value) -> bool {
    if !is_strict(schema) {
        return false;
    }
    if let Some(schema) = schema.as_object_mut()
        && let Some(options) = schema.get_mut(OPTIONS).and_then(Value::as_object_mut)
    {
        options.remove(LENIENT);
        if options.is_empty() {
            schema.remove(OPTIONS);
        }
    }
    true
}

fn is_strict(schema: &Value) -> bool {
    let options = schema.get(OPTIONS);
    options.and_then(|options| options.get(LENIENT)) == Some(&Value::Bool(false))
}

/// Removes unsupported formats, except inside constants and examples, which are not schemas.
fn drop_unknown_formats(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(drop_unknown_formats),
        Value::Object(schema) => {
            let is_known = |format: &Value| format.as_str().is_none_or(|format| FORMATS.contains(&format));
            if !schema.get("format").is_none_or(is_known) {
                schema.remove("format");
            }
            for (keyword, value) in schema.iter_mut() {
                match (keyword.as_str(), value) {
                    ("const" | "enum" | "default" | "examples", _) => {}
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                        Value::Object(named),
                    ) => each(named),
                    (_, value) => drop_unknown_formats(value),
                }
            }
        }
        _ => {}
    }
}

fn each(named: &mut Map<String, Value>) {
    named.values_mut().for_each(drop_unknown_formats);
}
