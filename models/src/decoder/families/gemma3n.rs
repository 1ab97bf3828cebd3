//! Gemma 3n (Gemma Team 2025), text only: Gemma 3 with AltUp streams, a learned residual (`LAuReL`), sparse
//! feed-forwards, per-layer embeddings, and last layers that reuse keys and values.

use kaskade_policy::plan::Partition;

use super::gemma::{self, Positions};
use super::gemma4;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::streams::{StreamLayout, StreamProjections};
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, OutputNorms, QueryKeyNorm};
use crate::ops::Heads;

/// Length of the layer pattern of published models; its last layer is global.
const PERIOD: usize = 5;
/// Default number of sparse feed-forwards, if there are more layers, and their fraction of zeros.
const SPARSE: (usize, f64) = (10, 0.95);

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    if partition != Partition::WHOLE {
        return Err(LoadError::NotPartitioned {
            architecture: "Gemma3nForCausalLM",
            of: partition.of,
        });
    }
    let pattern = [("sliding_window_pattern", serde_json::Value::from(PERIOD))];
    let config = &checkpoint.config.with_defaults(&pattern);
    let key = "altup_active_idx";
    if config.optional(key)?.unwrap_or(0) != 0 {
        return Err(config.invalid_value(key, "only 0 is supported"));
    }
    let sizes = sizes(config)?;
    let (model_config, local_layers) = model_config(config, &sizes)?;
    let width = model_config.width;
    let streams = StreamLayout {
        count: config.size("altup_num_inputs")?,
        rank: config.size("laurel_rank")?,
        scaled: config.optional("altup_correct_scale")?.unwrap_or(true),
    };
    let per_layer_width = config.size("hidden_size_per_layer_input")?;
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        norm_names: NormNames {
            feed_forward: "pre_feedforward_layernorm",
            ..base.norm_names
        },
        sparsity: sparsity(config, sizes.len())?,
        per_layer_width: Some(per_layer_width),
        streams: Some(streams),
        kv_sources: gemma4::sources(config, &local_layers)?,
        inner_sizes: sizes,
        local_layers,
        feed_forward_bias: false,
        ..base
    };
    let rows = config.size("vocab_size_per_layer_input")?;
    gemma4::drop_reused(checkpoint, &layout.kv_sources);
    let all = per_layer_width * layout.inner_sizes.len();
    let mut decoder = gated::read(checkpoint, partition, model_config, &layout)?;
    let weights = &mut checkpoint.weights;
    decoder.streams = Some(StreamProjections::take(weights, "model", width, streams.count)?);
    let vocabulary = decoder.model_config.vocabulary;
    decoder.per_layer_embeddings = Some(gemma4::per_layer_embeddings(
        weights,
        width,
        (rows, vocabulary),
        (all, per_layer_width),
    )?);
    Ok(decoder)
}

/// Returns the size of each feed-forward.
fn sizes(config: &Config) -> Result<Vec<usize>, LoadError> {
    let (key, count) = ("intermediate_size", config.size("num_hidden_layers")?);
    let listed = config.required::<serde_json::Value>(key)?;
    let sizes = match listed.as_array() {
        Some(_) => config.required::<Vec<usize>>(key)?,
        None => vec![config.size(key)?; count],
    };
    if sizes.len() == count && sizes.iter().all(|size| (1..=1 << 24).contains(size)) {
        return Ok(sizes);
    }
    Err(config.invalid_value(key, format!("it must have {count} sizes above 0")))
}

fn model_config(config: &Config, sizes: &[usize]) -> Result<(ModelConfig, Vec<bool>), LoadError> {
    let mut single = config.clone();
    single.set(
        "intermediate_size",
        sizes.first().copied().unwrap_or_default().into(),
    );
    let base = gated::model_config(&single, gemma::GLOBAL)?;
    let Positions {
        window,
        local_layers,
        near,
        ..
    } = gemma::positions_3(config, base.heads.head_dim)?;
    let model_config = ModelConfig {
        heads: Heads {
            scale: 1.0,
            ..base.heads
        },
        activation: gemma::hidden_activation(config)?,
        local: window.map(|window| LocalAttention {
            window: Some(window),
            rotary: Some(near),
        }),
        query_key_norm: QueryKeyNorm::EachHeadAndValue,
        output_norms: OutputNorms::Outputs,
        logit_softcap: config.optional("final_logit_softcapping")?,
        embedding_scale: Some((base.width as f32).sqrt()),
        ..base
    };
    Ok((model_config, local_layers))
}

/// Returns, per layer, the threshold below which the gates of its feed-forward become zero, in standard deviations
/// above their mean; `None` for a dense layer.
fn sparsity(config: &Config, count: usize) -> Result<Vec<Option<f32>>, LoadError> {
    let key = "activation_sparsity_pattern";
    let stated = config.optional::<serde_json::Value>(key)?;
    let shares = match stated.filter(|stated| !stated.is_null()) {
        None => {
            let (sparse, share) = SPARSE;
            let sparse = if count > sparse { sparse } else { 0 };
            (0..count)
                .map(|layer| if layer < sparse { share } else { 0.0 })
                .collect()
        }
        Some(value) if value.is_array() => config.required::<Vec<f64>>(key)?,
        Some(_) => vec![config.required::<f64>(key)?; count],
    };
    if shares.len() != count || !shares.iter().all(|share| (0.0..1.0).contains(share)) {
        let reason = format!("it must have {count} shares from 0 to below 1");
        return Err(config.invalid_value(key, reason));
    }
    let cut = shares
        .iter()
        .map(|share| (*share > 0.0).then(|| quantile(*share) as f32));
    Ok(cut.collect())
}

/// Returns the quantile of the standard normal distribution (Wichura 1988, algorithm AS 241, PPND7), to seven digits.
fn quantile(share: f64) -> f64 {
    let ratio = |x: f64, over: &[f64], under: &[f64]| {
        let of = |coefficients: &[f64]| coefficients.iter().rev().fold(0.0, |sum, next| sum * x + next);
        of(over) / of(under)
    };
    let centred = share - 0.5;
    if centred.abs() <= 0.425 {
        let over = [3.387_132_717_9, 50.434_271_938, 159.291_132_02, 59.109_374_720];
        let under = [1.0, 17.895_169_469, 78.757_757_664, 67.187_563_600];
        return centred * ratio(0.180_625 - centred * centred, &over, &under);
    }
    let tail = (-share.min(1.0 - share).ln()).sqrt();
    let value = if tail <= 5.0 {
        let over = [
            1.423_437_277_7,
            2.756_815_390_0,
            1.306_728_481_6,
            0.170_238_211_03,
        ];
        let under = [1.0, 0.737_001_642_50, 0.120_211_329_75];
        ratio(tail - 1.6, &over, &under)
    } else {
        let over = [
            6.657_905_115_0,
            3.081_226_386_0,
            0.428_682_943_37,
            0.017_337_203_997,
        ];
        let under = [1.0, 0.241_978_942_25, 0.012_258_202_635];
        ratio(tail - 5.0, &over, &under)
    };
    value.copysign(centred)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution_are_those_of_tables() {
        for (share, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_627),
            (0.1, -1.281_551_566),
            (0.3, -0.524_400_513),
            (0.999_999, 4.753_424_309),
        ] {
            let found = quantile(share);
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
    }
}
