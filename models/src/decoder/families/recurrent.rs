//! Language model families with recurrent layers.

use kaskade_policy::plan::Partition;

use super::{Family, ReadFn};
use super::{bamba, falcon_h1, granite, jamba, lfm2, mamba, nemotron_h, olmo_hybrid, qwen_hybrid};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::head::LmHeadConfig;
use crate::decoder::weights::Decoder;

/// Defines a family without classifiers in transformers.
const fn family(
    [generator, base_model, model_type, base]: [&'static str; 4],
    head: LmHeadConfig,
    read: fn(&mut Checkpoint, Partition) -> Result<Decoder, LoadError>,
) -> Family {
    Family {
        generator: Some(generator),
        classifier: None,
        token_classifier: None,
        base_model: Some(base_model),
        model_type,
        base,
        head,
        read: ReadFn::Partitioned(read),
    }
}

pub(super) const LFM2: Family = family(
    ["Lfm2ForCausalLM", "Lfm2Model", "lfm2", "model."],
    LmHeadConfig::TIED,
    lfm2::read,
);

pub(super) const LFM2_MOE: Family = family(
    ["Lfm2MoeForCausalLM", "Lfm2MoeModel", "lfm2_moe", "model."],
    LmHeadConfig::TIED,
    lfm2::read_moe,
);

pub(super) const LFM3: Family = family(
    ["Lfm3ForCausalLM", "Lfm3Model", "lfm3", "model."],
    LmHeadConfig::TIED,
    lfm2::read_3,
);

pub(super) const QWEN_3_NEXT: Family = Family {
    classifier: Some("Qwen3NextForSequenceClassification"),
    token_classifier: Some(("Qwen3NextForTokenClassification", "score")),
    ..family(
        ["Qwen3NextForCausalLM", "Qwen3NextModel", "qwen3_next", "model."],
        LmHeadConfig::SEPARATE,
        qwen_hybrid::read_next,
    )
};

pub(super) const QWEN_3_5: Family = Family {
    classifier: Some("Qwen3_5TextForSequenceClassification"),
    ..family(
        ["Qwen3_5ForCausalLM", "Qwen3_5TextModel", "qwen3_5_text", "model."],
        LmHeadConfig::SEPARATE,
        qwen_hybrid::read_3_5,
    )
};

pub(super) const QWEN_3_5_MOE: Family = family(
    [
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextModel",
        "qwen3_5_moe_text",
        "model.",
    ],
    LmHeadConfig::SEPARATE,
    qwen_hybrid::read_3_5_moe,
);

pub(super) const GRANITE_HYBRID: Family = family(
    [
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridModel",
        "granitemoehybrid",
        "model.",
    ],
    LmHeadConfig::SEPARATE,
    granite::read_hybrid,
);

pub(super) const BAMBA: Family = family(
    ["BambaForCausalLM", "BambaModel", "bamba", "model."],
    LmHeadConfig::SEPARATE,
    bamba::read,
);

pub(super) const FALCON_H1: Family = family(
    ["FalconH1ForCausalLM", "FalconH1Model", "falcon_h1", "model."],
    LmHeadConfig::SEPARATE,
    falcon_h1::read,
);

pub(super) const NEMOTRON_H: Family = family(
    ["NemotronHForCausalLM", "NemotronHModel", "nemotron_h", "model."],
    LmHeadConfig::SEPARATE,
    nemotron_h::read,
);

pub(super) const MAMBA: Family = family(
    ["MambaForCausalLM", "MambaModel", "mamba", "backbone."],
    LmHeadConfig::TIED,
    mamba::read_1,
);

pub(super) const MAMBA_2: Family = family(
    ["Mamba2ForCausalLM", "Mamba2Model", "mamba2", "backbone."],
    LmHeadConfig::SEPARATE,
    mamba::read_2,
);

pub(super) const FALCON_MAMBA: Family = family(
    [
        "FalconMambaForCausalLM",
        "FalconMambaModel",
        "falcon_mamba",
        "backbone.",
    ],
    LmHeadConfig::TIED,
    mamba::read_falcon,
);

pub(super) const JAMBA: Family = Family {
    classifier: Some("JambaForSequenceClassification"),
    ..family(
        ["JambaForCausalLM", "JambaModel", "jamba", "model."],
        LmHeadConfig::SEPARATE,
        jamba::read,
    )
};

pub(super) const OLMO_HYBRID: Family = family(
    [
        "OlmoHybridForCausalLM",
        "OlmoHybridModel",
        "olmo_hybrid",
        "model.",
    ],
    LmHeadConfig::SEPARATE,
    olmo_hybrid::read,
);
