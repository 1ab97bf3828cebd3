//! Multimodal classes, whose checkpoints contain a language model besides encoders of images, videos or audio.
//!
//! The language model is read like any other: its configuration is a section of `config.json`, its tensors have a
//! prefix, and the encoders are not read.

use serde_json::Value;

use super::families::{FAMILIES, Family, ReadFn};
use super::text_defaults;
use crate::checkpoint::{Checkpoint, Config, LoadError};

/// A multimodal class.
pub(super) struct Multimodal {
    /// Name of the class.
    pub(super) class: &'static str,
    /// `model_type` in `config.json`.
    pub(super) model_type: &'static str,
    /// Location of the language model's configuration in `config.json`.
    section: Section,
    /// `model_type` of the language model, unless its configuration states one.
    text_type: &'static str,
    /// Tensor name prefixes of the other modules, without `model.`.
    others: &'static [&'static str],
}

/// Location of a language model's configuration in `config.json`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Under [`KEY`].
    Nested,
    /// Under [`KEY`], or at the top level in files of older versions of transformers.
    NestedOrFlat,
    /// Under [`KEY`] inside [`THINKER`].
    Thinker,
}

/// Key of the language model's configuration.
const KEY: &str = "text_config";

/// Key of the part of a speech-generating model that reads inputs and generates text.
const THINKER: &str = "thinker_config";

/// Tensor name prefixes of the language model: in files of transformers 5, of transformers 4, and likewise of Idefics
/// and of speech-generating models. Older files of Qwen-VL have no prefix.
const PREFIXES: [&str; 6] = [
    "thinker.model.language_model.",
    "thinker.",
    "model.language_model.",
    "language_model.",
    "model.text_model.",
    "text_model.",
];

/// Keys that files may state at the top level instead of in the language model's configuration.
const SHARED_KEYS: [&str; 5] = [
    "vocab_size",
    "bos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
];

/// Key of the EOS tokens. The top level takes precedence, because nested values are often only the default of their
/// class.
const ENDS: &str = "eos_token_id";

/// Key for tying the head to the embedding.
const TIED: &str = "tie_word_embeddings";

/// Names of an untied head.
const HEADS: [&str; 2] = ["lm_head.weight", "thinker.lm_head.weight"];

/// Values of `model_type` that are aliases of a supported family.
const TEXT_TYPES: [(&str, &str); 9] = [
    ("kimi_k2", "deepseek_v3"),
    ("qwen2_5_omni_text", "qwen2"),
    ("qwen3_omni_moe_text", "qwen3_moe"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen3_vl_text", "qwen3"),
    ("qwen3_vl_moe_text", "qwen3_moe"),
    ("glm4v_text", "glm4"),
    ("glm4v_moe_text", "glm4_moe"),
];

/// Encoder and projection of `LLaVA` and similar models.
const LLAVA: &[&str] = &["vision_tower.", "multi_modal_projector.", "image_newline"];
/// Encoder of Qwen-VL and GLM-V.
const VISUAL: &[&str] = &["visual."];
/// Encoder and projection of Idefics.
const IDEFICS: &[&str] = &["vision_model.", "connector."];
/// Encoder and projection of audio models.
const AUDIO: &[&str] = &["audio_tower.", "multi_modal_projector."];

/// Encoders of speech-generating models, and their speech modules.
const OMNI: &[&str] = &[
    "visual.",
    "audio_tower.",
    "thinker.visual.",
    "thinker.audio_tower.",
    "thinker.model.visual.",
    "thinker.model.audio_tower.",
    "talker.",
    "token2wav.",
    "code2wav.",
];

const fn nested(
    class: &'static str,
    model_type: &'static str,
    text_type: &'static str,
    others: &'static [&'static str],
) -> Multimodal {
    Multimodal {
        class,
        model_type,
        section: Section::Nested,
        text_type,
        others,
    }
}

/// Defines a class whose older files have no nested configuration.
const fn once_flat(
    class: &'static str,
    model_type: &'static str,
    text_type: &'static str,
    others: &'static [&'static str],
) -> Multimodal {
    Multimodal {
        section: Section::NestedOrFlat,
        ..nested(class, model_type, text_type, others)
    }
}

/// Defines a class of speech-generating models.
const fn speaking(class: &'static str, model_type: &'static str, text_type: &'static str) -> Multimodal {
    Multimodal {
        section: Section::Thinker,
        ..nested(class, model_type, text_type, OMNI)
    }
}

/// All classes.
pub(super) const CLASSES: &[Multimodal] = &[
    nested("Gemma3ForConditionalGeneration", "gemma3", "gemma3_text", LLAVA),
    nested(
        "Gemma4ForConditionalGeneration",
        "gemma4",
        "gemma4_text",
        &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
    ),
    nested(
        "Gemma3nForConditionalGeneration",
        "gemma3n",
        "gemma3n_text",
        &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
    ),
    nested("Mistral3ForConditionalGeneration", "mistral3", "mistral", LLAVA),
    once_flat(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        "qwen2_vl_text",
        VISUAL,
    ),
    once_flat(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        VISUAL,
    ),
    nested(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        "qwen3_vl_text",
        VISUAL,
    ),
    nested(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
        VISUAL,
    ),
    nested(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        "qwen3_5_text",
        VISUAL,
    ),
    nested(
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        VISUAL,
    ),
    nested("Lfm2VlForConditionalGeneration", "lfm2_vl", "lfm2", LLAVA),
    nested("Lfm3VlForConditionalGeneration", "lfm3_vl", "lfm3", LLAVA),
    nested("LlavaForConditionalGeneration", "llava", "llama", LLAVA),
    nested("LlavaNextForConditionalGeneration", "llava_next", "llama", LLAVA),
    nested(
        "LlavaNextVideoForConditionalGeneration",
        "llava_next_video",
        "llama",
        LLAVA,
    ),
    nested(
        "LlavaOnevisionForConditionalGeneration",
        "llava_onevision",
        "qwen2",
        LLAVA,
    ),
    nested("VipLlavaForConditionalGeneration", "vipllava", "llama", LLAVA),
    nested(
        "VideoLlavaForConditionalGeneration",
        "video_llava",
        "llama",
        &["video_tower.", "image_tower.", "multi_modal_projector."],
    ),
    nested("Idefics2ForConditionalGeneration", "idefics2", "mistral", IDEFICS),
    nested("Idefics3ForConditionalGeneration", "idefics3", "llama", IDEFICS),
    nested("SmolVLMForConditionalGeneration", "smolvlm", "llama", IDEFICS),
    nested("InternVLForConditionalGeneration", "internvl", "qwen2", LLAVA),
    nested("Glm4vForConditionalGeneration", "glm4v", "glm4v_text", VISUAL),
    nested(
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe",
        "glm4v_moe_text",
        VISUAL,
    ),
    nested("Glm46VForConditionalGeneration", "glm46v", "glm4v_text", VISUAL),
    nested(
        "Cohere2VisionForConditionalGeneration",
        "cohere2_vision",
        "cohere2",
        LLAVA,
    ),
    nested(
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        "cohere2",
        LLAVA,
    ),
    nested(
        "DeepseekVLForConditionalGeneration",
        "deepseek_vl",
        "llama",
        &["vision_model.", "aligner."],
    ),
    nested("GotOcr2ForConditionalGeneration", "got_ocr2", "qwen2", LLAVA),
    nested(
        "Llama4ForConditionalGeneration",
        "llama4",
        "llama4_text",
        &["vision_model.", "multi_modal_projector."],
    ),
    speaking(
        "Qwen2_5OmniForConditionalGeneration",
        "qwen2_5_omni",
        "qwen2_5_omni_text",
    ),
    nested(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "qwen2_5_omni_thinker",
        "qwen2_5_omni_text",
        OMNI,
    ),
    speaking(
        "Qwen3OmniMoeForConditionalGeneration",
        "qwen3_omni_moe",
        "qwen3_omni_moe_text",
    ),
    nested(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "qwen3_omni_moe_thinker",
        "qwen3_omni_moe_text",
        OMNI,
    ),
    nested(
        "MllamaForConditionalGeneration",
        "mllama",
        "mllama_text_model",
        &["vision_model.", "multi_modal_projector."],
    ),
    nested(
        "Kimi_K25ForConditionalGeneration",
        "kimi_k25",
        "deepseek_v3",
        &["vision_tower.", "mm_projector."],
    ),
    nested(
        "Exaone4_5_ForConditionalGeneration",
        "exaone4_5",
        "exaone4",
        VISUAL,
    ),
    nested(
        "PerceptionLMForConditionalGeneration",
        "perception_lm",
        "llama",
        LLAVA,
    ),
    nested("FastVlmForConditionalGeneration", "fast_vlm", "qwen2", LLAVA),
    nested(
        "VideoLlama3ForConditionalGeneration",
        "video_llama_3",
        "qwen2",
        &["vision_model.", "projector."],
    ),
    nested(
        "Ovis2ForConditionalGeneration",
        "ovis2",
        "qwen2",
        &["vision_tower.", "visual_embeddings_table."],
    ),
    nested(
        "MiniCPMV4_6ForConditionalGeneration",
        "minicpmv4_6",
        "qwen3_5_text",
        &["vision_tower.", "merger."],
    ),
    nested(
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        "hyperclovax_vision_v2",
        "hyperclovax",
        &["vision_model.", "projector."],
    ),
    nested(
        "JanusForConditionalGeneration",
        "janus",
        "llama",
        &[
            "vision_model.",
            "aligner.",
            "vqmodel.",
            "generation_embeddings.",
            "generation_aligner.",
            "generation_head.",
        ],
    ),
    nested(
        "DeepseekVLHybridForConditionalGeneration",
        "deepseek_vl_hybrid",
        "llama",
        &["vision_model.", "aligner.", "high_res_vision_"],
    ),
    nested(
        "LightOnOcrForConditionalGeneration",
        "lighton_ocr",
        "qwen3",
        &["vision_encoder.", "vision_projection."],
    ),
    nested(
        "QianfanOCRForConditionalGeneration",
        "qianfan_ocr",
        "qwen3",
        LLAVA,
    ),
    nested("VoxtralForConditionalGeneration", "voxtral", "llama", AUDIO),
    nested(
        "Qwen2AudioForConditionalGeneration",
        "qwen2_audio",
        "qwen2",
        AUDIO,
    ),
    nested(
        "AudioFlamingo3ForConditionalGeneration",
        "audioflamingo3",
        "qwen2",
        AUDIO,
    ),
];

/// Returns the class with this name.
pub(super) fn of_class(name: &str) -> Option<&'static Multimodal> {
    CLASSES.iter().find(|multimodal| multimodal.class == name)
}

/// Returns the first class with this `model_type`.
pub(super) fn of_type(model_type: &str) -> Option<&'static Multimodal> {
    CLASSES
        .iter()
        .find(|multimodal| multimodal.model_type == model_type)
}

impl Multimodal {
    /// Returns the family of the language model.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`] without a language model's configuration; [`LoadError::BadKey`] for an unsupported
    /// family.
    pub(super) fn family(&self, config: &Config) -> Result<&'static Family, LoadError> {
        let text = self.stated(config)?;
        let name = self.text_type(&text)?;
        let alias = TEXT_TYPES.iter().find(|(other, _)| *other == name);
        let known = alias.map_or(name.as_str(), |(_, known)| *known);
        let mut families = FAMILIES.iter().filter(|family| is_decoder(family));
        families.find(|family| family.model_type == known).ok_or_else(|| {
            let reason = format!(
                "this build does not support it as the language model of a `{}`",
                self.class
            );
            text.invalid_value("model_type", reason)
        })
    }

    /// Reduces a checkpoint to its language model: configuration and tensors. `family` is the result of
    /// [`Multimodal::family`].
    ///
    /// # Errors
    /// [`LoadError::MissingKey`] and [`LoadError::BadKey`], naming the key.
    pub(super) fn keep_text(&self, checkpoint: &mut Checkpoint, family: &Family) -> Result<(), LoadError> {
        let weights = &mut checkpoint.weights;
        weights.expect_base(family.base);
        weights.keep_part(&PREFIXES, family.base, self.others);
        let has_head = HEADS.iter().any(|head| weights.contains(head));
        checkpoint.config = self.text_config(&checkpoint.config, has_head)?;
        Ok(())
    }

    /// Returns the configuration of the language model, except for keys that depend on the weights.
    ///
    /// # Errors
    /// Same as [`Multimodal::keep_text`].
    pub(super) fn text_of(&self, config: &Config) -> Result<Config, LoadError> {
        self.text_config(config, false)
    }

    /// Returns the language model's configuration as stated in the file.
    fn stated(&self, config: &Config) -> Result<Config, LoadError> {
        if self.section == Section::NestedOrFlat && given(config, KEY).is_none() {
            return Ok(config.clone());
        }
        match self.section {
            Section::Thinker => config.nested(THINKER)?.nested(KEY),
            Section::Nested | Section::NestedOrFlat => config.nested(KEY),
        }
    }

    /// Returns the `model_type` of a language model's configuration.
    fn text_type(&self, text: &Config) -> Result<String, LoadError> {
        let stated = text.optional::<String>("model_type")?;
        // A flat configuration states the `model_type` of the whole model.
        let stated = stated.filter(|stated| stated != self.model_type);
        Ok(stated.unwrap_or_else(|| self.text_type.to_owned()))
    }

    /// Returns the language model's configuration, completed by the top level and by the defaults of its class. The
    /// presence of a head in the file decides about tying, because the two levels often disagree.
    fn text_config(&self, config: &Config, has_head: bool) -> Result<Config, LoadError> {
        let mut text = self.stated(config)?;
        let inner = text.optional::<bool>(TIED)?.unwrap_or_default();
        let is_tied = inner || config.optional::<bool>(TIED)?.unwrap_or_default();
        if has_head || is_tied {
            text.set(TIED, Value::Bool(!has_head));
        }
        for key in SHARED_KEYS {
            if let (None, Some(value)) = (given(&text, key), given(config, key)) {
                text.set(key, value.clone());
            }
        }
        if let Some(ends) = given(config, ENDS) {
            text.set(ENDS, ends.clone());
        }
        for (key, value) in text_defaults::of(&self.text_type(&text)?) {
            if !text.keys().contains_key(&key) {
                text.set(&key, value);
            }
        }
        Ok(text)
    }
}

/// Returns the value of a key, unless it is null.
fn given<'a>(config: &'a Config, key: &str) -> Option<&'a Value> {
    config.keys().get(key).filter(|value| !value.is_null())
}

/// Returns whether a family has no encoder.
fn is_decoder(family: &Family) -> bool {
    matches!(family.read, ReadFn::Partitioned(_))
}

#[cfg(test)]
mod tests;
