//! Input stage of a text encoder: computes the embeddings before the blocks.

use super::config::{Embeddings, MaskDropout, PositionScheme, Projection, TextEncoderConfig};
use crate::architectures::encoder::bottleneck::{Affine, Shift};
use crate::architectures::layers::Layers;
use crate::architectures::text::{TextReader, Tokens};
use crate::checkpoint::LoadError;
use crate::ops::Ops;
use crate::precision::Table;

/// Computes hidden states from tokens. Tables are in host memory; all except the token table may be empty.
pub(in crate::architectures) struct InputStage<O: Ops> {
    pub(in crate::architectures) reader: TextReader,
    words: Table,
    positions: Table,
    types: Table,
    /// Table whose first row is added to every token.
    constant: Table,
    scheme: PositionScheme,
    width: usize,
    scale: f32,
    dropout: Option<MaskDropout>,
    before_norm: Option<O::Linear>,
    norm: Option<O::Norm>,
    after_norm: Option<O::Linear>,
    trigrams: Option<Trigrams<O>>,
}

/// A layer over each token with its neighbours.
struct Trigrams<O: Ops> {
    layer: O::Linear,
    /// Scale of the position and type embeddings.
    factors: O::Norm,
    /// Number of outputs.
    width: usize,
}

impl<O: Ops> InputStage<O> {
    /// Takes the tables and layers from a checkpoint; `at` returns the full name of a tensor.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        config: &TextEncoderConfig,
        at: &dyn Fn(&str) -> String,
        reader: TextReader,
    ) -> Result<Self, LoadError> {
        let Embeddings {
            limits,
            width,
            words,
            positions,
            scheme,
            types,
            constants,
            scale,
            dropout,
            norm,
            projection,
        } = &config.embeddings;
        let is_trigram = matches!(projection, Some(Projection::Trigrams(_)));
        let beside = if is_trigram { config.encoder.width } else { *width };
        let words = layers.table(&at(words), limits.vocabulary, *width)?;
        let mut table = |name: &str, rows| layers.table(&at(name), rows, beside);
        let types = table(types, if types.is_empty() { 0 } else { limits.types })?;
        let mut constant = Table::default();
        if !constants.is_empty() {
            let (mut sum, mut row) = (vec![0.0; beside], vec![0.0; beside]);
            for (name, rows, factor) in constants {
                table(name, *rows)?.read_row(0, &mut row);
                for (sum, value) in sum.iter_mut().zip(&row) {
                    *sum += factor * value;
                }
            }
            constant = Table::computed(sum, beside);
        }
        let positions = positions.map_or(Ok(Table::default()), |(name, rows)| table(name, rows))?;
        let blocks = config.encoder.width;
        let (mut before_norm, mut after_norm, mut normalised) = (None, None, *width);
        match projection {
            Some(Projection::AfterNorm(name)) => {
                after_norm = Some(layers.linear(&at(name), *width, blocks)?);
            }
            Some(Projection::BeforeNorm(name)) => {
                before_norm = Some(layers.linear_with(&at(name), *width, blocks, false)?);
                normalised = blocks;
            }
            Some(Projection::Trigrams(_)) | None => {}
        }
        let trigrams = match (projection, norm) {
            (Some(Projection::Trigrams(name)), Some(norm)) => {
                Some(Trigrams::take(layers, [&at(name), &at(norm)], *width, blocks)?)
            }
            _ => None,
        };
        let norm = norm.filter(|_| !is_trigram);
        let (epsilon, bias) = (config.encoder.epsilon, config.encoder.norm_bias);
        let norm = norm.map(|norm| layers.layer_norm_with(&at(norm), normalised, epsilon, bias));
        Ok(Self {
            reader,
            words,
            positions,
            types,
            constant,
            scheme: *scheme,
            width: *width,
            before_norm,
            scale: *scale,
            dropout: *dropout,
            norm: norm.transpose()?,
            after_norm,
            trigrams,
        })
    }

    /// Returns the hidden states of sequences.
    pub(in crate::architectures) fn embedded(&self, ops: &O, sequences: &[&Tokens]) -> O::Matrix {
        let mut values = Vec::new();
        if let Some(trigrams) = &self.trigrams {
            let mut beside = Vec::new();
            for tokens in sequences {
                self.with_neighbours(tokens, &mut values);
                self.add_places(tokens, trigrams.width, &mut beside, |beside| {
                    beside.resize(beside.len() + trigrams.width, 0.0);
                });
            }
            return trigrams.embedded(ops, &ops.upload(values, 3 * self.width), beside);
        }
        for tokens in sequences {
            let factor = self.scale * self.dropout.map_or(1.0, |dropout| dropout.factor(tokens));
            let mut words = tokens.ids.iter();
            self.add_places(tokens, self.width, &mut values, |values| {
                let Some(word) = words.next() else { return };
                let from = values.len();
                self.words
                    .push_row(usize::try_from(*word).unwrap_or_default(), values);
                let vector = values.get_mut(from..).unwrap_or_default();
                if self.dropout.is_some_and(|dropout| dropout.mask == *word) {
                    vector.fill(0.0);
                } else {
                    for value in vector.iter_mut() {
                        *value *= factor;
                    }
                }
            });
        }
        let mut embedded = ops.upload(values, self.width);
        if let Some(layer) = &self.before_norm {
            embedded = ops.multiply(&embedded, layer);
        }
        if let Some(norm) = &self.norm {
            embedded = ops.normalise(&embedded, norm);
        }
        match &self.after_norm {
            Some(layer) => ops.multiply(&embedded, layer),
            None => embedded,
        }
    }

    /// Appends a vector per token with `push`, and adds the position and type embeddings to it.
    fn add_places(
        &self,
        tokens: &Tokens,
        width: usize,
        values: &mut Vec<f32>,
        mut push: impl FnMut(&mut Vec<f32>),
    ) {
        let mut counted = 0;
        for (index, (word, kind)) in tokens.ids.iter().zip(&tokens.types).enumerate() {
            let position = match self.scheme {
                PositionScheme::FromZero => index,
                PositionScheme::AfterPadding { pad } if usize::try_from(*word) == Ok(pad) => pad,
                PositionScheme::AfterPadding { pad } => {
                    counted += 1;
                    pad + counted
                }
            };
            push(values);
            let from = values.len().saturating_sub(width);
            let vector = values.get_mut(from..).unwrap_or_default();
            self.types
                .add_row(usize::try_from(*kind).unwrap_or_default(), vector);
            self.positions.add_row(position, vector);
            self.constant.add_row(0, vector);
        }
    }

    /// Appends, for each token, the embeddings of the next token, of the token itself and of the previous one; zeros
    /// beyond the ends.
    fn with_neighbours(&self, tokens: &Tokens, values: &mut Vec<f32>) {
        let none = vec![0.0; self.width];
        for place in 0..tokens.ids.len() {
            for place in [Some(place + 1), Some(place), place.checked_sub(1)] {
                match place.and_then(|place| tokens.ids.get(place)) {
                    Some(word) => self
                        .words
                        .push_row(usize::try_from(*word).unwrap_or_default(), values),
                    None => values.extend_from_slice(&none),
                }
            }
        }
    }
}

impl<O: Ops> Trigrams<O> {
    /// Takes the layer and the scale and shift after it, by their names.
    fn take(
        layers: &mut Layers<'_, O>,
        [layer, norm]: [&str; 2],
        inputs: usize,
        width: usize,
    ) -> Result<Self, LoadError> {
        let norm = Shift::take(layers, norm, width)?;
        let dense = Affine::take(layers, layer, 3 * inputs, width)?.scaled(&norm, true);
        Ok(Self {
            layer: dense.upload(layers),
            factors: norm.factors(layers.ops),
            width,
        })
    }

    fn embedded(&self, ops: &O, words: &O::Matrix, beside: Vec<f32>) -> O::Matrix {
        let mut embedded = ops.multiply(words, &self.layer);
        let mut beside = ops.upload(beside, self.width);
        ops.scale(&mut beside, &self.factors);
        ops.add(&mut embedded, &beside);
        embedded
    }
}

impl MaskDropout {
    /// Returns the factor of the embeddings of these tokens.
    fn factor(self, tokens: &Tokens) -> f32 {
        let visible = tokens.mask.iter().filter(|visible| **visible).count();
        let masks = tokens.ids.iter().filter(|id| **id == self.mask).count();
        let shown = 1.0 - masks as f32 / visible.max(1) as f32;
        self.shown / shown
    }
}
