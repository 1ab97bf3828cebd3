//! A partition of a decoder's layers, for a model over several workers (HybridServe Edinburgh §V: the partitions
//! `S_i`).
//!
//! Computes whole texts without a cache: partitions exchange hidden states, and the last one returns the logits of
//! each text's next token.
//! logits of each text's next token.

use crate::decoder::weights::{Decoder, ModelConfig};
use crate::generation::layers::encoder::DeviceEncoder;
use crate::generation::layers::host_layer::HostLayer;
use crate::generation::layers::layer::{ContextSpans, Layer};
use crate::generation::layers::layer_context::LayerContext;
use crate::generation::layers::output_head::OutputHead;
use crate::generation::layers::recurrent::RecurrentMixer;
use crate::ops::{AttentionSpans, Ops, OpsError, Span};

/// An encoder with its layers.
struct WholeEncoder<M: Ops> {
    form: DeviceEncoder<M>,
    layers: Vec<Layer<M>>,
}

/// Contiguous layers of a decoder, with its head if they are the last. Or a whole encoder-decoder as a classifier,
/// whose decoder reads a start token and then the text of its encoder.
pub(crate) struct DecoderPartition<M: Ops> {
    ops: M,
    encoder: Option<WholeEncoder<M>>,
    /// The decoder without layers and head, and without an embedding that the head stores.
    decoder: Decoder,
    layers: Vec<Layer<M>>,
    position_bias: Option<M::Matrix>,
    final_norm: M::Norm,
    head: Option<OutputHead<M>>,
}

impl<M: Ops> DecoderPartition<M> {
    /// Uploads the layers of `decoder`; with its norm and head if `last`.
    pub(crate) fn new(ops: M, mut decoder: Decoder, last: bool) -> Self {
        let epsilon = decoder.model_config.epsilon;
        let kind = decoder.weight_type;
        let resident = |weights| HostLayer::new(&ops, weights, epsilon, kind).resident(&ops);
        let layers = std::mem::take(&mut decoder.layers).into_iter();
        let layers = layers.map(resident).collect();
        let encoder = decoder.encoder.take().map(|mut encoder| {
            let layers = std::mem::take(&mut encoder.layers).into_iter();
            let layers: Vec<Layer<M>> = layers.map(resident).collect();
            WholeEncoder {
                form: DeviceEncoder::new(&ops, encoder, layers.len(), epsilon),
                layers,
            }
        });
        let head = last.then(|| OutputHead::take(&ops, &mut decoder));
        let final_norm = decoder.final_norm.clone();
        let position_bias = decoder.model_config.relative_bias.as_ref();
        Self {
            position_bias: position_bias
                .map(|position_bias| ops.upload(position_bias.values.clone(), position_bias.width())),
            layers,
            final_norm: ops.norm(final_norm.gamma, final_norm.beta, epsilon),
            encoder,
            head,
            decoder,
            ops,
        }
    }

    /// Returns the configuration of the whole model.
    pub(crate) fn model_config(&self) -> &ModelConfig {
        &self.decoder.model_config
    }

    /// Embeds the tokens of a text, `[tokens, width]`. Tokens must be below the vocabulary size. With an encoder, the
    /// rows of the decoder's tokens follow.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let embedding = |token: usize, out: &mut [f32]| {
            if let Some(head) = &self.head {
                head.read_embedding(&self.ops, token, out);
            }
        };
        let Some(encoder) = &self.encoder else {
            return self.decoder.embed(tokens, 0, embedding);
        };
        let mut embedded = self.decoder.embed_prompt(tokens, &encoder.form.inputs, embedding);
        let last = tokens.last().filter(|_| encoder.form.starts_with_last);
        let start = last.copied().unwrap_or(encoder.form.start_token);
        let begun = std::iter::once(start).chain(tokens.iter().copied());
        let begun: Vec<u32> = begun.take(tokens.len()).collect();
        embedded.extend(self.decoder.embed(&begun, 0, embedding));
        embedded
    }

    /// Returns the number of tokens of a text with these hidden states.
    pub(crate) fn tokens(&self, states: &[f32]) -> usize {
        let rows = states.len() / self.decoder.model_config.width.max(1);
        if self.encoder.is_some() { rows / 2 } else { rows }
    }

    /// Computes the layers on the hidden states of texts; returns the resulting values.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn forward(&self, states: Vec<f32>, lengths: &[usize]) -> Result<Vec<f32>, OpsError> {
        let states = self.hidden_states(states, lengths)?;
        Ok(self.ops.values(&states)?.into_owned())
    }

    /// Computes the layers on the concatenated hidden states of texts, `[total tokens, width]`; `lengths` are the
    /// token counts of the texts. With an encoder, each text has the hidden states of its tokens twice, for the
    /// encoder and for the decoder; the result has those of the decoder.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn hidden_states(&self, states: Vec<f32>, lengths: &[usize]) -> Result<M::Matrix, OpsError> {
        let model_config = &self.decoder.model_config;
        let x = self.ops.upload(states, model_config.width);
        let Some(encoder) = &self.encoder else {
            return self.decode(x, lengths, None);
        };
        let half = |second: usize| {
            let mut next = 0;
            let spans = lengths.iter().map(|count| {
                next += 2 * count;
                Span {
                    matrix: &x,
                    from: next - (2 - second) * count,
                    count: *count,
                }
            });
            let spans: Vec<Span<'_, M::Matrix>> = spans.collect();
            self.ops.gather(&spans, model_config.width)
        };
        let mut source = half(0);
        for layer in encoder.layers.iter().enumerate() {
            encoder
                .form
                .read((&self.ops, model_config), layer, &mut source, lengths)?;
        }
        self.decode(half(1), lengths, Some(&source))
    }

    /// Computes the decoder's layers on hidden states; `source` is the encoder's output.
    fn decode(
        &self,
        mut x: M::Matrix,
        lengths: &[usize],
        source: Option<&M::Matrix>,
    ) -> Result<M::Matrix, OpsError> {
        let ctx = LayerContext {
            ops: &self.ops,
            model_config: &self.decoder.model_config,
            position_bias: self.position_bias.as_ref(),
            token_input: None,
        };
        let positions: Vec<usize> = lengths.iter().flat_map(|length| 0..*length).collect();
        for layer in &self.layers {
            let cross = source.zip(layer.cross.as_ref());
            let cross = cross.map(|(source, cross)| self.ops.multiply(source, &cross.key_value));
            let mut next = 0;
            let prompts = cross.iter().flat_map(|matrix| {
                lengths.iter().map(|count| Span {
                    matrix,
                    from: 0,
                    count: *count,
                })
            });
            let prompts = prompts.map(|span| {
                next += span.count;
                AttentionSpans {
                    queries: span.count,
                    cached: vec![Span {
                        from: next - span.count,
                        ..span
                    }],
                    new_kv: None,
                }
            });
            let prompts: Vec<AttentionSpans<'_, M::Matrix>> = prompts.collect();
            let new_kv = layer.project(ctx, &x, &positions);
            let mut next = 0;
            let self_spans = lengths.iter().map(|count| {
                let from = next;
                next += count;
                let own = new_kv.kv.as_ref().map(|matrix| Span {
                    matrix,
                    from,
                    count: *count,
                });
                let (all, earlier) = if ctx.model_config.bidirectional {
                    (own, None)
                } else {
                    (None, own)
                };
                AttentionSpans {
                    queries: *count,
                    cached: all.into_iter().collect(),
                    new_kv: earlier,
                }
            });
            let self_spans: Vec<AttentionSpans<'_, M::Matrix>> = self_spans.collect();
            let recurrent = layer.recurrent.as_ref();
            let size = recurrent.map_or(0, RecurrentMixer::state_elements);
            let mut states = vec![vec![0.0; size]; recurrent.map_or(0, |_| lengths.len())];
            let past = ContextSpans {
                self_spans: &self_spans,
                prompts: &prompts,
                states: states.iter_mut().map(Vec::as_mut_slice).collect(),
            };
            layer.forward(ctx, &mut x, &positions, &new_kv.act, past)?;
        }
        Ok(x)
    }

    /// Returns the logits of hidden states `[rows, width]`, one row each; empty unless the partition is the last.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn logits(&self, states: Vec<f32>) -> Result<Vec<Vec<f32>>, OpsError> {
        let Some(head) = &self.head else {
            return Ok(Vec::new());
        };
        let x = self.ops.upload(states, self.decoder.model_config.width);
        let logits = head.logits(&self.ops, &self.ops.normalise(&x, &self.final_norm));
        let values = self.ops.values(&logits)?;
        let rows = values.chunks(self.decoder.model_config.vocabulary.max(1));
        let capped = rows.map(|row| {
            let mut row = row.to_vec();
            self.decoder.model_config.scale_logits(&mut row);
            row
        });
        Ok(capped.collect())
    }
}
