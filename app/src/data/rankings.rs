//! Reads samples of a ranking: a query with passages, some of which are relevant.

use kaskade_models::{Inputs, Tensor};
use kaskade_policy::confidence::deferral::number_of_text;
use serde_json::{Map, Value};

use super::label::LabelReader;
use super::records::column;
use super::{DataError, Label};
use crate::config::records::Columns;
use crate::ranker::{PASSAGES, QUERY};

const QUERIES: [&str; 4] = ["query", "question", "text", "anchor"];
const LISTED: [&str; 3] = ["passages", "documents", "texts"];
const LABELS: [&str; 3] = ["label", "labels", "relevant"];
/// Names of the columns with relevant and with other passages.
const SPLIT: [(&str, &str); 2] = [("positive", "negative"), ("pos", "neg")];

/// Returns the request and the label of a record: `query` with `positive` and `negative` passages, or with `passages`
/// and the indices of the relevant ones.
///
/// Passages are sorted in an order that depends only on their texts. Data sets often list the relevant passage first,
/// and neither a tie nor a learned score may benefit from that.
///
/// # Errors
/// [`DataError`] if a column is missing or malformed, there are fewer than two passages, or none is relevant.
pub(super) fn read(
    values: &Map<String, Value>,
    columns: &Columns,
    labels: &LabelReader,
) -> Result<(Inputs, Label), DataError> {
    let query_column = chosen(values, columns.text.as_deref(), &QUERIES, "query")?;
    let query = values.get(query_column).and_then(Value::as_str);
    let query = query.ok_or_else(|| DataError::NoText {
        column: query_column.to_owned(),
    })?;
    let mut passages = passages(values, columns, labels)?;
    passages.sort_by_key(|(text, _)| (number_of_text(text), *text));
    enough(passages.len())?;
    let relevant = (0..).zip(&passages).filter(|(_, (_, relevant))| *relevant);
    let relevant: Vec<usize> = relevant.map(|(place, _)| place).collect();
    let label = if !relevant.is_empty() && !labels.ignored() {
        Label::AnyOf(relevant)
    } else if labels.required() {
        return Err(DataError::NoRelevantPassage);
    } else {
        Label::Unknown
    };
    let texts: Vec<&str> = passages.iter().map(|(text, _)| *text).collect();
    let inputs = vec![
        Tensor::from_texts(QUERY, &[query])?,
        Tensor::from_texts(PASSAGES, &texts)?,
    ];
    Ok((inputs, label))
}

/// Checks that there are enough passages for a ranking.
fn enough(found: usize) -> Result<(), DataError> {
    (found > 1).then_some(()).ok_or(DataError::FewPassages { found })
}

/// Returns the passages of a record, each with whether it is relevant.
fn passages<'a>(
    values: &'a Map<String, Value>,
    columns: &Columns,
    labels: &LabelReader,
) -> Result<Vec<(&'a str, bool)>, DataError> {
    let split = SPLIT
        .iter()
        .find_map(|(one, other)| column(values, one).zip(column(values, other)));
    if let (None, Some((positive, negative))) = (&columns.passages, split) {
        let mut all = Vec::new();
        for (column, relevant) in [(positive, true), (negative, false)] {
            let texts = texts(values, column)?;
            all.extend(texts.into_iter().map(|text| (text, relevant)));
        }
        return Ok(all);
    }
    let column = chosen(values, columns.passages.as_deref(), &LISTED, "passages")?;
    let texts = texts(values, column)?;
    // With too few passages an index may also be out of range; report the cause.
    enough(texts.len())?;
    let relevant = match chosen(values, columns.label.as_deref(), &LABELS, "label") {
        Ok(label) => match values.get(label).unwrap_or(&Value::Null) {
            Value::Null if !labels.required() => Vec::new(),
            written => places(written, texts.len())?,
        },
        Err(error) if labels.required() => return Err(error),
        Err(_) => Vec::new(),
    };
    let marked = texts.into_iter().enumerate();
    Ok(marked
        .map(|(place, text)| (text, relevant.contains(&place)))
        .collect())
}

/// Returns the configured column, or else the first usual one, in the record's spelling.
pub(super) fn chosen<'a>(
    values: &'a Map<String, Value>,
    configured: Option<&str>,
    usual: &[&str],
    what: &'static str,
) -> Result<&'a str, DataError> {
    // A configured column is not replaced by a usual one.
    let name = match configured {
        Some(name) => column(values, name),
        None => usual.iter().find_map(|name| column(values, name)),
    };
    name.ok_or_else(|| DataError::NoColumn {
        what,
        found: values.keys().cloned().collect(),
    })
}

/// Reads a text or a list of texts.
fn texts<'a>(values: &'a Map<String, Value>, column: &str) -> Result<Vec<&'a str>, DataError> {
    let malformed = || DataError::NoText {
        column: column.to_owned(),
    };
    match values.get(column) {
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(listed)) => listed
            .iter()
            .map(|one| one.as_str().ok_or_else(malformed))
            .collect(),
        _ => Err(malformed()),
    }
}

/// Reads the indices of the relevant passages: one, or a list.
fn places(written: &Value, passages: usize) -> Result<Vec<usize>, DataError> {
    let one = |number: &Value| {
        let place = number.as_u64().and_then(|place| usize::try_from(place).ok());
        match place {
            Some(place) if place < passages => Ok(place),
            Some(place) => Err(DataError::LabelRange {
                class: place,
                count: passages,
            }),
            None => Err(DataError::LabelForm {
                label: number.to_string(),
                expected: "the number of the relevant passage from 0, or a list of such numbers",
            }),
        }
    };
    match written {
        Value::Array(listed) => listed.iter().map(one).collect(),
        number => Ok(vec![one(number)?]),
    }
}

#[cfg(test)]
mod tests {
    use kaskade_models::Task;
    use serde_json::json;

    use super::*;

    fn record(value: &Value) -> Result<(Inputs, Label), DataError> {
        let labels = LabelReader::new(Task::Ranking, &[]);
        read(value.as_object().unwrap(), &Columns::default(), &labels)
    }

    /// Returns the passages of a request that the label accepts.
    fn relevant((inputs, label): &(Inputs, Label)) -> Vec<String> {
        let texts = inputs[1].to_texts().unwrap();
        let right = |place: &usize| label.accepts(&Label::Class(*place));
        let places = (0..texts.len()).filter(right);
        places.map(|place| texts[place].to_owned()).collect()
    }

    #[test]
    fn both_forms_of_a_record_are_the_same_request() {
        let split = record(&json!({"query": "q", "positive": "yes", "negative": ["no", "never"]})).unwrap();
        let listed = record(&json!({"query": "q", "passages": ["never", "yes", "no"], "label": 1})).unwrap();
        assert_eq!(split, listed);
        for cased in [
            json!({"Query": "q", "Positive": "yes", "NEGATIVE": ["no", "never"]}),
            json!({"QUERY": "q", "Passages": ["never", "yes", "no"], "Label": 1}),
        ] {
            assert_eq!(record(&cased).unwrap(), split, "{cased}");
        }
        assert_eq!(split.0[0].name, "query");
        assert_eq!(split.0[1].shape, [3]);
        assert_eq!(relevant(&split), ["yes"]);
        let several =
            record(&json!({"question": "q", "documents": ["a", "b", "c"], "labels": [0, 2]})).unwrap();
        let mut found = relevant(&several);
        found.sort_unstable();
        assert_eq!(found, ["a", "c"]);
    }

    #[test]
    fn the_place_of_the_relevant_passage_says_nothing() {
        let place = |number: usize| {
            let (positive, negative) = (format!("right {number}"), format!("wrong {number}"));
            let (_, label) =
                record(&json!({"query": "q", "positive": positive, "negative": negative})).unwrap();
            usize::from(label.accepts(&Label::Class(1)))
        };
        let second: usize = (0..400).map(place).sum();
        assert!((150..250).contains(&second), "{second} of 400 are second");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (value, message) in [
            (json!({"positive": "a", "negative": "b"}), "query"),
            (
                json!({"query": 3, "positive": "a", "negative": "b"}),
                "`query` is not text",
            ),
            (
                json!({"query": "q", "positive": "a", "negative": [1]}),
                "`negative` is not text",
            ),
            (
                json!({"query": "q", "positive": "a", "negative": []}),
                "1 passage",
            ),
            (
                json!({"query": "q", "positive": [], "negative": ["a", "b"]}),
                "no passage is relevant",
            ),
            // Regression: the error said that there are classes 0 to 18446744073709551615.
            (
                json!({"query": "q", "passages": [], "label": 0}),
                "it has 0 passages",
            ),
            (json!({"query": "q", "passages": ["a", "b"]}), "label"),
            (
                json!({"query": "q", "passages": ["a", "b"], "label": 2}),
                "no class 2",
            ),
            (
                json!({"query": "q", "passages": ["a", "b"], "label": "a"}),
                "number of the relevant",
            ),
        ] {
            let error = record(&value).unwrap_err().to_string();
            assert!(error.contains(message), "{value}: {error}");
        }
    }
}
