//! The text of a token classifier in its partitions: it travels beside the hidden states, and the last partition finds its entities.

use kaskade_policy::plan::Partition;

use crate::architectures::text::{TextReader, Texts, labelled_inputs};
use crate::checkpoint::LoadError;
use crate::runtime::model::{InputSpec, Inputs, ModelError};
use crate::tasks::labelling::TokenText;

/// What a partition does with a text.
pub(in crate::architectures) enum TextBeside {
    /// No text travels: the model is whole, or no token classifier.
    None,
    /// It hands the text on.
    HandedOn,
    /// It is the last partition and reads the text.
    Read(Box<TextReader>),
}

impl TextBeside {
    /// Decides for a partition of a model of such texts; `reader` reads its tokenizer.
    ///
    /// # Errors
    /// Those of `reader`.
    pub(in crate::architectures) fn of(
        texts: Texts,
        partition: Partition,
        reader: impl FnOnce() -> Result<TextReader, LoadError>,
    ) -> Result<Self, LoadError> {
        Ok(if texts != Texts::Labelled || partition == Partition::WHOLE {
            Self::None
        } else if partition.is_last() {
            Self::Read(Box::new(reader()?))
        } else {
            Self::HandedOn
        })
    }

    /// The inputs of a partition that takes hidden states, beside them.
    pub(in crate::architectures) fn inputs(&self) -> Vec<InputSpec> {
        match self {
            Self::None => Vec::new(),
            Self::HandedOn | Self::Read(_) => labelled_inputs().into(),
        }
    }

    /// Returns the inputs that the next partition gets beside hidden states.
    pub(in crate::architectures) fn handed_on(&self, inputs: &Inputs) -> Inputs {
        match self {
            Self::HandedOn => {
                let names = labelled_inputs().map(|input| input.name);
                let texts = inputs.iter().filter(|input| names.contains(&input.name));
                texts.cloned().collect()
            }
            Self::None | Self::Read(_) => Inputs::new(),
        }
    }

    /// Reads the text that came beside hidden states, if one did.
    ///
    /// # Errors
    /// As [`TextReader::read`].
    pub(in crate::architectures) fn read(&self, inputs: &Inputs) -> Result<Option<TokenText>, ModelError> {
        match self {
            Self::Read(reader) => reader.text_of(inputs),
            Self::None | Self::HandedOn => Ok(None),
        }
    }
}
