//! The entities of a text in the answers of token classifiers, and how labels of tokens become entities.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Tensor, TensorError};

/// Input with the name of an [`AggregationStrategy`], BYTES `[1]`.
pub const AGGREGATION_STRATEGY: &str = "aggregation_strategy";

/// Characters of the text that each token covers, INT64 `[tokens, 2]`.
pub(super) const TOKEN_SPANS: &str = "token_spans";
/// Labels of the entities, BYTES `[n]`.
pub(super) const ENTITIES: &str = "entities";
/// Probabilities of the entities, FP32 `[n]`.
pub(super) const ENTITY_SCORES: &str = "entity_scores";
/// Texts of the entities, BYTES `[n]`.
pub(super) const ENTITY_WORDS: &str = "entity_words";
/// Characters of the text that each entity covers, INT64 `[n, 2]`.
pub(super) const ENTITY_SPANS: &str = "entity_spans";

/// The label of tokens that belong to no entity.
pub const OUTSIDE: &str = "O";

/// How the labels of tokens become entities, as in transformers' `TokenClassificationPipeline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregationStrategy {
    /// Every token with a label is an entity, with the prefix of its label.
    None,
    /// Neighbouring tokens of one label are an entity; `B-` begins another.
    #[default]
    Simple,
    /// Likewise of words, which have the label of their first token.
    First,
    /// Likewise of words, which have the label with the largest mean probability.
    Average,
    /// Likewise of words, which have the label of their most certain token.
    Max,
}

impl AggregationStrategy {
    /// All strategies.
    pub const ALL: [Self; 5] = [Self::None, Self::Simple, Self::First, Self::Average, Self::Max];

    /// Returns its name, as transformers writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Simple => "simple",
            Self::First => "first",
            Self::Average => "average",
            Self::Max => "max",
        }
    }

    /// Returns the strategy of a name.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if there is none.
    pub(crate) fn named(name: &str) -> Result<Self, ModelError> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| ModelError::BadInput {
            name: AGGREGATION_STRATEGY.into(),
            reason: format!("`{name}` is none of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// A part of a text with a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    /// Its label, without the prefix `B-` or `I-`; with it if tokens are not aggregated.
    pub label: String,
    /// Its probability: the mean over its tokens or words.
    pub score: f32,
    /// Its text, as the tokens spell it.
    pub word: String,
    /// Its first character in the text, from 0.
    pub start: usize,
    /// The character after its last.
    pub end: usize,
}

/// Returns a span of characters without spaces at its ends. Some tokenizers count the space before a word to its first token; the
/// entities of models with different tokenizers are compared without it.
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

/// Returns the entities among a model's outputs; `None` if the outputs are no answer of a token classifier to a text.
///
/// # Errors
/// [`TensorError`] if an output has another type than a token classifier gives it.
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

/// Returns an answer of a token classifier as a text: one line per entity ([`lines`]), or for token ids the classes of the
/// tokens. `None` of other answers.
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

/// Returns entities as a text that is the same for the same entities: a line `START-END LABEL` for each, in their order in the
/// text.
pub fn lines<'a>(entities: impl IntoIterator<Item = (usize, usize, &'a str)>) -> String {
    let mut entities: Vec<_> = entities.into_iter().collect();
    entities.sort_unstable();
    let lines = entities
        .iter()
        .map(|(start, end, label)| format!("{start}-{end} {label}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the places of neighbouring labels that belong together, with the label of each group without its prefix. `O` is
/// left out.
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

/// Returns the label of an entity that begins with a token of this label: transformers cuts off what precedes the first hyphen.
pub fn group_label(label: &str) -> &str {
    label.split_once('-').map_or(label, |(_, label)| label)
}

/// The first of the largest values, and its place.
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
