//! Decoders with random weights.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[cfg(test)]
use super::weights::{CrossWeights, Encoder, LatentWeights, TokenInputs};
use super::weights::{
    Decoder, HeadNorms, LayerWeights, LinearWeights, ModelConfig, NormWeights, OutputNorms, Parallel,
};
#[cfg(test)]
use crate::ops::{Activation, RelativeBias};
use crate::precision::{Table, WeightType};

impl LayerWeights {
    /// Creates a random layer; every second layer is local, starting with the first.
    fn random(rng: &mut ChaCha8Rng, model_config: &ModelConfig, index: usize) -> Self {
        let (width, learned) = (model_config.width, model_config.has_learned_positions());
        let mut norm = |used: bool, width: usize| used.then(|| NormWeights::random(rng, width, !learned));
        let (heads, normalised) = (&model_config.heads, model_config.query_key_norm);
        let heads = [heads.queries, heads.keys].map(|count| {
            let [parts, each] = normalised.parts(count);
            norm(parts > 0, each * heads.head_dim)
        });
        let outputs = [(); 2].map(|()| norm(model_config.output_norms != OutputNorms::No, width));
        let [query, key] = heads;
        let [attention, feed_forward] = outputs;
        Self {
            local: model_config.local.is_some() && index.is_multiple_of(2),
            head_norms: query.zip(key).map(|(query, key)| HeadNorms {
                query,
                key,
                factors: None,
            }),
            attention_output_norm: attention,
            feed_forward_output_norm: feed_forward,
            attention_norm: (!model_config.no_input_norms).then(|| NormWeights::random(rng, width, !learned)),
            query: LinearWeights::random(rng, width, model_config.heads.query_width(), learned),
            key_value: LinearWeights::random(rng, width, model_config.kv_width(), learned),
            output: LinearWeights::random(rng, model_config.heads.query_width(), width, learned),
            feed_forward_norm: (model_config.parallel != Parallel::SharedNorm
                && !model_config.no_input_norms)
                .then(|| NormWeights::random(rng, width, !learned)),
            up: LinearWeights::random(
                rng,
                width,
                model_config.intermediate_size * if model_config.gated { 2 } else { 1 },
                learned,
            ),
            down: LinearWeights::random(rng, model_config.intermediate_size, width, learned),
            ..Self::default()
        }
    }
}

impl Decoder {
    /// Builds a decoder with random weights, for measurements and for tests without a checkpoint. With learned
    /// positions, its norms have offsets and its layers have biases.
    pub fn random(model_config: ModelConfig, layers: usize, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (width, learned) = (model_config.width, model_config.has_learned_positions());
        let layers = (0..layers)
            .map(|index| LayerWeights::random(rng, &model_config, index))
            .collect();
        Self {
            weight_type: WeightType::F32,
            embedding: Table::new(
                LinearWeights::random(rng, width, model_config.vocabulary, false).weight,
                width,
            ),
            embedding_norm: None,
            positions: learned.then(|| {
                let rows = LinearWeights::random(rng, width, model_config.context, false).weight;
                Table::new(rows, width)
            }),
            layers,
            final_norm: NormWeights::random(rng, width, !learned),
            head_layer: None,
            head: LinearWeights::random(rng, width, model_config.vocabulary, false),
            encoder: None,
            per_layer_embeddings: None,
            streams: None,
            model_config,
        }
    }

    /// Adds an encoder of `layers` layers for prompts of at most `context` tokens, and cross-attention, with random
    /// weights. The start token is 0.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_random_encoder(mut self, layers: usize, context: usize, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (model_config, max_distance) = (&self.model_config, 8);
        let (width, rms) = (model_config.width, !model_config.has_learned_positions());
        for layer in &mut self.layers {
            layer.cross = Some(CrossWeights {
                norm: NormWeights::random(rng, width, rms),
                output_norm: None,
                query: LinearWeights::random(rng, width, model_config.heads.query_width(), !rms),
                key_value: LinearWeights::random(rng, width, model_config.kv_width(), !rms),
                output: LinearWeights::random(rng, model_config.heads.query_width(), width, !rms),
            });
        }
        self.encoder = Some(Encoder {
            context,
            start_token: 0,
            starts_with_last: false,
            relative_bias: Some(RelativeBias {
                max_distance,
                values: LinearWeights::random(rng, 2 * max_distance + 1, model_config.heads.queries, false)
                    .weight,
            }),
            inputs: TokenInputs::default(),
            layers: (0..layers)
                .map(|index| LayerWeights::random(rng, model_config, index))
                .collect(),
            final_norm: NormWeights::random(rng, width, rms),
        });
        self
    }

    /// Adds latent attention, attention sinks, per-head norm weights and per-layer activations, with random weights.
    /// Requires query-key norms per head.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_random_latents(mut self, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (width, rank, more) = (self.model_config.width, 8, 2);
        let heads = self.model_config.heads;
        for layer in &mut self.layers {
            let mut latent = |outputs| LatentWeights {
                projection: LinearWeights::random(rng, width, outputs, false),
                norm: NormWeights::random(rng, rank, true),
            };
            layer.query_latent = Some(latent(rank));
            layer.key_value_latent = Some(latent(rank + more));
            layer.query = LinearWeights::random(rng, rank, heads.query_width(), true);
            layer.key_value = LinearWeights::random(rng, rank + more, 2 * heads.key_width(), true);
            layer.sinks = LinearWeights::random(rng, 1, heads.queries, false).weight;
            layer.activation = Some(Activation::Xielu {
                above: 0.7,
                below: 1.1,
                slope: 0.5,
            });
            if let Some(norms) = &mut layer.head_norms {
                let mut factors = |count| NormWeights::random(rng, count, true).gamma;
                norms.factors = Some([factors(heads.query_width()), factors(2 * heads.key_width())]);
            }
        }
        self
    }
}
