//! The families of language models with recurrent layers, as entries of the list of all families.

use super::families::{Family, ReadFn};
use super::head::HeadForm;
use super::lfm2;
use super::weights::Decoder;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

/// A family of which transformers has no classifiers.
const fn family(
    [generator, base_model, model_type, base]: [&'static str; 4],
    head: HeadForm,
    read: fn(&mut Checkpoint, Slice) -> Result<Decoder, LoadError>,
) -> Family {
    Family {
        generator,
        classifier: None,
        token_classifier: None,
        base_model: Some(base_model),
        model_type,
        base,
        head,
        read: ReadFn::Sliced(read),
    }
}

pub(super) const LFM2: Family = family(
    ["Lfm2ForCausalLM", "Lfm2Model", "lfm2", "model."],
    HeadForm::TIED,
    lfm2::read,
);

pub(super) const LFM2_MOE: Family = family(
    ["Lfm2MoeForCausalLM", "Lfm2MoeModel", "lfm2_moe", "model."],
    HeadForm::TIED,
    lfm2::read_moe,
);
