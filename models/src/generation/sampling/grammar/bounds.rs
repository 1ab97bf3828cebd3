//! Limits for compiling grammars. Without them, a schema of a few kilobytes may take minutes, because llguidance
//! compares its parts with each other. Within them, compiling takes about a second, and fits the stack of the compiler
//! thread.

use serde_json::Value;

use super::{Grammar, JSON};

/// Maximum values of a JSON Schema; strings count in lists of names, but not in `enum`.
const MAX_VALUES: usize = 2_000;

/// Maximum values of all schemas in a grammar.
const MAX_ALL_VALUES: usize = 8_000;

/// Maximum `patternProperties` of all schemas in a grammar; each pair is compared.
const MAX_PATTERNS: usize = 64;

/// Maximum least common multiple of a schema's `multipleOf`, without trailing zeros: llguidance has a state per
/// remainder.
const MAX_MULTIPLE: u64 = 10_000;

/// Counts over the schemas of a grammar.
#[derive(Default)]
struct Counts {
    values: usize,
    patterns: usize,
    multiples: Vec<f64>,
}

/// Rejects a grammar that would take too long to compile.
///
/// # Errors
/// The reason.
pub(super) fn check(grammar: &Grammar) -> Result<(), String> {
    let mut all = Counts::default();
    match grammar {
        Grammar::FormatOrCalls { format, .. } => return check(format),
        Grammar::JsonSchema(schema) => all.add(schema)?,
        Grammar::Lark(grammar) => {
            for (at, word) in grammar.match_indices(JSON) {
                let behind = grammar.get(at + word.len()..).unwrap_or_default();
                let mut documents = serde_json::Deserializer::from_str(behind).into_iter();
                // The keyword inside a string is not followed by a schema.
                if let Some(Ok(schema)) = documents.next() {
                    all.add(&schema)?;
                }
            }
        }
        Grammar::Regex(_) | Grammar::Choice(_) => {}
    }
    Ok(())
}

impl Counts {
    /// Counts a schema.
    fn add(&mut self, schema: &Value) -> Result<(), String> {
        let mut own = Self::default();
        own.count(schema);
        self.values += own.values;
        self.patterns += own.patterns;
        for (found, most, what) in [
            (own.values, MAX_VALUES, "values"),
            (self.values, MAX_ALL_VALUES, "values in all schemas together"),
            (self.patterns, MAX_PATTERNS, "patterns of properties"),
        ] {
            if found > most {
                return Err(format!(
                    "a JSON Schema has {found} {what}, and at most {most} are supported; use a smaller one"
                ));
            }
        }
        if common_multiple(&own.multiples).is_none_or(|common| common > MAX_MULTIPLE) {
            return Err(format!(
                "the least common multiple of `multipleOf` in a JSON Schema has at most {MAX_MULTIPLE} before its zeros; leave `multipleOf` out"
            ));
        }
        Ok(())
    }

    fn count(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.count(item)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        (_, Value::String(_)) => {}
                        ("enum", Value::Array(items)) => {
                            let others = items.iter().filter(|item| !item.is_string());
                            others.for_each(|item| self.count(item));
                        }
                        (name, field) => {
                            match (name, field) {
                                ("patternProperties", Value::Object(patterns)) => {
                                    self.patterns += patterns.len();
                                }
                                ("multipleOf", Value::Number(number)) => {
                                    self.multiples.extend(number.as_f64());
                                }
                                _ => {}
                            }
                            self.count(field);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns the least common multiple of numbers as integers, without trailing zeros; `None` if it is too large.
fn common_multiple(numbers: &[f64]) -> Option<u64> {
    let mut common: u64 = 1;
    let mut digits = 0;
    for number in numbers {
        // The shortest decimal representation has the digits of the schema.
        let text = format!("{number}");
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let mut own: u64 = format!("{whole}{part}").trim_start_matches('-').parse().ok()?;
        let places = part.len();
        let raised = |value: u64, by: usize| value.checked_mul(10_u64.checked_pow(u32::try_from(by).ok()?)?);
        common = raised(common, places.saturating_sub(digits))?;
        own = raised(own, digits.saturating_sub(places))?;
        digits = digits.max(places);
        // Zero is rejected when the schema is parsed.
        if own > 0 {
            common = (common / common_divisor(common, own)).checked_mul(own)?;
        }
    }
    while common > 0 && common.is_multiple_of(10) {
        common /= 10;
    }
    Some(common)
}

const fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn multiples_are_counted_without_their_zeros() {
        for (numbers, common) in [
            (&[][..], Some(1)),
            (&[0.01], Some(1)),
            (&[0.5, 3.0], Some(3)),
            (&[86_400.0], Some(864)),
            (&[0.3, 0.07], Some(21)),
            (&[4.0, 6.0], Some(12)),
            (&[999_983.0], Some(999_983)),
            (&[9_973.0, 9_974.0], Some(99_470_702)),
            (&[1e300], None),
            (&[0.0], Some(1)),
        ] {
            assert_eq!(common_multiple(numbers), common, "{numbers:?}");
        }
    }

    #[test]
    fn what_takes_long_to_compile_is_refused() {
        let properties = |count: usize| {
            let named = (0..count).map(|number| (format!("p{number}"), json!({"type": "string"})));
            Value::Object(named.collect())
        };
        let names: Vec<String> = (0..3_000).map(|number| number.to_string()).collect();
        for (schema, fine) in [
            (json!({"type": "object", "properties": properties(400)}), true),
            (json!({"type": "object", "properties": properties(3_000)}), false),
            (json!({"enum": names}), true),
            (json!({"type": "object", "required": names}), false),
            (
                json!({"type": "object", "patternProperties": properties(64)}),
                true,
            ),
            (
                json!({"type": "object", "patternProperties": properties(65)}),
                false,
            ),
            (json!({"type": "integer", "multipleOf": 15}), true),
            (json!({"type": "integer", "multipleOf": 999_983}), false),
            (
                json!({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_974}]}),
                false,
            ),
        ] {
            let within = format!("# a %json comment\nstart: \"%json \" a\na: %json {schema}\n");
            for grammar in [Grammar::JsonSchema(schema), Grammar::Lark(within)] {
                assert_eq!(check(&grammar).is_ok(), fine, "{grammar:?}");
            }
        }
    }
}
