//! Edits of a valid JSON tree. Arbitrary bytes are hardly ever a plan; a plan with one value changed is nearly one.

use serde_json::{Value, json};

use crate::script::Script;

/// Most edits of one tree.
const MAX_EDITS: usize = 8;
/// A tree of more values is edited no further: an edit may double it.
const MAX_VALUES: usize = 10_000;

/// One of the templates, edited as the script says until it is over.
pub fn edited(templates: &[&str], script: &mut Script<'_>) -> Value {
    let template = script.one_of(templates);
    let mut tree = serde_json::from_str(template).expect("the template is JSON");
    edit(&mut tree, script);
    tree
}

/// Edits a tree as the script says until it is over.
pub fn edit(tree: &mut Value, script: &mut Script<'_>) {
    for _ in 0..MAX_EDITS {
        let values = count(tree);
        if script.is_over() || values > MAX_VALUES {
            return;
        }
        let mut other = script.below(values);
        let other = nth(tree, &mut other).cloned().unwrap_or_default();
        let mut place = script.below(values);
        if let Some(value) = nth(tree, &mut place) {
            change(value, other, script);
        }
    }
}

/// Changes a value: for any scalar, for another value of the tree, by a step, by one entry less, or by one more.
fn change(value: &mut Value, other: Value, script: &mut Script<'_>) {
    match script.below(5) {
        0 => *value = scalar(script),
        1 => *value = other,
        2 => nudge(value, script),
        3 => shrink(value, script),
        _ => grow(value, other, script),
    }
}

/// A value that is likely to be at the edge of something.
fn scalar(script: &mut Script<'_>) -> Value {
    let scalars = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(65_536),
        json!(4_294_967_295_u64),
        json!(1_u64 << 40),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.0),
        json!(0.5),
        json!(-0.0),
        json!(1e-300),
        json!(1e300),
        json!(""),
        json!("cpu"),
        json!("a.b"),
        json!("x".repeat(65)),
        json!([]),
        json!({}),
    ];
    script.one_of(&scalars).clone()
}

/// A number changes by a step or a factor; anything else becomes a small number.
fn nudge(value: &mut Value, script: &mut Script<'_>) {
    let kind = script.below(4);
    *value = match (value.as_u64(), value.as_f64()) {
        (Some(number), _) => match kind {
            0 => json!(number.saturating_add(1)),
            1 => json!(number.saturating_sub(1)),
            2 => json!(number.saturating_mul(2)),
            _ => json!(number / 2),
        },
        (None, Some(number)) => match kind {
            0 => json!(number + 1.0),
            1 => json!(-number),
            2 => json!(number * 2.0),
            _ => json!(number / 2.0),
        },
        (None, None) => json!(script.byte()),
    };
}

fn shrink(value: &mut Value, script: &mut Script<'_>) {
    match value {
        Value::Array(list) if !list.is_empty() => {
            list.remove(script.below(list.len()));
        }
        Value::Object(map) => {
            let key = map.keys().nth(script.below(map.len())).cloned();
            map.retain(|name, _| Some(name) != key.as_ref());
        }
        _ => *value = Value::Null,
    }
}

fn grow(value: &mut Value, other: Value, script: &mut Script<'_>) {
    match (value, other) {
        (Value::Array(list), other) => list.insert(script.below(list.len() + 1), other),
        (Value::Object(map), Value::String(name)) => {
            map.insert(name, scalar(script));
        }
        (Value::Object(map), other) => {
            map.insert("version".to_owned(), other);
        }
        (value, other) => *value = json!([value.take(), other]),
    }
}

/// Values in a tree, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// The value that comes after `left` others, depth first; `left` says afterwards how many there were too few.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| nth(value, left)),
        Value::Object(map) => map.values_mut().find_map(|value| nth(value, left)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_says_nothing_changes_nothing() {
        let tree = edited(&[r#"{"a": [1, 2]}"#], &mut Script::new(&[]));
        assert_eq!(tree, json!({"a": [1, 2]}));
    }

    #[test]
    fn every_place_can_be_edited() {
        let tree = || json!({"a": [1, {"b": 2}], "c": 3});
        assert_eq!(count(&tree()), 6);
        for place in 0..6 {
            let mut edited = tree();
            // Other, place, a scalar, the first one (nothing).
            edit(&mut edited, &mut Script::new(&[0, place, 0, 0]));
            assert_ne!(edited, tree(), "{place}");
        }
    }
}
