//! Reads samples of token classification: the words of a text with their tags, or a text with its entities.

use kaskade_models::entities::{groups, lines, trimmed};
use kaskade_models::{Inputs, Tensor};
use serde_json::{Map, Value};

use super::label::{LabelReader, shortened};
use super::rankings::chosen;
use super::{DataError, Label};
use crate::config::records::Columns;

const TEXTS: [&str; 6] = ["text", "sentence", "tokens", "words", "content", "review"];
const LABELS: [&str; 8] = [
    "entities", "ner_tags", "tags", "labels", "label", "pos_tags", "spans", "ner",
];
/// Names of the field with an entity's label: in data sets, and in transformers' answers.
const NAMES: [&str; 4] = ["label", "entity_group", "entity", "type"];

/// A labelled part of a text: first character, character after the last, label.
type Entity<'a> = (usize, usize, &'a str);

/// Returns the column with the entities or the tags.
///
/// # Errors
/// [`DataError::NoColumn`] if there is none.
pub(super) fn label_column<'a>(
    values: &'a Map<String, Value>,
    columns: &'a Columns,
) -> Result<&'a str, DataError> {
    chosen(values, columns.label.as_deref(), &LABELS, "label")
}

/// Returns the request and the label of a record: a text with entities, `{"start", "end", "label"}` in characters, or a
/// list of words with a tag each, which are joined by spaces.
///
/// # Errors
/// [`DataError`] if a column is missing or malformed, or names a label that the model does not have.
pub(super) fn read(
    values: &Map<String, Value>,
    columns: &Columns,
    labels: &LabelReader,
) -> Result<(Inputs, Label), DataError> {
    let column = chosen(values, columns.text.as_deref(), &TEXTS, "text")?;
    let no_text = || DataError::NoText {
        column: column.to_owned(),
    };
    let words = match values.get(column) {
        Some(Value::String(text)) => Words::Text(text),
        Some(Value::Array(words)) => {
            let words = words.iter().map(|word| word.as_str().ok_or_else(no_text));
            Words::Listed(words.collect::<Result<_, _>>()?)
        }
        _ => return Err(no_text()),
    };
    let text = words.text();
    let inputs = || Ok::<_, DataError>(vec![Tensor::from_texts("text", &[&text])?]);
    let label = match label_column(values, columns) {
        Ok(column) if !labels.ignored() => {
            let parsed;
            let written = match values.get(column) {
                None | Some(Value::Null) if !labels.required() => return Ok((inputs()?, Label::Unknown)),
                Some(Value::String(json)) if !labels.required() && json.trim().is_empty() => {
                    return Ok((inputs()?, Label::Unknown));
                }
                // CSV columns contain lists as JSON.
                Some(Value::String(json)) => {
                    parsed = serde_json::from_str(json).map_err(DataError::Json)?;
                    &parsed
                }
                other => other.unwrap_or(&Value::Null),
            };
            reference(written, &words, &text, labels)?
        }
        Err(error) if labels.required() => return Err(error),
        _ => Label::Unknown,
    };
    Ok((inputs()?, label))
}

/// The text of a record.
enum Words<'a> {
    Text(&'a str),
    Listed(Vec<&'a str>),
}

impl Words<'_> {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Listed(words) => words.join(" "),
        }
    }
}

/// Reads the label of a record.
fn reference(
    written: &Value,
    words: &Words<'_>,
    text: &str,
    labels: &LabelReader,
) -> Result<Label, DataError> {
    let form = || DataError::LabelForm {
        label: shortened(written),
        expected: "a list of {\"start\", \"end\", \"label\"}, or for a list of words a list with a tag for each",
    };
    let listed = written.as_array().ok_or_else(form)?;
    let characters: Vec<char> = text.chars().collect();
    let found = match words {
        Words::Listed(words) if !listed.iter().any(Value::is_object) => tagged(words, listed, labels)?,
        _ if listed.iter().all(Value::is_object) => {
            let entities = listed.iter().map(|one| entity(one, characters.len()));
            entities.collect::<Result<_, _>>()?
        }
        _ => return Err(form()),
    };
    let named = found.into_iter().map(|(start, end, label)| {
        let span = trimmed(&characters, start..end);
        Ok((span.start, span.end, labels.entity(label)?))
    });
    let named = named.collect::<Result<Vec<_>, DataError>>()?;
    Ok(Label::text(&lines(named)))
}

/// Reads an entity of a text with this number of characters.
fn entity(written: &Value, characters: usize) -> Result<Entity<'_>, DataError> {
    let place = |name: &str| usize::try_from(written.get(name)?.as_u64()?).ok();
    let label = NAMES.iter().find_map(|name| written.get(*name)?.as_str());
    match (place("start"), place("end"), label) {
        (Some(start), Some(end), Some(label)) if start < end && end <= characters => Ok((start, end, label)),
        _ => Err(DataError::Entity {
            found: shortened(written),
            characters,
        }),
    }
}

/// Groups the tags of words into entities, as tokens are grouped.
fn tagged<'a>(
    words: &[&str],
    tags: &'a [Value],
    labels: &'a LabelReader,
) -> Result<Vec<Entity<'a>>, DataError> {
    if words.len() != tags.len() {
        return Err(DataError::Tags {
            words: words.len(),
            tags: tags.len(),
        });
    }
    let tags = tags
        .iter()
        .map(|tag| labels.tag(tag))
        .collect::<Result<Vec<_>, _>>()?;
    let mut next = 0;
    let spans = words.iter().map(|word| {
        let start = next;
        next += word.chars().count() + 1;
        (start, next - 1)
    });
    let spans: Vec<(usize, usize)> = spans.collect();
    let entities = groups(&tags).into_iter().filter_map(|(places, label)| {
        let spans = spans.get(places)?;
        Some((spans.first()?.0, spans.last()?.1, label))
    });
    Ok(entities.collect())
}

#[cfg(test)]
mod tests {
    use kaskade_models::Task;
    use serde_json::json;

    use super::*;
    use crate::report::in_one_line;

    fn reader() -> LabelReader {
        let labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"].map(str::to_owned);
        LabelReader::new(Task::TokenClassification, &labels)
    }

    fn record(record: &Value, columns: &str) -> Result<(String, Label), DataError> {
        let columns: Columns = toml::from_str(columns).unwrap();
        let (inputs, label) = read(record.as_object().unwrap(), &columns, &reader())?;
        assert_eq!((inputs.len(), inputs[0].name.as_str()), (1, "text"));
        Ok((inputs[0].to_texts().unwrap()[0].to_owned(), label))
    }

    #[test]
    fn words_with_tags_and_texts_with_entities_mean_the_same() {
        let words = json!(["Éva", "Brown", "saw", "\u{96ea}", "Rome"]);
        let text = json!("Éva Brown saw \u{96ea} Rome");
        let entities = json!([
            {"start": 16, "end": 20, "label": "LOC"},
            {"start": 0, "end": 10, "entity_group": "per", "score": 0.5},
        ]);
        let right = Label::text("0-9 PER\n16-20 LOC");
        for (one, columns) in [
            (
                json!({"id": "0", "tokens": words, "ner_tags": [1, 2, 0, 0, 3]}),
                "",
            ),
            (
                json!({"words": words, "tags": ["B-PER", "I-PER", "O", "O", "I-LOC"]}),
                "",
            ),
            (json!({"Tokens": words, "NER_tags": [1, 2, 0, 0, 3]}), ""),
            (
                json!({"W": words, "T": [2, 2, 0, 0, 4], "text": "x"}),
                "text = 'w'\nlabel = 't'",
            ),
            (json!({"text": text, "entities": entities}), ""),
            (
                json!({"w": words, "t": [2, 2, 0, 0, 4], "text": "x"}),
                "text = 'w'\nlabel = 't'",
            ),
        ] {
            let (found, label) = record(&one, columns).unwrap();
            assert_eq!((json!(found), &label), (text.clone(), &right), "{one}");
        }
        let (_, none) = record(&json!({"text": "nothing", "entities": []}), "").unwrap();
        assert_eq!(none, Label::text(""));
        // Adjacent words with one label are two entities if the second begins a new one.
        let (_, two) = record(&json!({"tokens": ["a", "b"], "ner_tags": [1, 1]}), "").unwrap();
        assert_eq!(two, Label::text("0-1 PER\n2-3 PER"));
        let csv = json!({"text": "Rome", "entities": "[{\"start\": 0, \"end\": 4, \"label\": \"LOC\"}]"});
        assert_eq!(record(&csv, "").unwrap().1, Label::text("0-4 LOC"));
    }

    #[test]
    fn a_model_without_names_takes_any_names_and_no_numbers() {
        let reader = LabelReader::new(Task::TokenClassification, &[]);
        let read = |tag: Value| {
            let one = json!({"tokens": ["a"], "ner_tags": [tag]});
            read(one.as_object().unwrap(), &Columns::default(), &reader)
        };
        assert_eq!(read(json!("B-ANY")).unwrap().1, Label::text("0-1 ANY"));
        let error = in_one_line(&read(json!(0)).unwrap_err());
        assert!(error.contains("0 is not a label"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (one, message) in [
            (json!({"tokens": ["a"], "ner_tags": [0, 1]}), "2 tags for 1 words"),
            (json!({"tokens": ["a"], "ner_tags": [5]}), "no class 5"),
            (
                json!({"tokens": ["a"], "ner_tags": ["B-ORG"]}),
                "`ORG` is not a class: the model's are LOC, PER",
            ),
            (
                json!({"tokens": ["a"], "ner_tags": [null]}),
                "the name of a label",
            ),
            (
                json!({"tokens": [1], "ner_tags": [0]}),
                "column `tokens` is not text",
            ),
            (
                json!({"text": "a", "ner_tags": [0]}),
                "is not a label of this task",
            ),
            (
                json!({"text": "é", "entities": [{"start": 0, "end": 2, "label": "LOC"}]}),
                "which has 1 characters",
            ),
            (
                json!({"text": "ab", "entities": [{"start": 1, "end": 1, "label": "LOC"}]}),
                "is not an entity",
            ),
            (json!({"text": "ab"}), "no column for the label"),
            (json!({"image": "a.png"}), "no column for the text"),
        ] {
            let error = in_one_line(&record(&one, "").unwrap_err());
            assert!(error.contains(message), "{one}: {error}");
        }
    }
}
