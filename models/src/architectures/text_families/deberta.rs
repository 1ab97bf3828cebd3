//! DeBERTa v1 to v3 (He et al. 2021): disentangled attention, with separate embeddings for tokens and distances.

use crate::architectures::encoder::token_convolution::ConvolutionConfig;
use crate::architectures::encoder::{BlockNames, SplitBiases, activation};
use crate::architectures::text_encoder::config::{
    DistanceVectors, Projection, RelativePositionConfig, TextEncoderConfig, TextHeadConfig,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows};

const NAMES: BlockNames = BlockNames {
    projections: &[QUERY, KEY, "attention.self.value_proj"],
    ..BlockNames::BERT
};
/// Maximum kernel size of the convolution, tokens.
const MAX_KERNEL: usize = 63;
const QUERY: &str = "attention.self.query_proj";
const KEY: &str = "attention.self.key_proj";

const FIRST_NAMES: BlockNames = BlockNames {
    projections: &["attention.self.in_proj"],
    split_biases: Some(SplitBiases {
        names: ["attention.self.q_bias", "attention.self.v_bias"],
        by_head: true,
    }),
    ..BlockNames::BERT
};

/// Describes a DeBERTa v1 model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn first(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if config.optional::<bool>("talking_head")?.unwrap_or(false) {
        return Err(config.invalid_value("talking_head", "projections between heads are not supported"));
    }
    let mut text = without_convolution(config)?;
    text.names = FIRST_NAMES;
    if let Some(distances) = &mut text.distances {
        distances.keys = distances.keys.map(|_| "attention.self.pos_proj");
        distances.queries = distances.queries.map(|_| "attention.self.pos_q_proj");
        distances.key_bias = false;
    } else if !kinds(config)?.is_empty() {
        return Err(config.invalid_value("pos_att_type", "it needs relative_attention"));
    }
    Ok(text)
}

/// Describes a DeBERTa v2 or v3 model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = without_convolution(config)?;
    let width = text.encoder.width;
    if let (Some(first), kernel @ 1..) = (
        text.blocks.first_mut(),
        config.optional::<usize>("conv_kernel_size")?.unwrap_or(0),
    ) {
        if kernel % 2 == 0 || kernel > MAX_KERNEL {
            let reason = format!("it must be odd, and at most {MAX_KERNEL}");
            return Err(config.invalid_value("conv_kernel_size", reason));
        }
        let groups = config.optional_size("conv_groups")?.unwrap_or(1);
        if !width.is_multiple_of(groups) {
            return Err(config.invalid_value("conv_groups", format!("it must divide hidden_size = {width}")));
        }
        first.convolution = Some(ConvolutionConfig {
            name: "encoder.conv".into(),
            kernel,
            groups,
            activation: match config.optional::<String>("conv_act")? {
                Some(_) => activation(config, "conv_act")?,
                None => Activation::Tanh,
            },
        });
    }
    Ok(text)
}

fn without_convolution(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head_size = config.optional_size("attention_head_size")?;
    let pooler = match config.optional::<String>("pooler_hidden_act")? {
        Some(_) => activation(config, "pooler_hidden_act")?,
        None => Activation::Gelu,
    };
    let head = TextHeadConfig::first("pooler.dense", pooler, "classifier");
    let own = config.with_defaults(&[("layer_norm_eps", 1e-7.into()), ("type_vocab_size", 0.into())]);
    let mut text = TextEncoderConfig::like_bert(&own, "deberta", head)?;
    let (width, heads) = (text.encoder.width, text.encoder.heads);
    if head_size.is_some_and(|size| size != width / heads) {
        return Err(config.invalid_value("attention_head_size", "it must be the width over the heads"));
    }
    text.names = NAMES;
    if !config.optional::<bool>("position_biased_input")?.unwrap_or(true) {
        text.embeddings.positions = None;
    }
    let embedding_width = config.optional_size("embedding_size")?.unwrap_or(width);
    if embedding_width != width {
        text.embeddings.projection = Some(Projection::BeforeNorm("embeddings.embed_proj"));
        text.embeddings.width = embedding_width;
    }
    if config.optional::<bool>("relative_attention")?.unwrap_or(false) {
        text.distances = Some(distances(config, text.embeddings.limits.context)?);
    } else {
        // Files contain the norm of distances even without distances.
        text.buffers = &["encoder.LayerNorm.weight", "encoder.LayerNorm.bias"];
        // As in transformers, scores are scaled for all configured kinds, even if one adds nothing.
        let kinds = kinds(config)?;
        let named = ["c2p", "p2c"]
            .into_iter()
            .filter(|kind| kinds.iter().any(|known| known.trim() == *kind));
        let summands = 1 + named.count();
        text.encoder.attention_scale = Some(1.0 / ((width / heads * summands) as f32).sqrt());
    }
    Ok(text)
}

fn distances(config: &Config, context: usize) -> Result<RelativePositionConfig, LoadError> {
    let longest = match config
        .optional::<i64>("max_relative_positions")?
        .map(usize::try_from)
    {
        Some(Ok(longest @ 1..)) => longest,
        _ => context,
    };
    let buckets = match config.optional::<i64>("position_buckets")?.map(usize::try_from) {
        Some(Ok(buckets @ 1..)) => Some(buckets),
        _ => None,
    };
    let span = buckets.unwrap_or(longest);
    if !(2..=1 << 16).contains(&span) || longest < span / 2 + 2 {
        return Err(config.invalid_value("position_buckets", "it does not fit max_relative_positions"));
    }
    let norm = config
        .optional::<String>("norm_rel_ebd")?
        .unwrap_or_else(|| "none".into());
    let kinds = kinds(config)?;
    let uses = |kind: &str| kinds.iter().any(|known| known.trim() == kind);
    let shared = config.optional::<bool>("share_att_key")?.unwrap_or(false);
    let layer = |kind: &str, own, other| uses(kind).then_some(if shared { own } else { other });
    Ok(RelativePositionConfig {
        vectors: DistanceVectors::Table {
            name: "encoder.rel_embeddings",
            count: 2 * span,
            norm: norm.contains("layer_norm").then_some("encoder.LayerNorm"),
        },
        rows: DistanceRows::new(context, |distance| {
            let bucket = match buckets {
                Some(buckets) => bucket(distance, buckets, longest),
                None => distance,
            };
            let row = bucket.saturating_add_unsigned(span);
            usize::try_from(row).unwrap_or_default().min(2 * span - 1)
        }),
        keys: layer("c2p", KEY, "attention.self.pos_key_proj"),
        key_bias: true,
        queries: layer("p2c", QUERY, "attention.self.pos_query_proj"),
    })
}

/// Reads which scores depend on distances.
fn kinds(config: &Config) -> Result<Vec<String>, LoadError> {
    Ok(match config.optional::<serde_json::Value>("pos_att_type")? {
        Some(serde_json::Value::String(kinds)) => kinds.split('|').map(str::to_owned).collect(),
        _ => config
            .optional::<Vec<String>>("pos_att_type")?
            .unwrap_or_default(),
    })
}

/// Returns the bucket of a distance: smaller distances have their own bucket, for half of the buckets; the others have
/// logarithmic size. Uses the precision and order of operations of transformers, because boundaries depend on the last
/// bit.
fn bucket(distance: isize, buckets: usize, longest: usize) -> isize {
    let middle = buckets / 2;
    let far = distance.unsigned_abs();
    if far <= middle {
        return distance;
    }
    let octaves = ((longest - 1) as f64 / middle as f64) as f32;
    let share = (far as f32 / middle as f32).ln() / octaves.ln();
    let bucket = (share * (middle - 1) as f32).ceil() as isize + isize::try_from(middle).unwrap_or_default();
    bucket * distance.signum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_scaled_for_kinds_that_are_not_added() {
        let scale = |kinds: &str| {
            let keys = format!(
                r#"{{"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
                "max_position_embeddings": 8, "type_vocab_size": 0, "layer_norm_eps": 1e-7, "hidden_act": "gelu", "pos_att_type": {kinds}}}"#
            );
            let config = Config::parse("config.json", keys.as_bytes()).unwrap();
            read(&config).unwrap().encoder.attention_scale.unwrap()
        };
        for (kinds, size) in [("[]", 8.0), (r#""c2p""#, 16.0), (r#"["p2c", "c2p"]"#, 24.0_f32)] {
            assert!((scale(kinds) - 1.0 / size.sqrt()).abs() < 1e-6, "{kinds}");
        }
    }
}
