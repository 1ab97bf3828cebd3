//! A layer of a Llama-like decoder, read by the tensor names of the family's [`Layout`].

use super::experts::{ExpertWeights, SharedExpert};
use super::gated::{Extra, HeadNormTensors, Layout, NormKind};
use super::latent::LatentWeightsOf;
use super::recurrent::RecurrentLayout;
use super::weights::{
    HeadNorms, LayerWeights, LinearWeights, ModelConfig, NormWeights, OutputNorms, Parallel, PerLayerGate,
    QueryKeyNorm, StreamWeights,
};
use crate::checkpoint::{LoadError, Weights};
use crate::ops::Activation;

/// Reads the layer at an index; `source` is the layer whose keys and values it reuses, if it has none of its own.
pub(super) fn read(
    weights: &mut Weights,
    model_config: &ModelConfig,
    layout: &Layout,
    (index, source): (usize, Option<&LayerWeights>),
) -> Result<LayerWeights, LoadError> {
    let local = layout.local_layers.get(index).copied().unwrap_or_default();
    let mut tensors = LayerTensors {
        weights,
        model_config,
        layout,
        index,
        local,
        source,
    };
    let layer = tensors.mixer()?;
    let layer = tensors.feed_forward(layer)?;
    let layer = tensors.norms(layer)?;
    tensors.token_gate(layer)
}

/// Reader of a layer's tensors.
struct LayerTensors<'a> {
    weights: &'a mut Weights,
    model_config: &'a ModelConfig,
    layout: &'a Layout,
    index: usize,
    /// Whether the layer has the attention of [`ModelConfig::local`].
    local: bool,
    /// The layer whose keys and values this layer reuses.
    source: Option<&'a LayerWeights>,
}

impl LayerTensors<'_> {
    fn at(&self, name: &str) -> String {
        let number = self.layout.layer_names.get(self.index).unwrap_or(&self.index);
        format!("{}.layers.{number}.{name}", self.layout.base)
    }

    fn linear(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<LinearWeights, LoadError> {
        let name = self.at(name);
        LinearWeights::take(self.weights, &name, inputs, outputs, bias)
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<NormWeights, LoadError> {
        let name = self.at(name);
        let norm = self.layout.norms.take(self.weights, &name, width)?;
        Ok(norm.plus(self.layout.norm_offset))
    }

    /// Returns the layout of the recurrent mixer, if the layer has one.
    fn recurrent(&self) -> Option<&RecurrentLayout> {
        let recurrent = self.layout.recurrent.as_ref();
        recurrent.filter(|recurrent| recurrent.layers.get(self.index).copied().unwrap_or_default())
    }

    /// Returns whether the layer has attention.
    fn attends(&self) -> bool {
        self.recurrent()
            .is_none_or(|recurrent| recurrent.beside_attention)
    }

    /// Reads attention and recurrent mixer.
    fn mixer(&mut self) -> Result<LayerWeights, LoadError> {
        let layer = if self.attends() {
            self.attention()?
        } else {
            LayerWeights::default()
        };
        let named = self
            .recurrent()
            .map(|layout| (self.at(layout.module), layout.mixer.clone()));
        let recurrent = named.map(|(name, mixer)| mixer.take(self.weights, &name, self.model_config));
        Ok(LayerWeights {
            recurrent: recurrent.transpose()?,
            ..layer
        })
    }

    fn attention(&mut self) -> Result<LayerWeights, LoadError> {
        let (layout, width) = (self.layout, self.model_config.width);
        if let Some(latent) = layout.latent {
            let prefix = self.at("self_attn");
            let read = latent.take(self.weights, &prefix, self.model_config, layout.qkv_bias)?;
            let LatentWeightsOf {
                query_latent,
                query,
                key_value_latent,
                key_value,
                output,
            } = read;
            return Ok(LayerWeights {
                query_latent,
                query,
                key_value_latent: Some(key_value_latent),
                key_value,
                output,
                ..LayerWeights::default()
            });
        }
        let heads = *self.model_config.heads_of(self.local);
        let (query, key, bias) = (heads.query_width(), heads.key_width(), layout.qkv_bias);
        let gated = layout.extra == Extra::OutputGate;
        let (query, key_value) = if let Some(fused) = layout.fused_projections {
            self.linear(fused, width, query + 2 * key, bias)?.split(query)
        } else if let Some(source) = self.source {
            let query = self.linear("self_attn.q_proj", width, query, bias)?;
            (query, source.key_value.clone())
        } else {
            let keys = self.linear("self_attn.k_proj", width, key, bias)?;
            let values = if layout.keys_are_values && !self.local {
                keys.clone()
            } else if let Some(value_dim) = layout.value_dim {
                let values = self.linear("self_attn.v_proj", width, heads.keys * value_dim, bias)?;
                values.padded_outputs(value_dim, heads.head_dim)
            } else {
                self.linear("self_attn.v_proj", width, key, bias)?
            };
            let all = if gated { 2 * query } else { query };
            let query = self.linear("self_attn.q_proj", width, all, bias)?;
            (query, keys.concat_outputs(&values))
        };
        let (query, gate) = if gated {
            let (query, gate) = query.by_part(heads.head_dim, 2).split(heads.query_width());
            (query, Some(gate))
        } else if layout.extra == Extra::OwnOutputGate {
            let gate = self.linear("self_attn.gate_proj", width, query.outputs, false)?;
            (query, Some(gate))
        } else if layout.extra == Extra::HeadGate {
            let gate = self.linear("self_attn.gate_proj", width, heads.queries, false)?;
            (query, Some(gate.repeated_outputs(heads.head_dim)))
        } else {
            (query, None)
        };
        let output = if let Some(value_dim) = layout.value_dim {
            let output = self.linear(
                layout.output,
                heads.queries * value_dim,
                width,
                layout.output_bias,
            )?;
            output.padded_inputs(value_dim, heads.head_dim)
        } else {
            self.linear(layout.output, query.outputs, width, layout.output_bias)?
        };
        let sinks = if layout.extra == Extra::Sinks || layout.extra == Extra::LocalSinks && self.local {
            // The name in published files of MiMo.
            let published = self.at("self_attn.attention_sink_bias");
            let name = if self.weights.contains(&published) {
                published
            } else {
                self.at("self_attn.sinks")
            };
            self.weights.take(&name, &[heads.queries])?
        } else {
            Vec::new()
        };
        Ok(LayerWeights {
            query,
            key_value,
            sinks,
            gate,
            output,
            reuses_kv: self.source.is_some(),
            ..LayerWeights::default()
        })
    }

    /// Adds the gate of per-layer embeddings, and the factor of the output.
    fn token_gate(&mut self, layer: LayerWeights) -> Result<LayerWeights, LoadError> {
        let width = self.model_config.width;
        let output_scale = self.layout.output_scale.map(|name| {
            let name = self.at(name);
            self.weights.take(&name, &[1])
        });
        let output_scale = output_scale.transpose()?;
        let token_gate = self
            .layout
            .per_layer_width
            .map(|inner| -> Result<PerLayerGate, LoadError> {
                Ok(PerLayerGate {
                    gate: self.linear("per_layer_input_gate", width, inner, false)?,
                    projection: self.linear("per_layer_projection", inner, width, false)?,
                    norm: self.norm("post_per_layer_input_norm", width)?,
                })
            });
        let prefix = self.at("");
        let prefix = prefix.trim_end_matches('.');
        let streams = self.layout.streams;
        let streams = streams.map(|layout| StreamWeights::take(self.weights, prefix, width, layout));
        Ok(LayerWeights {
            streams: streams.transpose()?,
            token_gate: token_gate.transpose()?,
            output_scale: output_scale.and_then(|scale| scale.first().copied()),
            ..layer
        })
    }

    /// Adds the feed-forward and the experts.
    fn feed_forward(&mut self, layer: LayerWeights) -> Result<LayerWeights, LoadError> {
        let (layout, width, inner) = (
            self.layout,
            self.model_config.width,
            self.model_config.intermediate_size,
        );
        let inner = layout.inner_sizes.get(self.index).copied().unwrap_or(inner);
        let mixture = layout.experts.as_ref();
        let mixture = mixture.filter(|experts| experts.layers.get(self.index).copied().unwrap_or_default());
        let (mut up, mut down) = (Vec::new(), LinearWeights::default());
        let shared = mixture.map(|experts| experts.shared);
        if let Some(Some(SharedExpert {
            block: Some(block),
            inner,
            bias,
            ..
        })) = shared
        {
            for part in ["gate_proj", "up_proj"] {
                up.push(self.linear(&format!("{block}.{part}"), width, inner, bias)?);
            }
            down = self.linear(&format!("{block}.down_proj"), inner, width, bias)?;
        } else if shared.is_none_or(|shared| shared.is_some()) {
            let parts = if self.model_config.gated { 2 } else { 1 };
            let each = parts * inner / layout.up.len().max(1);
            for name in layout.up {
                up.push(self.linear(name, width, each, layout.feed_forward_bias)?);
            }
            down = self.linear(layout.down, inner, width, layout.feed_forward_bias)?;
        }
        let experts = mixture.map(|experts| {
            // Experts that run in parallel with the feed-forward have no module of their own.
            let block = self.at(experts.block);
            let block = block.trim_end_matches('.').to_owned();
            ExpertWeights::take(self.weights, &block, width, experts)
        });
        Ok(LayerWeights {
            up: LinearWeights::concatenated(up),
            down,
            activation: self.activation()?,
            sparsity: layout.sparsity.get(self.index).copied().flatten(),
            experts: experts.transpose()?,
            ..layer
        })
    }

    /// Reads the coefficients of the activation, if they are learned; they are stored as the inverse of a softplus.
    fn activation(&mut self) -> Result<Option<Activation>, LoadError> {
        if self.layout.extra != Extra::Activation {
            return Ok(None);
        }
        let mut number = |name: &str, shape: &[usize]| -> Result<f32, LoadError> {
            let name = self.at(&format!("mlp.act_fn.{name}"));
            let values = self.weights.take(&name, shape)?;
            Ok(values.first().copied().unwrap_or_default())
        };
        let (above, below) = (number("alpha_p", &[1])?, number("alpha_n", &[1])?);
        let slope = number("beta", &[])?;
        // Values between `eps` and zero are not integrated; 1e-6 is below the precision of the result.
        number("eps", &[])?;
        let softplus = |value: f32| value.max(0.0) + (-value.abs()).exp().ln_1p();
        Ok(Some(Activation::Xielu {
            above: softplus(above),
            below: slope + softplus(below),
            slope,
        }))
    }

    /// Adds the norms.
    fn norms(&mut self, layer: LayerWeights) -> Result<LayerWeights, LoadError> {
        let (names, width) = (self.layout.norm_names, self.model_config.width);
        let config = self.model_config;
        let own = self.layout.recurrent_input_norms && !self.attends();
        let mut norm = |used: bool, name: &str| used.then(|| self.norm(name, width)).transpose();
        let after = config.output_norms != OutputNorms::No && !own;
        let before = !config.no_input_norms || own;
        let attention_output_norm = norm(after, names.attention_output)?;
        let feed_forward_output_norm = norm(after, names.feed_forward_output)?;
        let reads_input = config.parallel != Parallel::SharedNorm;
        let attention_norm = norm(before, names.attention)?;
        let feed_forward_norm = norm(before && reads_input, names.feed_forward)?;
        let (mut attention_sub_norm, mut feed_forward_sub_norm) = (None, None);
        if self.layout.extra == Extra::InnerNorms {
            attention_sub_norm = Some(self.norm("self_attn.attn_sub_norm", config.heads.query_width())?);
            feed_forward_sub_norm = Some(self.norm("mlp.ffn_sub_norm", config.intermediate_size)?);
        }
        Ok(LayerWeights {
            local: self.local,
            attention_norm,
            feed_forward_norm,
            attention_output_norm,
            feed_forward_output_norm,
            head_norms: self.head_norms()?,
            attention_sub_norm,
            feed_forward_sub_norm,
            ..layer
        })
    }

    fn head_norms(&mut self) -> Result<Option<HeadNorms>, LoadError> {
        let (kind, heads) = (
            self.model_config.query_key_norm,
            *self.model_config.heads_of(self.local),
        );
        if kind == QueryKeyNorm::No || !self.attends() {
            return Ok(None);
        }
        let plain = HeadNorms {
            query: NormWeights::plain_rms(heads.head_dim),
            key: NormWeights::plain_rms(heads.head_dim),
            factors: None,
        };
        match self.layout.head_norms.tensors {
            HeadNormTensors::Local => return Ok(self.local.then_some(plain)),
            HeadNormTensors::Plain => return Ok(Some(plain)),
            _ => {}
        }
        let [query, key] = self.layout.head_norms.names;
        if kind == QueryKeyNorm::EachHeadAndValue {
            let queries = self.norm(query, heads.head_dim)?.gamma.repeat(heads.queries);
            let reused = self.source.and_then(|source| source.head_norms.as_ref());
            let reused = reused.and_then(|norms| norms.factors.as_ref());
            let keys = if let Some([_, keys]) = reused {
                keys.clone()
            } else {
                let mut keys = self.norm(key, heads.head_dim)?.gamma.repeat(heads.keys);
                keys.resize(2 * heads.key_width(), 1.0);
                keys
            };
            return Ok(Some(HeadNorms {
                factors: Some([queries, keys]),
                ..plain
            }));
        }
        if self.layout.head_norms.tensors == HeadNormTensors::Norm {
            let [[_, queries], [_, keys]] = [heads.queries, heads.keys].map(|count| kind.parts(count));
            return Ok(Some(HeadNorms {
                query: self.norm(query, queries * heads.head_dim)?,
                key: self.norm(key, keys * heads.head_dim)?,
                factors: None,
            }));
        }
        let queries = self.factors(query, heads.queries)?;
        let mut keys = self.factors(key, heads.keys)?;
        keys.resize(2 * heads.key_width(), 1.0);
        Ok(Some(HeadNorms {
            query: NormWeights::plain(heads.head_dim),
            key: NormWeights::plain(heads.head_dim),
            factors: Some([queries, keys]),
        }))
    }

    /// Reads the concatenated norm weights of `count` heads.
    fn factors(&mut self, name: &str, count: usize) -> Result<Vec<f32>, LoadError> {
        let (name, head_dim) = (self.at(name), self.model_config.heads.head_dim);
        if self.layout.head_norms.tensors == HeadNormTensors::Rows {
            return self.weights.take(&format!("{name}.weight"), &[count, head_dim]);
        }
        let mut factors = Vec::new();
        for head in 0..count {
            let norm = NormKind::Unbiased.take(self.weights, &format!("{name}.norms.{head}"), head_dim)?;
            factors.extend(norm.gamma);
        }
        Ok(factors)
    }
}
