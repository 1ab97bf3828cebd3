//! Token classification: labels tokens and aggregates them to entities, as transformers does.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder as _, Encoding, Tokenizer};

use super::entities::{
    AggregationStrategy, ENTITIES, ENTITY_SCORES, ENTITY_SPANS, ENTITY_WORDS, Entity, OUTSIDE, TOKEN_SPANS,
    groups, largest, trimmed,
};
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::ops;
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor::Tensor;

/// Token properties of a tokenizer: which tokens continue a word, and how tokens are joined to text.
#[derive(Debug)]
pub(crate) struct Pieces {
    decoder: Option<DecoderWrapper>,
    /// Whether the vocabulary marks tokens that continue a word.
    marked: bool,
    unknown: Option<u32>,
}

/// Subset of `tokenizer.json` that [`Pieces`] needs.
#[derive(Deserialize)]
struct Saved {
    model: SavedModel,
}

#[derive(Deserialize)]
struct SavedModel {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
}

impl Pieces {
    /// Reads the properties from a tokenizer file.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`].
    pub(crate) fn read(file: &TokenizerFile, tokenizer: &Tokenizer) -> Result<Self, LoadError> {
        let saved: Saved = serde_json::from_slice(&file.json).map_err(|error| LoadError::BadTokenizer {
            file: file.file.clone(),
            reason: error.to_string(),
        })?;
        let SavedModel {
            continuing_subword_prefix,
            unk_token,
            unk_id,
        } = saved.model;
        Ok(Self {
            decoder: tokenizer.get_decoder().cloned(),
            marked: continuing_subword_prefix.is_some_and(|prefix| !prefix.is_empty()),
            unknown: unk_token
                .and_then(|token| tokenizer.token_to_id(&token))
                .or(unk_id),
        })
    }

    /// Joins tokens to text, as `convert_tokens_to_string` does.
    fn joined(&self, tokens: Vec<String>) -> Result<String, ModelError> {
        match &self.decoder {
            None => Ok(tokens.join(" ")),
            Some(decoder) => decoder.decode(tokens).map_err(|error| ModelError::Failed {
                reason: format!("the tokenizer failed: {error}"),
            }),
        }
    }
}

/// The tokens of a text to label.
#[derive(Debug)]
pub(crate) struct TokenText {
    characters: Vec<char>,
    tokens: Vec<Token>,
    strategy: Option<AggregationStrategy>,
    pieces: Arc<Pieces>,
}

#[derive(Debug)]
struct Token {
    word: String,
    /// Character range in the text.
    span: Range<usize>,
    /// Whether the tokenizer added the token.
    special: bool,
    /// Whether the token continues the word of the previous token.
    continues: bool,
}

impl TokenText {
    /// Describes the tokens of a text; the offsets of `encoding` must count characters.
    pub(crate) fn new(
        text: &str,
        encoding: &Encoding,
        pieces: &Arc<Pieces>,
        strategy: Option<AggregationStrategy>,
    ) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let places = encoding
            .get_offsets()
            .iter()
            .zip(encoding.get_special_tokens_mask());
        let names = encoding.get_ids().iter().zip(encoding.get_tokens());
        let tokens = names.zip(places).map(|((id, token), ((start, end), special))| {
            let covered = characters.get(*start..*end).unwrap_or_default();
            let unknown = pieces.unknown == Some(*id);
            let continues = if pieces.marked {
                token.chars().count() != covered.len()
            } else {
                let around = start.saturating_sub(1)..(start + 1).min(characters.len());
                *start > 0 && !characters.get(around).unwrap_or_default().contains(&' ')
            };
            Token {
                word: if unknown {
                    covered.iter().collect()
                } else {
                    token.clone()
                },
                span: *start..*end,
                special: *special == 1,
                continues: continues && !unknown,
            }
        });
        Self {
            tokens: tokens.collect(),
            characters,
            strategy,
            pieces: Arc::clone(pieces),
        }
    }
}

impl TokenText {
    fn entity(&self, label: &str, score: f32, word: String, span: Range<usize>) -> Entity {
        let Range { start, end } = trimmed(&self.characters, span);
        Entity {
            label: label.to_owned(),
            score,
            word,
            start,
            end,
        }
    }
}

/// Assigns labels to tokens by their logits.
#[derive(Debug, Clone)]
pub(crate) struct Labeller {
    labels: Vec<String>,
    strategy: AggregationStrategy,
}

/// A labelled token or word.
struct Unit<'a> {
    label: &'a str,
    score: f32,
    word: String,
    span: Range<usize>,
}

impl Labeller {
    /// Reads the labels; `strategy` is the default aggregation strategy.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for labels with gaps.
    pub(crate) fn read(config: &Config, strategy: AggregationStrategy) -> Result<Self, LoadError> {
        Ok(Self {
            labels: config.labels()?,
            strategy,
        })
    }

    /// Returns the number of logits per token.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns the names of the labels.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.labels.clone()
    }

    /// Returns the outputs of one request, from the logits of its visible tokens:
    ///
    /// - `logits` FP32 `[tokens, labels]`.
    /// - `confidence` FP32 `[1]`: the minimum over the tokens of the probability of their label. Excludes tokens that
    ///   the tokenizer added; with token ids, all tokens count.
    /// - For a text `token_spans` INT64 `[tokens, 2]`, the character range of each token, and if there are entities
    ///   `entities` BYTES `[n]` (labels), `entity_scores` FP32 `[n]`, `entity_words` BYTES `[n]` and `entity_spans`
    ///   INT64 `[n, 2]`: the character range in the text, end exclusive, without surrounding spaces.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if the number of logits does not match the tokens of the text; [`ModelError`] if a
    /// tensor cannot be built or the tokenizer fails.
    pub(crate) fn outputs(
        &self,
        logits: &[Vec<f32>],
        text: Option<&TokenText>,
    ) -> Result<Outputs, ModelError> {
        if text.is_some_and(|text| text.tokens.len() != logits.len()) {
            return Err(ModelError::BadInput {
                name: "text".into(),
                reason: "it has more or fewer tokens than were computed".into(),
            });
        }
        let probabilities: Vec<Vec<f32>> = logits.iter().map(|logits| ops::probabilities(logits)).collect();
        let special = |place: usize| {
            let token = text.and_then(|text| text.tokens.get(place));
            token.is_some_and(|token| token.special)
        };
        let counted = probabilities
            .iter()
            .enumerate()
            .filter(|(place, _)| !special(*place));
        // Without tokens the confidence is 1. `f32::min` would ignore NaN.
        let lowest = counted.fold(1.0, |lowest: f32, (_, row)| {
            let (_, score) = largest(row);
            if score < lowest || score.is_nan() {
                score
            } else {
                lowest
            }
        });
        let mut outputs = vec![
            Tensor::from_f32("logits", &[logits.len(), self.labels.len()], &logits.concat())?,
            Tensor::from_f32("confidence", &[1], &[lowest])?,
        ];
        let Some(text) = text else {
            return Ok(outputs);
        };
        let token_spans = text.tokens.iter().flat_map(|token| numbers(&token.span));
        outputs.push(Tensor::from_i64(
            TOKEN_SPANS,
            &[text.tokens.len(), 2],
            &token_spans.collect::<Vec<_>>(),
        )?);
        let entities = self.entities(&probabilities, text)?;
        if !entities.is_empty() {
            let texts = |of: fn(&Entity) -> &str| entities.iter().map(of).collect::<Vec<_>>();
            let scores: Vec<f32> = entities.iter().map(|entity| entity.score).collect();
            let spans = entities
                .iter()
                .flat_map(|entity| numbers(&(entity.start..entity.end)));
            outputs.push(Tensor::from_texts(ENTITIES, &texts(|entity| &entity.label))?);
            outputs.push(Tensor::from_f32(ENTITY_SCORES, &[scores.len()], &scores)?);
            outputs.push(Tensor::from_texts(ENTITY_WORDS, &texts(|entity| &entity.word))?);
            outputs.push(Tensor::from_i64(
                ENTITY_SPANS,
                &[entities.len(), 2],
                &spans.collect::<Vec<_>>(),
            )?);
        }
        Ok(outputs)
    }

    fn entities(&self, probabilities: &[Vec<f32>], text: &TokenText) -> Result<Vec<Entity>, ModelError> {
        let strategy = text.strategy.unwrap_or(self.strategy);
        let tokens = text.tokens.iter().zip(probabilities);
        let tokens: Vec<(&Token, &[f32])> = tokens
            .filter(|(token, _)| !token.special)
            .map(|(token, row)| (token, row.as_slice()))
            .collect();
        let units = match strategy {
            AggregationStrategy::None | AggregationStrategy::Simple => tokens
                .iter()
                .map(|(token, row)| self.unit(row, token.word.clone(), token.span.clone()))
                .collect(),
            _ => self.words(&tokens, strategy, &text.pieces)?,
        };
        if strategy == AggregationStrategy::None {
            let labelled = units.into_iter().filter(|unit| unit.label != OUTSIDE);
            let entities = labelled.map(|unit| text.entity(unit.label, unit.score, unit.word, unit.span));
            return Ok(entities.collect());
        }
        let labels: Vec<&str> = units.iter().map(|unit| unit.label).collect();
        let entities = groups(&labels).into_iter().filter_map(|(places, label)| {
            let units = units.get(places)?;
            let (first, last) = (units.first()?, units.last()?);
            let sum: f32 = units.iter().map(|unit| unit.score).sum();
            let words = units.iter().map(|unit| unit.word.clone()).collect();
            let span = first.span.start..last.span.end;
            let word = text.pieces.joined(words);
            Some(word.map(|word| text.entity(label, sum / units.len() as f32, word, span)))
        });
        entities.collect()
    }

    /// Aggregates the labels of tokens to one label per word.
    fn words(
        &self,
        tokens: &[(&Token, &[f32])],
        strategy: AggregationStrategy,
        pieces: &Pieces,
    ) -> Result<Vec<Unit<'_>>, ModelError> {
        let words = tokens.chunk_by(|_, (next, _)| next.continues);
        let words = words.map(|word| {
            let rows = || word.iter().map(|(_, row)| *row);
            let row = match strategy {
                AggregationStrategy::Average => mean(rows()),
                AggregationStrategy::Max => most_certain(rows()).to_vec(),
                _ => rows().next().unwrap_or_default().to_vec(),
            };
            let spelled = word.iter().map(|(token, _)| token.word.clone()).collect();
            let start = word.first().map_or(0, |(token, _)| token.span.start);
            let end = word.last().map_or(0, |(token, _)| token.span.end);
            Ok(self.unit(&row, pieces.joined(spelled)?, start..end))
        });
        words.collect()
    }

    fn unit(&self, row: &[f32], word: String, span: Range<usize>) -> Unit<'_> {
        let (class, score) = largest(row);
        Unit {
            label: self.labels.get(class).map_or(OUTSIDE, String::as_str),
            score,
            word,
            span,
        }
    }
}

fn numbers(span: &Range<usize>) -> [i64; 2] {
    [span.start, span.end].map(|place| i64::try_from(place).unwrap_or(i64::MAX))
}

fn mean<'a>(rows: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    let (mut sums, mut count): (Vec<f32>, usize) = (Vec::new(), 0);
    for row in rows {
        sums.resize(row.len(), 0.0);
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
        count += 1;
    }
    sums.into_iter().map(|sum| sum / count as f32).collect()
}

/// Returns the row with the largest value, the first on ties.
fn most_certain<'a>(rows: impl Iterator<Item = &'a [f32]>) -> &'a [f32] {
    let mut best: &[f32] = &[];
    for row in rows {
        if best.is_empty() || largest(row).1 > largest(best).1 {
            best = row;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::entities::{answer, lines, of_outputs};

    fn labeller(labels: &[&str]) -> Labeller {
        Labeller {
            labels: labels.iter().map(ToString::to_string).collect(),
            strategy: AggregationStrategy::Simple,
        }
    }

    /// Builds a text of tokens with spans, without a decoder; `##` marks tokens that continue a word.
    fn text(tokens: &[(&str, usize, usize)], strategy: AggregationStrategy) -> TokenText {
        let tokens = tokens.iter().map(|(word, start, end)| Token {
            word: (*word).to_owned(),
            span: *start..*end,
            special: start == end,
            continues: word.starts_with("##"),
        });
        TokenText {
            characters: Vec::new(),
            tokens: tokens.collect(),
            strategy: Some(strategy),
            pieces: Arc::new(Pieces {
                decoder: None,
                marked: true,
                unknown: None,
            }),
        }
    }

    fn found(labels: &[&str], rows: &[&[f32]], text: &TokenText) -> Vec<(String, usize, usize)> {
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
        let outputs = labeller(labels).outputs(&rows, Some(text)).unwrap();
        let entities = of_outputs(&outputs).unwrap().unwrap();
        entities
            .into_iter()
            .map(|entity| (entity.label, entity.start, entity.end))
            .collect()
    }

    #[test]
    fn words_get_the_label_of_their_tokens() {
        let labels = ["O", "B-X", "I-Y"];
        let tokens = [("[CLS]", 0, 0), ("mi", 0, 2), ("##cro", 2, 5), ("of", 6, 8)];
        let rows: [&[f32]; 4] = [
            &[9.0, 0.0, 0.0],
            &[0.0, 1.0, 0.0],
            &[0.0, 0.0, 4.0],
            &[5.0, 0.0, 0.0],
        ];
        let under = |strategy| found(&labels, &rows, &text(&tokens, strategy));
        let entity = |label: &str, start, end| (label.to_owned(), start, end);
        assert_eq!(
            under(AggregationStrategy::None),
            [entity("B-X", 0, 2), entity("I-Y", 2, 5)]
        );
        assert_eq!(
            under(AggregationStrategy::Simple),
            [entity("X", 0, 2), entity("Y", 2, 5)]
        );
        assert_eq!(under(AggregationStrategy::First), [entity("X", 0, 5)]);
        assert_eq!(under(AggregationStrategy::Average), [entity("Y", 0, 5)]);
        assert_eq!(under(AggregationStrategy::Max), [entity("Y", 0, 5)]);
    }

    #[test]
    fn the_confidence_is_that_of_the_least_certain_token_that_is_not_special() {
        let labels = ["O", "B-X"];
        let rows: [&[f32]; 3] = [&[0.0, 0.0], &[2.0, 0.0], &[0.0, 1.0]];
        let tokens = [("[CLS]", 0, 0), ("a", 0, 1), ("b", 2, 3)];
        let text = text(&tokens, AggregationStrategy::Simple);
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
        let confidence = |text: Option<&TokenText>| {
            let outputs = labeller(&labels).outputs(&rows, text).unwrap();
            outputs
                .iter()
                .find(|output| output.name == "confidence")
                .unwrap()
                .to_f32()
                .unwrap()[0]
        };
        assert!((confidence(Some(&text)) - 0.731_058_6).abs() < 1e-6);
        // Special tokens cannot be identified among token ids.
        assert!((confidence(None) - 0.5).abs() < 1e-6);
        let outputs = labeller(&labels).outputs(&rows, None).unwrap();
        assert_eq!(of_outputs(&outputs).unwrap(), None);
        assert_eq!(answer(&outputs).unwrap(), "0 0 1");
    }

    #[test]
    fn an_answer_without_entities_is_an_answer_too() {
        let text = text(&[("a", 0, 1)], AggregationStrategy::Simple);
        let outputs = labeller(&["O", "B-X"])
            .outputs(&[vec![3.0, 0.0]], Some(&text))
            .unwrap();
        assert_eq!(of_outputs(&outputs).unwrap(), Some(Vec::new()));
        assert_eq!(answer(&outputs).unwrap(), "");
        assert!(crate::check_outputs(outputs).is_ok());
        assert_eq!(lines([(4, 9, "LOC"), (0, 2, "PER")]), "0-2 PER\n4-9 LOC");
    }

    #[test]
    fn not_a_number_stays_in_the_outputs() {
        let text = text(&[("a", 0, 1)], AggregationStrategy::Simple);
        let outputs = labeller(&["O", "B-X"])
            .outputs(&[vec![f32::NAN, 0.0]], Some(&text))
            .unwrap();
        assert!(outputs[0].to_f32().unwrap()[0].is_nan() && outputs[1].to_f32().unwrap()[0].is_nan());
    }

    #[test]
    fn other_tokens_than_those_of_the_text_are_refused() {
        let text = text(&[("a", 0, 1)], AggregationStrategy::Simple);
        let refused = labeller(&["O"])
            .outputs(&[vec![0.0], vec![0.0]], Some(&text))
            .unwrap_err();
        assert!(matches!(refused, ModelError::BadInput { .. }));
        assert!(AggregationStrategy::named("last").is_err());
    }
}
