//! The supported families of language models. To add a family, add a file and a line here.

mod afmoe;
mod apertus;
mod arcee;
mod bamba;
mod bart;
mod biogpt;
mod bitnet;
mod bloom;
mod cohere;
mod dbrx;
mod deepseek;
mod dots1;
mod ernie;
mod exaone4;
mod falcon;
mod falcon_h1;
pub(crate) mod gemma;
mod gemma3n;
pub(super) mod gemma4;
mod glm;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_swa;
mod helium;
mod hunyuan;
mod hyperclovax;
mod jamba;
mod lfm2;
mod llama;
mod llama4;
mod mamba;
mod mellum;
mod mimo;
mod minicpm3;
mod minimax_m2;
mod ministral;
mod mistral;
mod mixtral;
pub(super) mod mllama;
pub(super) mod modernbert;
mod mpt;
mod nanochat;
mod nemotron;
pub(super) mod nemotron_h;
mod olmo;
mod olmo_hybrid;
mod openai_gpt;
mod opt;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen;
mod qwen_hybrid;
mod recurrent;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
pub(crate) mod t5;
mod t5gemma;
mod xglm;
mod youtu;

use kaskade_policy::plan::Partition;

use super::head::LmHeadConfig;
use super::weights::Decoder;
use crate::checkpoint::{Checkpoint, LoadError};

/// A family of language models.
pub(super) struct Family {
    /// Class that generates text, if there is one.
    pub(super) generator: Option<&'static str>,
    /// Sequence classification class, if transformers has one.
    pub(super) classifier: Option<&'static str>,
    /// Token classification class with the name of its output layer, if transformers has one.
    pub(super) token_classifier: Option<(&'static str, &'static str)>,
    /// Base model class, if it can return embeddings.
    pub(super) base_model: Option<&'static str>,
    /// `model_type` in `config.json`.
    pub(super) model_type: &'static str,
    /// Prefix of the base model's tensors.
    pub(super) base: &'static str,
    /// Location of the projection to logits.
    pub(super) head: LmHeadConfig,
    pub(super) read: ReadFn,
}

/// Function that reads a family.
pub(super) enum ReadFn {
    /// Reads the whole model, with its head.
    Whole(fn(&mut Checkpoint) -> Result<Decoder, LoadError>),
    /// Reads the layers of a partition, or the whole model, without the head.
    Partitioned(fn(&mut Checkpoint, Partition) -> Result<Decoder, LoadError>),
}

/// Defines a family whose classes have the usual names.
macro_rules! family {
    ($prefix:literal, $model_type:literal, $base:literal, $head:expr, $read:path) => {
        family!(
            $prefix,
            concat!($prefix, "ForCausalLM"),
            $model_type,
            $base,
            $head,
            $read
        )
    };
    ($prefix:literal, $generator:expr, $model_type:literal, $base:literal, $head:expr, $read:path) => {
        Family {
            generator: Some($generator),
            classifier: Some(concat!($prefix, "ForSequenceClassification")),
            token_classifier: None,
            base_model: Some(concat!($prefix, "Model")),
            model_type: $model_type,
            base: $base,
            head: $head,
            read: ReadFn::Partitioned($read),
        }
    };
}

/// Defines a family with a token classifier in transformers; `score` or `classifier` is its output layer.
macro_rules! token_family {
    ($layer:literal, $prefix:literal, $($more:tt)+) => {
        Family {
            token_classifier: Some((concat!($prefix, "ForTokenClassification"), $layer)),
            ..family!($prefix, $($more)+)
        }
    };
}

/// Defines a family with Llama's tensor names, a separate head and both classifiers.
macro_rules! like_llama {
    ($prefix:literal, $model_type:literal, $read:path) => {
        token_family!(
            "score",
            $prefix,
            $model_type,
            "model.",
            LmHeadConfig::SEPARATE,
            $read
        )
    };
}

/// Defines a family without a sequence classifier in transformers.
macro_rules! unclassified {
    ($prefix:literal, $model_type:literal, $head:expr, $read:path) => {
        Family {
            classifier: None,
            ..family!($prefix, $model_type, "model.", $head, $read)
        }
    };
}

/// Defines an encoder-decoder, which is read as a whole.
const fn encoder_decoder(
    generator: &'static str,
    model_type: &'static str,
    base: &'static str,
    read: fn(&mut Checkpoint) -> Result<Decoder, LoadError>,
) -> Family {
    Family {
        generator: Some(generator),
        classifier: None,
        token_classifier: None,
        base_model: None,
        model_type,
        base,
        head: LmHeadConfig::SEPARATE,
        read: ReadFn::Whole(read),
    }
}

/// Defines the sequence classifier of an encoder-decoder that is read differently from the model that generates.
const fn encoder_decoder_classifier(
    classifier: &'static str,
    model_type: &'static str,
    base: &'static str,
    read: fn(&mut Checkpoint) -> Result<Decoder, LoadError>,
) -> Family {
    Family {
        generator: None,
        classifier: Some(classifier),
        ..encoder_decoder(classifier, model_type, base, read)
    }
}

/// All families.
pub(super) const FAMILIES: &[Family] = &[
    token_family!(
        "classifier",
        "GPT2",
        "GPT2LMHeadModel",
        "gpt2",
        "transformer.",
        LmHeadConfig::TIED,
        gpt2::read
    ),
    family!("OPT", "opt", "model.", LmHeadConfig::TIED, opt::read),
    like_llama!("Llama", "llama", llama::read),
    like_llama!("Mistral", "mistral", mistral::read),
    like_llama!("Qwen2", "qwen2", qwen::read_2),
    like_llama!("Qwen3", "qwen3", qwen::read_3),
    like_llama!("Mixtral", "mixtral", mixtral::read),
    like_llama!("Qwen2Moe", "qwen2_moe", qwen::read_2_moe),
    like_llama!("Qwen3Moe", "qwen3_moe", qwen::read_3_moe),
    unclassified!("Olmoe", "olmoe", LmHeadConfig::SEPARATE, olmo::read_moe),
    like_llama!("Phi3", "phi3", phi3::read),
    token_family!("score", "Phi", "phi", "model.", LmHeadConfig::BIASED, phi::read),
    family!(
        "Granite",
        "granite",
        "model.",
        LmHeadConfig::SEPARATE,
        granite::read
    ),
    family!("Olmo", "olmo", "model.", LmHeadConfig::SEPARATE, olmo::read_1),
    family!("Olmo2", "olmo2", "model.", LmHeadConfig::SEPARATE, olmo::read_2),
    family!("Olmo3", "olmo3", "model.", LmHeadConfig::SEPARATE, olmo::read_3),
    like_llama!("StableLm", "stablelm", stablelm::read),
    token_family!(
        "score",
        "Starcoder2",
        "starcoder2",
        "model.",
        LmHeadConfig::TIED,
        starcoder2::read
    ),
    token_family!(
        "score",
        "SmolLM3",
        "smollm3",
        "model.",
        LmHeadConfig::TIED,
        smollm3::read
    ),
    family!("Cohere", "cohere", "model.", LmHeadConfig::TIED, cohere::read_1),
    family!("Cohere2", "cohere2", "model.", LmHeadConfig::TIED, cohere::read_2),
    token_family!(
        "classifier",
        "Falcon",
        "falcon",
        "transformer.",
        LmHeadConfig::TIED,
        falcon::read
    ),
    token_family!(
        "classifier",
        "GPTNeo",
        "gpt_neo",
        "transformer.",
        LmHeadConfig::TIED,
        gpt_neo::read
    ),
    token_family!(
        "classifier",
        "Bloom",
        "bloom",
        "transformer.",
        LmHeadConfig::TIED,
        bloom::read
    ),
    token_family!(
        "classifier",
        "Mpt",
        "mpt",
        "transformer.",
        LmHeadConfig::TIED,
        mpt::read
    ),
    // Class name in configurations older than the class in transformers.
    family!("MPT", "mpt", "transformer.", LmHeadConfig::TIED, mpt::read),
    token_family!(
        "score",
        "Gemma",
        "gemma",
        "model.",
        LmHeadConfig::TIED,
        gemma::read_1
    ),
    token_family!(
        "score",
        "Gemma2",
        "gemma2",
        "model.",
        LmHeadConfig::TIED,
        gemma::read_2
    ),
    family!(
        "Gemma3Text",
        "Gemma3ForCausalLM",
        "gemma3_text",
        "model.",
        LmHeadConfig::TIED,
        gemma::read_3
    ),
    token_family!(
        "classifier",
        "GPTNeoX",
        "gpt_neox",
        "gpt_neox.",
        LmHeadConfig::EMBED_OUT,
        gpt_neox::read
    ),
    family!("GPTJ", "gptj", "transformer.", LmHeadConfig::BIASED, gptj::read),
    Family {
        classifier: None,
        ..family!(
            "CodeGen",
            "codegen",
            "transformer.",
            LmHeadConfig::BIASED,
            gptj::read_codegen
        )
    },
    family!(
        "OpenAIGPT",
        "OpenAIGPTLMHeadModel",
        "openai-gpt",
        "transformer.",
        LmHeadConfig::TIED,
        openai_gpt::read
    ),
    unclassified!("XGLM", "xglm", LmHeadConfig::TIED, xglm::read),
    unclassified!("VaultGemma", "vaultgemma", LmHeadConfig::TIED, gemma::read_vault),
    unclassified!(
        "Glm4MoeLite",
        "glm4_moe_lite",
        LmHeadConfig::SEPARATE,
        deepseek::read_glm_lite
    ),
    like_llama!("Glm", "glm", glm::read_1),
    like_llama!("Glm4", "glm4", glm::read_4),
    unclassified!("Glm4Moe", "glm4_moe", LmHeadConfig::SEPARATE, glm::read_4_moe),
    like_llama!("Persimmon", "persimmon", persimmon::read),
    Family {
        classifier: None,
        ..family!("Dbrx", "dbrx", "transformer.", LmHeadConfig::SEPARATE, dbrx::read)
    },
    like_llama!("Nemotron", "nemotron", nemotron::read),
    like_llama!("Exaone4", "exaone4", exaone4::read),
    unclassified!("Ernie4_5", "ernie4_5", LmHeadConfig::TIED, ernie::read),
    unclassified!(
        "Ernie4_5_Moe",
        "ernie4_5_moe",
        LmHeadConfig::TIED_WITH_KEY,
        ernie::read_moe
    ),
    like_llama!("SeedOss", "seed_oss", seed_oss::read),
    like_llama!("Arcee", "arcee", arcee::read),
    like_llama!("Helium", "helium", helium::read),
    family!(
        "HunYuanDenseV1",
        "hunyuan_v1_dense",
        "model.",
        LmHeadConfig::SEPARATE,
        hunyuan::read
    ),
    family!(
        "HunYuanMoEV1",
        "hunyuan_v1_moe",
        "model.",
        LmHeadConfig::SEPARATE,
        hunyuan::read_moe
    ),
    unclassified!(
        "MiniMaxM2",
        "minimax_m2",
        LmHeadConfig::SEPARATE,
        minimax_m2::read
    ),
    unclassified!("Dots1", "dots1", LmHeadConfig::SEPARATE, dots1::read),
    unclassified!("NanoChat", "nanochat", LmHeadConfig::SEPARATE, nanochat::read),
    unclassified!("Cwm", "cwm", LmHeadConfig::SEPARATE, llama::read_world),
    Family {
        token_classifier: Some(("ApertusForTokenClassification", "score")),
        ..unclassified!("Apertus", "apertus", LmHeadConfig::SEPARATE, apertus::read)
    },
    like_llama!("Ministral", "ministral", mistral::read),
    like_llama!("Ministral3", "ministral3", ministral::read_3),
    token_family!(
        "classifier",
        "GPTBigCode",
        "gpt_bigcode",
        "transformer.",
        LmHeadConfig::TIED,
        gpt_bigcode::read
    ),
    unclassified!(
        "GraniteMoe",
        "granitemoe",
        LmHeadConfig::SEPARATE,
        granite::read_moe
    ),
    like_llama!("GptOss", "gpt_oss", gpt_oss::read),
    Family {
        generator: None,
        classifier: None,
        ..like_llama!(
            "OpenAIPrivacyFilter",
            "openai_privacy_filter",
            gpt_oss::read_filter
        )
    },
    family!("Phimoe", "phimoe", "model.", LmHeadConfig::WITH_KEY, phimoe::read),
    // Class name in Microsoft's configurations.
    family!("PhiMoE", "phimoe", "model.", LmHeadConfig::WITH_KEY, phimoe::read),
    family!(
        "DeepseekV2",
        "deepseek_v2",
        "model.",
        LmHeadConfig::SEPARATE,
        deepseek::read_2
    ),
    like_llama!("DeepseekV3", "deepseek_v3", deepseek::read_3),
    like_llama!("Mistral4", "mistral4", deepseek::read_mistral),
    unclassified!("HYV3", "hy_v3", LmHeadConfig::SEPARATE, hunyuan::read_3),
    Family {
        base_model: Some("MllamaTextModel"),
        ..unclassified!(
            "Mllama",
            "mllama_text_model",
            LmHeadConfig::SEPARATE,
            mllama::read
        )
    },
    Family {
        base_model: Some("Llama4TextModel"),
        ..unclassified!("Llama4", "llama4_text", LmHeadConfig::SEPARATE, llama4::read)
    },
    Family {
        // Base models do not compute AltUp streams.
        base_model: None,
        ..unclassified!("Gemma3n", "gemma3n_text", LmHeadConfig::TIED, gemma3n::read)
    },
    Family {
        // Base models do not compute per-layer embeddings.
        base_model: None,
        ..unclassified!("Gemma4", "gemma4_text", LmHeadConfig::TIED, gemma4::read)
    },
    unclassified!(
        "ModernBertDecoder",
        "modernbert-decoder",
        LmHeadConfig::MODERN_BERT,
        modernbert::read
    ),
    unclassified!("BitNet", "bitnet", LmHeadConfig::SEPARATE, bitnet::read),
    unclassified!("SolarOpen", "solar_open", LmHeadConfig::SEPARATE, glm::read_solar),
    unclassified!("Youtu", "youtu", LmHeadConfig::TIED, youtu::read),
    family!(
        "MiniCPM3",
        "minicpm3",
        "model.",
        LmHeadConfig::TIED,
        minicpm3::read
    ),
    unclassified!("Jais2", "jais2", LmHeadConfig::SEPARATE, nemotron::read_jais),
    unclassified!(
        "HyperCLOVAX",
        "hyperclovax",
        LmHeadConfig::SEPARATE,
        hyperclovax::read
    ),
    unclassified!(
        "GraniteMoeShared",
        "granitemoeshared",
        LmHeadConfig::SEPARATE,
        granite::read_moe
    ),
    unclassified!("GraniteSWA", "granite_swa", LmHeadConfig::TIED, granite_swa::read),
    unclassified!(
        "GraniteMoeSWA",
        "granitemoe_swa",
        LmHeadConfig::SEPARATE,
        granite_swa::read_moe
    ),
    unclassified!("FlexOlmo", "flex_olmo", LmHeadConfig::SEPARATE, olmo::read_flex),
    unclassified!("Mellum", "mellum", LmHeadConfig::SEPARATE, mellum::read),
    unclassified!(
        "ExaoneMoe",
        "exaone_moe",
        LmHeadConfig::SEPARATE,
        exaone4::read_moe
    ),
    unclassified!(
        "MiMoV2Flash",
        "mimo_v2_flash",
        LmHeadConfig::SEPARATE,
        mimo::read_2
    ),
    unclassified!("Afmoe", "afmoe", LmHeadConfig::SEPARATE, afmoe::read),
    token_family!(
        "classifier",
        "BioGpt",
        "biogpt",
        "biogpt.",
        LmHeadConfig::OUTPUT_PROJECTION,
        biogpt::read
    ),
    recurrent::LFM2,
    recurrent::LFM2_MOE,
    recurrent::LFM3,
    recurrent::QWEN_3_NEXT,
    recurrent::QWEN_3_5,
    recurrent::QWEN_3_5_MOE,
    recurrent::GRANITE_HYBRID,
    recurrent::BAMBA,
    recurrent::FALCON_H1,
    recurrent::NEMOTRON_H,
    recurrent::MAMBA,
    recurrent::MAMBA_2,
    recurrent::FALCON_MAMBA,
    recurrent::JAMBA,
    recurrent::OLMO_HYBRID,
    encoder_decoder("T5ForConditionalGeneration", "t5", "", t5::read),
    encoder_decoder("MT5ForConditionalGeneration", "mt5", "", t5::read),
    encoder_decoder("UMT5ForConditionalGeneration", "umt5", "", t5::read_umt5),
    encoder_decoder_classifier(
        "T5ForSequenceClassification",
        "t5",
        "transformer.",
        t5::read_classifier,
    ),
    encoder_decoder_classifier(
        "MT5ForSequenceClassification",
        "mt5",
        "transformer.",
        t5::read_classifier,
    ),
    encoder_decoder_classifier(
        "UMT5ForSequenceClassification",
        "umt5",
        "transformer.",
        t5::read_umt5_classifier,
    ),
    encoder_decoder("LongT5ForConditionalGeneration", "longt5", "", t5::read_long),
    encoder_decoder("LEDForConditionalGeneration", "led", "led.", bart::read_led),
    encoder_decoder(
        "T5GemmaForConditionalGeneration",
        "t5gemma",
        "model.",
        t5gemma::read,
    ),
    Family {
        // No base model, which would return the decoder's hidden states.
        classifier: Some("BartForSequenceClassification"),
        ..encoder_decoder("BartForConditionalGeneration", "bart", "model.", bart::read_bart)
    },
    encoder_decoder(
        "MBartForConditionalGeneration",
        "mbart",
        "model.",
        bart::read_mbart,
    ),
    encoder_decoder_classifier(
        "MBartForSequenceClassification",
        "mbart",
        "model.",
        bart::read_mbart_classifier,
    ),
    encoder_decoder(
        "PLBartForConditionalGeneration",
        "plbart",
        "model.",
        bart::read_plbart,
    ),
    encoder_decoder_classifier(
        "PLBartForSequenceClassification",
        "plbart",
        "model.",
        bart::read_plbart_classifier,
    ),
    encoder_decoder(
        "PegasusForConditionalGeneration",
        "pegasus",
        "model.",
        bart::read_pegasus,
    ),
    encoder_decoder("MarianMTModel", "marian", "model.", bart::read_marian),
    encoder_decoder(
        "M2M100ForConditionalGeneration",
        "m2m_100",
        "model.",
        bart::read_m2m_100,
    ),
    encoder_decoder(
        "BlenderbotForConditionalGeneration",
        "blenderbot",
        "model.",
        bart::read_blenderbot,
    ),
];
