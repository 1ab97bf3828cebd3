//! The inputs of a graph that takes tokens.

use super::super::text::{TextReader, Texts, TokenLimits, Tokens};
use super::session::{Dimension, Port};
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::runtime::tensor::{Datatype, Tensor, TensorError};

/// The input that makes a graph one that takes tokens.
pub(super) const IDS: &str = "input_ids";

/// Context of a graph whose own sequence may have any length and whose `config.json` names none, tokens.
const CONTEXT: usize = 512;

/// Reads requests for a graph that takes tokens, and makes its inputs.
pub(super) struct TokenInputs {
    /// Reads texts and tokens.
    pub reader: TextReader,
    columns: Vec<(Port, Column)>,
    /// Length that every sequence is padded to; by default the longest of its batch.
    length: Option<usize>,
    /// Symbol of the sequence dimension; may be empty.
    pub symbol: String,
}

/// What an input holds for every token. Padding is 0 everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Ids,
    Mask,
    Types,
    Positions,
}

impl TokenInputs {
    /// Returns the inputs of a graph if it takes tokens.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`], or [`LoadError::BadKey`] for a size in `config.json` that is not one.
    pub(super) fn of(
        inputs: &[Port],
        config: Option<&Config>,
        tokenizer: Option<&TokenizerFile>,
    ) -> Result<Option<Self>, LoadError> {
        let columns: Option<Vec<_>> = inputs
            .iter()
            .map(|port| Some((port.clone(), column(port)?)))
            .collect();
        let Some(columns) = columns else { return Ok(None) };
        let Some((ids, _)) = columns.iter().find(|(_, column)| *column == Column::Ids) else {
            return Ok(None);
        };
        let (length, symbol) = match ids.shape.get(1) {
            Some(Dimension::Exactly(length)) => (Some(*length), String::new()),
            Some(Dimension::Any(symbol)) => (None, symbol.clone()),
            None => return Ok(None),
        };
        let size = |key: &str| config.map_or(Ok(None), |config| config.optional_size(key));
        let words = match size("vocab_size")? {
            Some(words) => words,
            None => tokenizer.map_or(Ok(usize::MAX), vocabulary)?,
        };
        let limits = TokenLimits {
            vocabulary: words,
            types: size("type_vocab_size")?.unwrap_or(2),
            context: length.or(size("max_position_embeddings")?).unwrap_or(CONTEXT),
        };
        Ok(Some(Self {
            reader: TextReader::new(tokenizer, limits, Texts::OneOrTwo)?,
            columns,
            length,
            symbol,
        }))
    }

    /// Returns the length that a batch is padded to.
    pub(super) fn padded(&self, batch: &[Tokens]) -> usize {
        let longest = batch.iter().map(|tokens| tokens.ids.len()).max();
        self.length.or(longest).unwrap_or_default()
    }

    /// Returns the graph's inputs for a batch, each `[batch, length]`.
    ///
    /// # Errors
    /// [`TensorError`] if a sequence is longer than `length`.
    pub(super) fn tensors(&self, batch: &[Tokens], length: usize) -> Result<Vec<Tensor>, TensorError> {
        let tensor = |(port, column): &(Port, Column)| {
            let mut values = Vec::with_capacity(batch.len() * length);
            for tokens in batch {
                let end = values.len() + length;
                match column {
                    Column::Ids => values.extend(&tokens.ids),
                    Column::Mask => values.extend(tokens.mask.iter().map(|shown| i64::from(*shown))),
                    Column::Types => values.extend(&tokens.types),
                    Column::Positions => values.extend((0..).take(tokens.ids.len())),
                }
                values.resize(end, 0);
            }
            let shape = [batch.len(), length];
            if port.datatype == Datatype::I64 {
                return Tensor::from_i64(port.name.as_str(), &shape, &values);
            }
            let narrow = values.iter().flat_map(|value| (*value as i32).to_le_bytes());
            Tensor {
                name: port.name.clone(),
                shape: shape.to_vec(),
                datatype: Datatype::I32,
                data: narrow.collect::<Vec<u8>>().into(),
            }
            .checked()
        };
        self.columns.iter().map(tensor).collect()
    }
}

/// What an input of this name and type, `[batch, sequence]`, holds.
fn column(port: &Port) -> Option<Column> {
    if !matches!(port.datatype, Datatype::I64 | Datatype::I32) || port.shape.len() != 2 {
        return None;
    }
    match port.name.as_str() {
        IDS => Some(Column::Ids),
        "attention_mask" => Some(Column::Mask),
        "token_type_ids" => Some(Column::Types),
        "position_ids" => Some(Column::Positions),
        _ => None,
    }
}

fn vocabulary(file: &TokenizerFile) -> Result<usize, LoadError> {
    Ok(file.tokenizer()?.get_vocab_size(true))
}
