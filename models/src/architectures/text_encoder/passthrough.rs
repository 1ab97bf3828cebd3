//! Passes the text of a token classifier through its partitions with the hidden states; the last partition extracts
//! its entities.

use kaskade_policy::plan::Partition;

use crate::architectures::text::{TextReader, Texts, labelled_inputs};
use crate::checkpoint::LoadError;
use crate::runtime::model::{InputSpec, Inputs, ModelError};
use crate::tasks::labelling::TokenText;

/// Treatment of the text in a partition.
pub(in crate::architectures) enum TextPassthrough {
    /// No text is passed on: the model is not partitioned, or not a token classifier.
    None,
    /// The text is passed on.
    HandedOn,
    /// The text is read, in the last partition.
    Read(Box<TextReader>),
}

impl TextPassthrough {
    /// Returns the treatment for a partition; `reader` creates a reader with the tokenizer.
    ///
    /// # Errors
    /// Errors of `reader`.
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

    /// Returns the inputs of a partition besides hidden states.
    pub(in crate::architectures) fn inputs(&self) -> Vec<InputSpec> {
        match self {
            Self::None => Vec::new(),
            Self::HandedOn | Self::Read(_) => labelled_inputs().into(),
        }
    }

    /// Returns the inputs to pass on to the next partition.
    pub(in crate::architectures) fn forwarded_inputs(&self, inputs: &Inputs) -> Inputs {
        match self {
            Self::HandedOn => {
                let names = labelled_inputs().map(|input| input.name);
                let texts = inputs.iter().filter(|input| names.contains(&input.name));
                texts.cloned().collect()
            }
            Self::None | Self::Read(_) => Inputs::new(),
        }
    }

    /// Reads the text that came with hidden states, if there is one.
    ///
    /// # Errors
    /// Same as [`TextReader::read`].
    pub(in crate::architectures) fn read(&self, inputs: &Inputs) -> Result<Option<TokenText>, ModelError> {
        match self {
            Self::Read(reader) => reader.text_of(inputs),
            Self::None | Self::HandedOn => Ok(None),
        }
    }
}
