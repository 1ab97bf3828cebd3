//! BART (Lewis et al. 2020) and related encoder-decoders: mBART, Pegasus, Marian, M2M100 with NLLB, Blenderbot, LED.
//!
//! These models differ in the placement of norms, in their positions, and in configuration defaults.

use serde_json::Value;

use super::opt;
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, require, start_token};
use crate::decoder::weights::{
    CrossWeights, Decoder, Encoder, LayerWeights, LinearWeights, LocalAttention, ModelConfig, NormWeights,
    OutputNorms, TokenInputs,
};
use crate::precision::Table;

/// Epsilon of torch's layer norms.
const EPSILON: f32 = 1e-5;

/// Differences between the families.
#[expect(clippy::struct_excessive_bools, reason = "how families differ")]
struct Layout {
    /// Prefix of the base model's tensors.
    base: &'static str,
    /// Whether the encoder has sliding-window attention with Longformer's names (LED).
    windows: bool,
    /// Whether norms follow attention and feed-forward (post-norm); otherwise they precede them, and there is a final
    /// norm.
    norms_after: bool,
    /// Whether the sum of token and position embeddings is normalised.
    embedding_norm: bool,
    positions: Positions,
    /// Default of `scale_embedding`.
    scales: bool,
    /// Default of `activation_function`.
    activation: &'static str,
    /// Default of `decoder_start_token_id`.
    start_token: Option<u32>,
    /// Whether the decoder of a classifier begins with the last token of the text.
    starts_with_last: bool,
}

/// Kind of position embeddings.
#[derive(Clone, Copy)]
enum Positions {
    /// Learned, after this many unused rows.
    Learned(usize),
    /// Sinusoidal, sines before cosines; files may contain them.
    Sinusoidal,
    /// Sinusoidal as in tensor2tensor, from the padding token's id plus one on; not in files.
    AfterPadding,
}

const BART: Layout = Layout {
    base: "model",
    windows: false,
    norms_after: true,
    embedding_norm: true,
    positions: Positions::Learned(2),
    scales: false,
    activation: "gelu",
    start_token: Some(2),
    starts_with_last: false,
};

pub(super) fn read_bart(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read(checkpoint, &BART)
}

const MBART: Layout = Layout {
    norms_after: false,
    start_token: None,
    ..BART
};

const PLBART: Layout = Layout {
    scales: true,
    start_token: None,
    ..BART
};

pub(super) fn read_mbart(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read(checkpoint, &MBART)
}

pub(super) fn read_plbart(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read(checkpoint, &PLBART)
}

/// A model whose decoder begins with the last token of the text, so that its start token is not used.
const MBART_CLASSIFIER: Layout = Layout {
    start_token: Some(0),
    starts_with_last: true,
    ..MBART
};

/// As [`MBART_CLASSIFIER`].
const PLBART_CLASSIFIER: Layout = Layout {
    start_token: Some(0),
    starts_with_last: true,
    ..PLBART
};

pub(super) fn read_mbart_classifier(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read(checkpoint, &MBART_CLASSIFIER)
}

pub(super) fn read_plbart_classifier(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read(checkpoint, &PLBART_CLASSIFIER)
}

pub(super) fn read_pegasus(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let layout = Layout {
        norms_after: false,
        embedding_norm: false,
        positions: Positions::Sinusoidal,
        start_token: Some(0),
        ..BART
    };
    read(checkpoint, &layout)
}

pub(super) fn read_marian(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let apart = "separate vocabularies of encoder and decoder are not supported";
    require(config, "share_encoder_decoder_embeddings", true, apart)?;
    if let Some(own) = config.optional_size("decoder_vocab_size")?
        && own != config.size("vocab_size")?
    {
        return Err(config.invalid_value("decoder_vocab_size", apart));
    }
    let layout = Layout {
        embedding_norm: false,
        positions: Positions::Sinusoidal,
        start_token: Some(58_100),
        ..BART
    };
    read(checkpoint, &layout)
}

pub(super) fn read_m2m_100(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let layout = Layout {
        norms_after: false,
        embedding_norm: false,
        positions: Positions::AfterPadding,
        scales: true,
        activation: "relu",
        ..BART
    };
    read(checkpoint, &layout)
}

pub(super) fn read_blenderbot(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let layout = Layout {
        norms_after: false,
        embedding_norm: false,
        positions: Positions::Learned(0),
        start_token: Some(1),
        ..BART
    };
    read(checkpoint, &layout)
}

pub(super) fn read_led(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let layout = Layout {
        base: "led",
        windows: true,
        positions: Positions::Learned(0),
        ..BART
    };
    read(checkpoint, &layout)
}

fn read(checkpoint: &mut Checkpoint, layout: &Layout) -> Result<Decoder, LoadError> {
    let start_token = start_token(checkpoint, layout.start_token)?;
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config, layout)?;
    let (width, vocabulary) = (model_config.width, model_config.vocabulary);
    let [encoder_norms, decoder_norms] = [true, false].map(|reads| {
        let side = if reads { "encoder" } else { "decoder" };
        side_of(config, weights, (layout, &model_config), side)
    });
    let (encoder, decoder) = (encoder_norms?, decoder_norms?);
    let name = embedding_name(weights, layout.base);
    let embedding = weights.take(&name, &[vocabulary, width])?;
    let mut head = LinearWeights::shared(width, vocabulary);
    if weights.contains("final_logits_bias") {
        head.bias = weights.take("final_logits_bias", &[1, vocabulary])?;
    }
    // Copies of the shared embedding, which old versions of transformers saved several times.
    weights.ignore_suffixes(&["shared.weight", "embed_tokens.weight", "lm_head.weight"]);
    if layout.windows {
        // Projections of tokens with global attention, which do not exist by default.
        let global = ["query_global", "key_global", "value_global"];
        weights.ignore(|name| global.iter().any(|part| name.contains(&format!(".{part}."))));
    }
    Ok(Decoder {
        embedding: Table::new(embedding, width),
        embedding_norm: decoder.inputs.norm,
        positions: decoder.inputs.positions,
        layers: decoder.layers,
        final_norm: decoder.final_norm,
        head_layer: None,
        head,
        weight_type: weights.weight_type(),
        encoder: Some(Encoder {
            context: context(config, layout, "encoder")?,
            start_token,
            starts_with_last: layout.starts_with_last,
            relative_bias: None,
            inputs: encoder.inputs,
            layers: encoder.layers,
            final_norm: encoder.final_norm,
        }),
        per_layer_embeddings: None,
        streams: None,
        model_config,
    })
}

/// Returns the name of the embedding shared by encoder, decoder and head; it differs between files.
fn embedding_name(weights: &Weights, base: &str) -> String {
    let shared = format!("{base}.shared.weight");
    let names = [
        shared.clone(),
        format!("{base}.encoder.embed_tokens.weight"),
        format!("{base}.decoder.embed_tokens.weight"),
        "lm_head.weight".into(),
    ];
    let found = names.into_iter().find(|name| weights.contains(name));
    found.unwrap_or(shared)
}

/// Returns the maximum length of the encoder or decoder, tokens.
fn context(config: &Config, layout: &Layout, side: &str) -> Result<usize, LoadError> {
    if layout.windows {
        return config.size(&format!("max_{side}_position_embeddings"));
    }
    config.size("max_position_embeddings")
}

/// Reads the attention window of the encoder; it must be the same in all layers.
fn window(config: &Config) -> Result<LocalAttention, LoadError> {
    let key = "attention_window";
    let widths = match config.keys().get(key) {
        Some(Value::Array(widths)) => widths.iter().map(Value::as_u64).collect(),
        Some(width) => vec![width.as_u64()],
        None => vec![Some(512)],
    };
    let same = widths
        .windows(2)
        .all(|pair| matches!(pair, [one, other] if one == other));
    let width = widths
        .first()
        .copied()
        .flatten()
        .filter(|width| same && *width > 0 && width % 2 == 0);
    let width = width
        .and_then(|width| usize::try_from(width).ok())
        .ok_or_else(|| config.invalid_value(key, "it must be even, positive and the same in all layers"))?;
    Ok(LocalAttention {
        window: Some(width / 2),
        rotary: None,
    })
}

fn model_config(config: &Config, layout: &Layout) -> Result<ModelConfig, LoadError> {
    require(
        config,
        "tie_word_embeddings",
        true,
        "separate embeddings of encoder, decoder and head are not supported",
    )?;
    for name in ["attention_heads", "ffn_dim"] {
        let [encoder, decoder] = ["encoder", "decoder"].map(|side| format!("{side}_{name}"));
        if config.size(&encoder)? != config.size(&decoder)? {
            let reason = format!("it must be that of `{encoder}`");
            return Err(config.invalid_value(&decoder, reason));
        }
    }
    let width = config.size("d_model")?;
    let scaled = config.optional("scale_embedding")?.unwrap_or(layout.scales);
    Ok(ModelConfig {
        width,
        heads: attention_heads(config, "decoder_attention_heads", width)?,
        intermediate_size: config.size("decoder_ffn_dim")?,
        vocabulary: config.size("vocab_size")?,
        context: context(config, layout, "decoder")?,
        local: layout.windows.then(|| window(config)).transpose()?,
        epsilon: EPSILON,
        activation: activation(config, "activation_function", layout.activation)?,
        embedding_scale: scaled.then(|| (width as f32).sqrt()),
        no_input_norms: layout.norms_after,
        output_norms: if layout.norms_after {
            OutputNorms::Sums
        } else {
            OutputNorms::No
        },
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

/// An encoder or a decoder: layers, inputs, and final norm.
struct Side {
    inputs: TokenInputs,
    layers: Vec<LayerWeights>,
    final_norm: NormWeights,
}

fn side_of(
    config: &Config,
    weights: &mut Weights,
    (layout, model_config): (&Layout, &ModelConfig),
    side: &str,
) -> Result<Side, LoadError> {
    let width = model_config.width;
    let at = |name: &str| format!("{}.{side}.{name}", layout.base);
    let context = context(config, layout, side)?;
    let norm = layout
        .embedding_norm
        .then(|| NormWeights::take(weights, &at("layernorm_embedding"), width))
        .transpose()?;
    let positions = positions(
        config,
        weights,
        (layout.positions, [context, width]),
        &at("embed_positions.weight"),
    )?;
    let count = config.size(&format!("{side}_layers"))?;
    let mut layers = (0..count)
        .map(|index| {
            layer(
                weights,
                model_config,
                &at(&format!("layers.{index}")),
                (side == "decoder", layout.windows && side == "encoder"),
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    // The norm of the last layer's output serves as the final norm.
    let last = layers.last_mut().filter(|_| layout.norms_after);
    let final_norm = match last.and_then(|layer| layer.feed_forward_output_norm.take()) {
        Some(norm) => norm,
        None => NormWeights::take(weights, &at("layer_norm"), width)?,
    };
    Ok(Side {
        inputs: TokenInputs {
            norm,
            positions: Some(positions),
            embedding: None,
        },
        layers,
        final_norm,
    })
}

/// Projection names in LED's encoder attention.
const LONGFORMER: [&str; 4] = [
    "longformer_self_attn.query",
    "longformer_self_attn.key",
    "longformer_self_attn.value",
    "output",
];

fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    name: &str,
    (crosses, local): (bool, bool),
) -> Result<LayerWeights, LoadError> {
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let at = |part: &str| format!("{name}.{part}");
    let attention = |weights: &mut Weights, part: &str, names: [&str; 4]| -> Result<_, LoadError> {
        let linears = names
            .map(|name| LinearWeights::take(weights, &at(&format!("{part}.{name}")), width, width, true));
        let [query, key, value, output] = linears;
        Ok((query?, key?.concat_outputs(&value?), output?))
    };
    let names = ["q_proj", "k_proj", "v_proj", "out_proj"];
    let own = if local { LONGFORMER } else { names };
    let (query, key_value, output) = attention(weights, "self_attn", own)?;
    let cross = crosses.then(|| {
        let (query, key_value, output) = attention(weights, "encoder_attn", names)?;
        Ok(CrossWeights {
            norm: NormWeights::take(weights, &at("encoder_attn_layer_norm"), width)?,
            output_norm: None,
            query,
            key_value,
            output,
        })
    });
    let layer = LayerWeights {
        local,
        query,
        key_value,
        output,
        cross: cross.transpose()?,
        up: LinearWeights::take(weights, &at("fc1"), width, inner, true)?,
        down: LinearWeights::take(weights, &at("fc2"), inner, width, true)?,
        ..opt::norms(weights, model_config, name)?
    };
    Ok(layer.stored_as(weights.weight_type()))
}

/// Returns a table with one vector per position, from the first token on.
fn positions(
    config: &Config,
    weights: &mut Weights,
    (kind, [context, width]): (Positions, [usize; 2]),
    name: &str,
) -> Result<Table, LoadError> {
    match kind {
        Positions::Learned(offset) => {
            let mut table = weights.take(name, &[context + offset, width])?;
            table.drain(..offset * width);
            Ok(Table::new(table, width))
        }
        Positions::Sinusoidal if weights.contains(name) => {
            Ok(Table::new(weights.take(name, &[context, width])?, width))
        }
        Positions::Sinusoidal => {
            let frequency = |index: usize| 10_000_f64.powf(-2.0 * index as f64 / width as f64);
            let values = sinusoidal(0..context, width, width.div_ceil(2), frequency);
            Ok(Table::computed(values, width))
        }
        Positions::AfterPadding => {
            let first = config.optional::<usize>("pad_token_id")?.unwrap_or(1) + 1;
            weights.ignore_suffixes(&["embed_positions.weights"]);
            Ok(Table::computed(by_halves(first..first + context, width), width))
        }
    }
}

/// Computes the sines and cosines of positions, as in tensor2tensor.
pub(super) fn by_halves(positions: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000_f64.ln() / (half.max(2) - 1) as f64;
    sinusoidal(positions, width, half, |index| (-(index as f64) * step).exp())
}

/// Computes `sines` sines of each position, then the cosines.
fn sinusoidal(
    positions: std::ops::Range<usize>,
    width: usize,
    sines: usize,
    frequency: impl Fn(usize) -> f64,
) -> Vec<f32> {
    let places = positions.flat_map(|position| (0..width).map(move |place| (position, place)));
    let values = places.map(|(position, place)| {
        let position = position as f64;
        match place.checked_sub(sines) {
            None => (position * frequency(place)).sin(),
            Some(place) => (position * frequency(place)).cos(),
        }
    });
    values.map(|value| value as f32).collect()
}
