//! Supported GGUF architectures: their model classes, and the names of their tensors.

use super::file::Header;
use super::names::{
    ADJACENT, ATTENTION, BLOOM, EXPERTS, EXPERTS_OF_MIXTRAL, FALCON, FALCON_WITH_NORMS, FUSED, GATED, GPT2,
    HEAD_NORMS, NORMS, NORMS_OF_GEMMA, NORMS_OF_GEMMA_2, NORMS_OF_HEADS, Names, OUTER, OUTER_OF_BLOOM,
    OUTER_OF_GEMMA, OUTER_OF_GPT2, OUTER_OF_PHI, OUTPUT_NORMS, PHI, UNGATED,
};
use crate::checkpoint::LoadError;

/// A supported architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// `architectures[0]` of the checkpoint's `config.json`.
    pub(super) class: &'static str,
    /// `model_type` of the checkpoint's `config.json`.
    pub(super) model_type: &'static str,
    pub(super) names: Names,
    /// Distinguishes architectures that share a name: a tensor of the first layer that only files of this architecture
    /// have.
    marker: Option<&'static str>,
}

const LAYERS: &str = "model.layers.";
const BLOCKS: &str = "transformer.h.";

macro_rules! architecture {
    ($name:literal, $class:literal, $model_type:literal, $outer:expr, $layers:expr, $inner:expr) => {
        architecture!($name, $class, $model_type, $outer, $layers, $inner, None)
    };
    ($name:literal, $class:literal, $model_type:literal, $outer:expr, $layers:expr, $inner:expr, $marker:expr) => {
        Architecture {
            name: $name,
            class: $class,
            model_type: $model_type,
            names: Names {
                outer: $outer,
                layers: $layers,
                inner: $inner,
            },
            marker: $marker,
        }
    };
}

/// All architectures. Among those with the same name, the first whose marker the file has applies.
#[rustfmt::skip]
const ARCHITECTURES: &[Architecture] = &[
    architecture!("llama", "MixtralForCausalLM", "mixtral", OUTER, LAYERS, &[NORMS, ADJACENT, EXPERTS_OF_MIXTRAL], Some("blk.0.ffn_gate_inp.weight")),
    architecture!("llama", "LlamaForCausalLM", "llama", OUTER, LAYERS, &[NORMS, ADJACENT, GATED]),
    architecture!("qwen2", "Qwen2ForCausalLM", "qwen2", OUTER, LAYERS, &[NORMS, ATTENTION, GATED]),
    architecture!("qwen3", "Qwen3ForCausalLM", "qwen3", OUTER, LAYERS, &[NORMS, ATTENTION, HEAD_NORMS, GATED]),
    architecture!("qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", OUTER, LAYERS, &[NORMS, ATTENTION, EXPERTS]),
    architecture!("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", OUTER, LAYERS, &[NORMS, ATTENTION, HEAD_NORMS, EXPERTS]),
    architecture!("gemma", "GemmaForCausalLM", "gemma", OUTER_OF_GEMMA, LAYERS, &[NORMS_OF_GEMMA, ATTENTION, GATED]),
    architecture!("gemma2", "Gemma2ForCausalLM", "gemma2", OUTER_OF_GEMMA, LAYERS, &[NORMS_OF_GEMMA_2, ATTENTION, GATED]),
    architecture!("gemma3", "Gemma3ForCausalLM", "gemma3_text", OUTER_OF_GEMMA, LAYERS, &[NORMS_OF_GEMMA_2, ATTENTION, GATED]),
    architecture!("phi2", "PhiForCausalLM", "phi", OUTER_OF_PHI, LAYERS, &[PHI]),
    architecture!("phi3", "Phi3ForCausalLM", "phi3", OUTER, LAYERS, &[NORMS, FUSED]),
    architecture!("starcoder2", "Starcoder2ForCausalLM", "starcoder2", OUTER, LAYERS, &[NORMS, ATTENTION, UNGATED]),
    architecture!("stablelm", "StableLmForCausalLM", "stablelm", OUTER, LAYERS, &[NORMS, ATTENTION, NORMS_OF_HEADS, GATED]),
    architecture!("gpt2", "GPT2LMHeadModel", "gpt2", OUTER_OF_GPT2, BLOCKS, &[GPT2]),
    architecture!("falcon", "FalconForCausalLM", "falcon", OUTER_OF_BLOOM, BLOCKS, &[FALCON_WITH_NORMS], Some("blk.0.attn_norm_2.weight")),
    architecture!("falcon", "FalconForCausalLM", "falcon", OUTER_OF_BLOOM, BLOCKS, &[FALCON]),
    architecture!("bloom", "BloomForCausalLM", "bloom", OUTER_OF_BLOOM, BLOCKS, &[BLOOM]),
    architecture!("olmo2", "Olmo2ForCausalLM", "olmo2", OUTER, LAYERS, &[OUTPUT_NORMS, ATTENTION, HEAD_NORMS, GATED]),
    architecture!("granite", "GraniteForCausalLM", "granite", OUTER, LAYERS, &[NORMS, ADJACENT, GATED]),
    architecture!("smollm3", "SmolLM3ForCausalLM", "smollm3", OUTER, LAYERS, &[NORMS, ADJACENT, GATED]),
    architecture!("command-r", "CohereForCausalLM", "cohere", OUTER, LAYERS, &[NORMS, ATTENTION, HEAD_NORMS, GATED]),
    architecture!("cohere2", "Cohere2ForCausalLM", "cohere2", OUTER, LAYERS, &[NORMS, ATTENTION, GATED]),
];

impl Architecture {
    /// Finds the architecture of a file.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`] without a name, [`LoadError::BadKey`] for an unsupported name.
    pub(super) fn of(header: &Header) -> Result<&'static Self, LoadError> {
        const KEY: &str = "general.architecture";
        let metadata = &header.metadata;
        let name = metadata.text(KEY)?.ok_or_else(|| metadata.missing(KEY))?;
        let has = |marker: Option<&str>| marker.is_none_or(|marker| header.tensors.contains_key(marker));
        let found = ARCHITECTURES
            .iter()
            .find(|architecture| architecture.name == name && has(architecture.marker));
        found.ok_or_else(|| {
            let mut names: Vec<&str> = ARCHITECTURES
                .iter()
                .map(|architecture| architecture.name)
                .collect();
            names.dedup();
            metadata.invalid(KEY, format!("{} are read", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Config;
    use crate::decoder::registry;

    #[test]
    fn every_class_is_one_of_the_language_models() {
        for architecture in ARCHITECTURES {
            let config = format!(r#"{{"architectures": ["{}"]}}"#, architecture.class);
            let config = Config::parse("config.json", config.as_bytes()).unwrap();
            assert_eq!(registry::architecture(&config).unwrap(), Some(architecture.class));
        }
    }
}
