//! Entities in the outputs of token classifiers, and the aggregation of token labels to entities.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Tensor, TensorError};

/// Name of the input that selects an [`AggregationStrategy`], BYTES `[1]`.
pub const AGGREGATION_STRATEGY: &str = "aggregation_strategy";

/// Name of the output with the character range of each token, INT64 `[tokens, 2]`.
pub(super) const TOKEN_SPANS: &str = "token_spans";
/// Name of the output with the labels of the entities, BYTES `[n]`.
pub(super) const ENTITIES: &str = "entities";
/// Name of the output with the probabilities of the entities, FP32 `[n]`.
pub(super) const ENTITY_SCORES: &str = "entity_scores";
/// Name of the output with the texts of the entities, BYTES `[n]`.
pub(super) const ENTITY_WORDS: &str = "entity_words";
/// Name of the output with the character range of each entity, INT64 `[n, 2]`.
pub(super) const ENTITY_SPANS: &str = "entity_spans";

/// Label of tokens outside any entity.
pub const OUTSIDE: &str = "O";

/// Aggregation of token labels to entities, as in transformers' `TokenClassificationPipeline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregationStrategy {
    /// Each token with a label is an entity; labels keep their prefix.
    None,
    /// Adjacent tokens with the same label form an entity; `B-` starts a new one.
    #[default]
    Simple,
    /// Like `Simple`, on words; a word has the label of its first token.
    First,
    /// Like `Simple`, on words; a word has the label with the maximum mean probability.
    Average,
    /// Like `Simple`, on words; a word has the label of its most confident token.
    Max,
}

impl AggregationStrategy {
    /// All strategies.
    pub const ALL: [Self; 5] = [Self::None, Self::Simple, Self::First, Self::Average, Self::Max];

    /// Returns the name of the strategy in transformers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Simple => "simple",
            Self::First => "first",
            Self::Average => "average",
            Self::Max => "max",
        }
    }

    /// Returns the strategy with this name.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for an unknown name.
    pub(crate) fn named(name: &str) -> Result<Self, ModelError> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| ModelError::BadInput {
            name: AGGREGATION_STRATEGY.into(),
            reason: format!("`{name}` is none of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// A labelled part of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    /// Label, without the prefix `B-` or `I-`; with it if tokens are not aggregated.
    pub label: String,
    /// Probability: the mean over the tokens or words of the entity.
    pub score: f32,
    /// Text of the entity, joined from its tokens.
    pub word: String,
    /// Index of the first character in the text, from 0.
    pub start: usize,
    /// Index after the last character.
    pub end: usize,
}

/// Trims spaces from both ends of a character range. Some tokenizers attribute the space before a word to its first
/// token; without it, the entities of models with different tokenizers can be compared.
pub fn trimmed(text: &[char], span: Range<usize>) -> Range<usize> {
    let covered = text.get(span.clone()).unwrap_or_default();
    let before = covered
        .iter()
        .take_while(|character| character.is_whitespace())
        .count();
    let rest = covered.iter().skip(before).rev();
    let after = rest.take_while(|character| character.is_whitespace()).count();
    span.start + before..span.end - after
}

/// Returns the entities in a model's outputs; `None` if the outputs are not a token classifier's answer to a text.
///
/// # Errors
/// [`TensorError`] if an output has an unexpected type.
pub fn of_outputs(outputs: &[Tensor]) -> Result<Option<Vec<Entity>>, TensorError> {
    let find = |name: &str| outputs.iter().find(|output| output.name == name);
    let Some(spans) = find(ENTITY_SPANS) else {
        return Ok(find(TOKEN_SPANS).map(|_| Vec::new()));
    };
    let labels = find(ENTITIES)
        .map(Tensor::to_texts)
        .transpose()?
        .unwrap_or_default();
    let words = find(ENTITY_WORDS)
        .map(Tensor::to_texts)
        .transpose()?
        .unwrap_or_default();
    let scores = find(ENTITY_SCORES)
        .map(Tensor::to_f32)
        .transpose()?
        .unwrap_or_default();
    let place = |value: i64| usize::try_from(value).unwrap_or_default();
    let spans = spans.to_i64()?;
    let entities = spans.as_chunks::<2>().0.iter().zip(labels).enumerate();
    let entities = entities.map(|(number, ([start, end], label))| Entity {
        label: label.to_owned(),
        score: scores.get(number).copied().unwrap_or_default(),
        word: words.get(number).map_or_else(String::new, ToString::to_string),
        start: place(*start),
        end: place(*end),
    });
    Ok(Some(entities.collect()))
}

/// Returns the answer of a token classifier as text: one line per entity ([`lines`]), or for token ids the classes of
/// the tokens. `None` for other outputs.
pub fn answer(outputs: &[Tensor]) -> Option<String> {
    if let Some(entities) = of_outputs(outputs).ok()? {
        let spans = entities
            .iter()
            .map(|entity| (entity.start, entity.end, entity.label.as_str()));
        return Some(lines(spans));
    }
    let find = |name: &str| outputs.iter().find(|output| output.name == name);
    let (logits, _) = find("logits").zip(find("confidence"))?;
    let [_, labels] = logits.shape.as_slice() else {
        return None;
    };
    let values = logits.to_f32().ok()?;
    let classes = values
        .chunks((*labels).max(1))
        .map(|row| largest(row).0.to_string());
    Some(classes.collect::<Vec<_>>().join(" "))
}

/// Formats entities as canonical text: one line `START-END LABEL` per entity, in text order.
pub fn lines<'a>(entities: impl IntoIterator<Item = (usize, usize, &'a str)>) -> String {
    let mut entities: Vec<_> = entities.into_iter().collect();
    entities.sort_unstable();
    let lines = entities
        .iter()
        .map(|(start, end, label)| format!("{start}-{end} {label}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Groups adjacent labels of the same entity. Returns the index range and the label without prefix of each group,
/// except `O`.
pub fn groups<'a>(labels: &[&'a str]) -> Vec<(Range<usize>, &'a str)> {
    let mut groups: Vec<(Range<usize>, &'a str)> = Vec::new();
    let mut last_tag = None;
    for (place, label) in labels.iter().copied().enumerate() {
        let (begins, tag) = match label.strip_prefix("B-") {
            Some(tag) => (true, tag),
            None => (false, label.strip_prefix("I-").unwrap_or(label)),
        };
        match groups.last_mut() {
            Some((range, _)) if !begins && last_tag == Some(tag) => range.end = place + 1,
            _ => groups.push((place..place + 1, group_label(label))),
        }
        last_tag = Some(tag);
    }
    groups.retain(|(_, label)| *label != OUTSIDE);
    groups
}

/// Returns the label of an entity that begins with a token of this label, without everything up to the first hyphen,
/// as in transformers.
pub fn group_label(label: &str) -> &str {
    label.split_once('-').map_or(label, |(_, label)| label)
}

/// Returns index and value of the maximum, the first on ties.
pub(super) fn largest(values: &[f32]) -> (usize, f32) {
    let mut best = (0, values.first().copied().unwrap_or(f32::NAN));
    for (place, value) in values.iter().copied().enumerate() {
        if value > best.1 {
            best = (place, value);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_grouped_by_their_prefixes() {
        let of = |labels: &[&'static str]| groups(labels);
        assert_eq!(
            of(&["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]),
            [(0..2, "PER"), (3..4, "LOC"), (4..5, "LOC")]
        );
        assert_eq!(of(&["NOUN", "NOUN", "VERB"]), [(0..2, "NOUN"), (2..3, "VERB")]);
        assert_eq!(of(&["O", "O"]), []);
        assert_eq!(of(&[]), []);
    }

    #[test]
    fn spaces_at_the_ends_of_a_span_are_left_out() {
        let text: Vec<char> = " Éva was\u{a0}".chars().collect();
        assert_eq!(trimmed(&text, 0..4), 1..4);
        assert_eq!(trimmed(&text, 4..9), 5..8);
        assert_eq!(trimmed(&text, 4..5), 5..5);
        assert_eq!(trimmed(&text, 5..5), 5..5);
        assert_eq!(trimmed(&[], 2..4), 2..4);
    }
}
