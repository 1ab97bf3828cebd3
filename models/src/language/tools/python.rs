//! Parses calls in Python syntax: `[f(a=1, b="x"), g()]`, with literals as arguments.

use serde_json::{Map, Number, Value};

use super::call::ToolCall;

/// Maximum depth of nested lists and dictionaries.
const MAX_DEPTH: usize = 32;

/// Parses a list of calls, or one call without brackets; `None` if the text is anything else.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut reader = Reader(text.trim());
    let listed = reader.take("[");
    let mut calls = Vec::new();
    while !(listed && reader.take("]")) {
        calls.push(reader.call()?);
        if !reader.take(",") {
            if listed && !reader.take("]") {
                return None;
            }
            break;
        }
    }
    reader.0.trim().is_empty().then_some(calls)
}

/// Parser; holds the remaining text.
struct Reader<'a>(&'a str);

impl Reader<'_> {
    /// Consumes a symbol and white space before it. Returns whether the symbol was there.
    fn take(&mut self, symbol: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(symbol);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn name(&mut self) -> Option<String> {
        let text = self.0.trim_start();
        let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
        let length = text.find(|letter: char| !is_part(letter)).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(length)?;
        self.0 = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.name()?;
        if !self.take("(") {
            return None;
        }
        let mut arguments = Map::new();
        while !self.take(")") {
            let key = self.name()?;
            if !self.take("=") {
                return None;
            }
            arguments.insert(key, self.value(0)?);
            if !self.take(",") {
                if !self.take(")") {
                    return None;
                }
                break;
            }
        }
        ToolCall::new(&name, Value::Object(arguments))
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let text = self.0.trim_start();
        let first = text.chars().next().filter(|_| depth < MAX_DEPTH)?;
        match first {
            '"' | '\'' => self.text(first).map(Value::String),
            '[' | '(' => {
                let close = if first == '[' { "]" } else { ")" };
                self.0 = text.get(1..)?;
                let mut items = Vec::new();
                while !self.take(close) {
                    items.push(self.value(depth + 1)?);
                    if !self.take(",") {
                        return self.take(close).then_some(Value::Array(items));
                    }
                }
                Some(Value::Array(items))
            }
            '{' => {
                self.0 = text.get(1..)?;
                let mut items = Map::new();
                while !self.take("}") {
                    let Value::String(key) = self.value(depth + 1)? else {
                        return None;
                    };
                    if !self.take(":") {
                        return None;
                    }
                    items.insert(key, self.value(depth + 1)?);
                    if !self.take(",") {
                        return self.take("}").then_some(Value::Object(items));
                    }
                }
                Some(Value::Object(items))
            }
            _ => {
                let is_part =
                    |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-' | '+');
                let length = text.find(|letter: char| !is_part(letter)).unwrap_or(text.len());
                let (word, rest) = text.split_at_checked(length)?;
                self.0 = rest;
                match word {
                    "True" | "true" => Some(Value::Bool(true)),
                    "False" | "false" => Some(Value::Bool(false)),
                    "None" | "null" => Some(Value::Null),
                    _ => word.replace('_', "").parse::<Number>().ok().map(Value::Number),
                }
            }
        }
    }

    /// Parses a quoted string.
    fn text(&mut self, quote: char) -> Option<String> {
        let text = self.0.trim_start();
        let mut letters = text.char_indices().skip(1);
        let mut read = String::new();
        while let Some((at, letter)) = letters.next() {
            if letter == quote {
                self.0 = text.get(at + quote.len_utf8()..)?;
                return Some(read);
            }
            if letter != '\\' {
                read.push(letter);
                continue;
            }
            match letters.next()?.1 {
                'n' => read.push('\n'),
                't' => read.push('\t'),
                'r' => read.push('\r'),
                'u' => {
                    let digits: Option<String> =
                        (0..4).map(|_| letters.next().map(|(_, digit)| digit)).collect();
                    read.push(char::from_u32(u32::from_str_radix(&digits?, 16).ok()?)?);
                }
                other @ ('\\' | '\'' | '"') => read.push(other),
                other => read.extend(['\\', other]),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_with_literals_are_read() {
        let read = calls(r#"[weather(city="Paris, \"75\"", days=3, at=[1, -2.5], o={'a': None}), now( ),]"#)
            .unwrap();
        assert_eq!(read.len(), 2);
        let arguments = json!({"city": "Paris, \"75\"", "days": 3, "at": [1, -2.5], "o": {"a": null}});
        assert_eq!(
            (read[0].name.as_str(), &read[0].arguments),
            ("weather", &arguments)
        );
        assert_eq!((read[1].name.as_str(), &read[1].arguments), ("now", &json!({})));
        assert_eq!(calls("a.b(x=True)").unwrap()[0].name, "a.b");
    }

    #[test]
    fn what_is_no_call_is_none() {
        for text in [
            "[f(]",
            "f",
            "[f(1)]",
            "f(a=)",
            "f(a=\"x)",
            "[f(a=1) g()]",
            "f(a=1) and more",
            "f(a=b)",
            "()",
            "[1, 2]",
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
        let deep = format!("f(a={}{})", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(calls(&deep), None);
    }
}
