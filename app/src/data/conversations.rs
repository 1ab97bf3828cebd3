//! Reads samples of a chat model: the messages of a conversation and the expected answer.

use kaskade_models::{Inputs, Signature, Tensor};
use serde_json::{Map, Value};

use super::label::LabelReader;
use super::records::column;
use super::{DataError, Label};
use crate::config::records::Columns;

/// Name of the input, and the usual name of the column.
pub(super) const MESSAGES: &str = "messages";

/// Returns whether a model accepts conversations, that is, has a chat template.
pub(super) fn are_taken(signature: &Signature) -> bool {
    signature.inputs.iter().any(|input| input.name == MESSAGES)
}

/// Returns the column of conversations, if there is one.
pub(super) fn find(values: &Map<String, Value>, columns: &Columns) -> Option<String> {
    match &columns.messages {
        Some(name) => Some(column(values, name).unwrap_or(name).to_owned()),
        None => column(values, MESSAGES).map(str::to_owned),
    }
}

/// Returns the request and the label of a record. Without a label column, the last message is the label if it is the
/// assistant's.
///
/// # Errors
/// [`DataError`] if the column contains no messages, or if a required label is missing.
pub(super) fn read(
    values: &Map<String, Value>,
    (column, label_column): (&str, Option<&str>),
    labels: &LabelReader,
) -> Result<(Inputs, Label), DataError> {
    let malformed = || DataError::NoMessages {
        column: column.to_owned(),
    };
    let mut messages: Vec<Value> = match values.get(column) {
        Some(Value::Array(messages)) => messages.clone(),
        Some(Value::String(json)) => serde_json::from_str(json).map_err(|_| malformed())?,
        _ => return Err(malformed()),
    };
    if messages.is_empty() || messages.iter().any(|message| role(message).is_none()) {
        return Err(malformed());
    }
    let written = match label_column {
        Some(column) => values.get(column).cloned(),
        None => messages
            .pop_if(|message| role(message) == Some("assistant"))
            .and_then(|mut answer| answer.get_mut("content").map(Value::take)),
    };
    if messages.is_empty() {
        return Err(malformed());
    }
    let label = match written {
        Some(written) if labels.required() => labels.read(&written)?,
        None if labels.required() => return Err(DataError::NoAnswer),
        written => labels.read_if_any(written.as_ref())?,
    };
    let json = Value::Array(messages).to_string();
    Ok((vec![Tensor::from_texts(MESSAGES, &[&json])?], label))
}

fn role(message: &Value) -> Option<&str> {
    message.get("role")?.as_str()
}

#[cfg(test)]
mod tests {
    use kaskade_models::{Datatype, Extent, InputSpec, Task};

    use super::*;
    use crate::config::records::Records;
    use crate::data::{LabelUse, Samples};
    use crate::report::in_one_line;

    /// Reads records for a model with or without a chat template.
    fn read(content: &str, extra: &str, chats: bool, used: LabelUse) -> Result<Samples, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.jsonl");
        std::fs::write(&file, content).unwrap();
        let mut spec: Records = toml::from_str(&format!("file = \"x\"\n{extra}")).unwrap();
        spec.file = file;
        let names = ["text", MESSAGES];
        let inputs = names[..=usize::from(chats)].iter();
        let inputs = inputs.map(|name| InputSpec::optional(*name, Datatype::Bytes, vec![Extent::Exactly(1)]));
        let signature = Signature {
            inputs: inputs.collect(),
        };
        let mut labels = LabelReader::new(Task::Generation, &[]);
        labels.used = used;
        Samples::from_records(&spec, &signature, &labels).map_err(|error| in_one_line(&error))
    }

    fn inputs(samples: &Samples) -> Vec<(String, Value)> {
        let read = samples.inputs.iter().map(|inputs| {
            let text = inputs[0].to_texts().unwrap()[0];
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            (inputs[0].name.clone(), value)
        });
        read.collect()
    }

    const ANSWERED: &str = r#"{"prompt": "1+1?", "messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}"#;
    const QUESTION: &str = r#"[{"role": "user", "content": "1+1?"}]"#;

    #[test]
    fn the_last_message_of_the_assistant_is_the_label() {
        let samples = read(ANSWERED, "", true, LabelUse::Required).unwrap();
        let question: Value = serde_json::from_str(QUESTION).unwrap();
        assert_eq!(inputs(&samples), [(MESSAGES.to_owned(), question.clone())]);
        assert_eq!(samples.labels, [Label::Text("2".to_owned())]);
        let json = serde_json::json!({"Chat": QUESTION, "answer": "two"}).to_string();
        let named = "columns = { messages = 'chat' }";
        let samples = read(&json, named, true, LabelUse::Required).unwrap();
        assert_eq!(inputs(&samples), [(MESSAGES.to_owned(), question.clone())]);
        assert_eq!(samples.labels, [Label::Text("two".to_owned())]);
        let json = format!("{{\"messages\": {QUESTION}}}");
        let samples = read(&json, "", true, LabelUse::Reference).unwrap();
        assert_eq!(samples.labels, [Label::Unknown]);
        let error = read(&json, "", true, LabelUse::Required).unwrap_err();
        assert!(
            error.contains("the last message is not the assistant's"),
            "{error}"
        );
    }

    #[test]
    fn texts_come_first_where_they_are_stated_or_there_is_no_chat_template() {
        for (columns, chats) in [("", false), ("columns = { text = 'prompt' }", true)] {
            let samples = read(ANSWERED, columns, chats, LabelUse::Ignored).unwrap();
            assert_eq!(inputs(&samples), [("text".to_owned(), Value::from("1+1?"))]);
        }
        let json = format!("{{\"messages\": {QUESTION}}}");
        let error = read(&json, "", false, LabelUse::Ignored).unwrap_err();
        assert!(error.contains(MESSAGES), "{error}");
    }

    #[test]
    fn what_is_no_conversation_is_refused_with_its_line() {
        for messages in [
            "[]",
            "3",
            "[3]",
            "[{\"content\": \"x\"}]",
            "\"[{\"",
            "[{\"role\": \"assistant\", \"content\": \"x\"}]",
        ] {
            let second = format!("{ANSWERED}\n{{\"messages\": {messages}}}\n");
            let error = read(&second, "", true, LabelUse::Required).unwrap_err();
            assert!(
                error.contains("line 2") && error.contains("not a list of messages"),
                "{error}"
            );
        }
    }
}
