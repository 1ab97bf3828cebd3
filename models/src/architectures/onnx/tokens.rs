//! Inputs of a graph that takes tokens.

use super::super::text::{TextReader, Texts, TokenLimits, Tokens};
use super::session::{Dimension, Port};
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::runtime::tensor::{Datatype, Tensor, TensorError};

/// Name of the input that identifies a graph that takes tokens.
pub(super) const IDS: &str = "input_ids";

/// Default context of a graph with a variable sequence length, if `config.json` states none, tokens.
const CONTEXT: usize = 512;

/// Values of `model_type` whose positions begin after the padding id, so that the position table has more rows than a
/// sequence has tokens.
const AFTER_PADDING: [&str; 12] = [
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
];

/// Reads requests for a graph that takes tokens, and builds its inputs.
pub(super) struct TokenInputs {
    /// Reader of texts and token ids.
    pub reader: TextReader,
    columns: Vec<(Port, Column)>,
    /// Fixed padded length; by default, sequences are padded to the longest of their batch.
    length: Option<usize>,
    /// Symbol of the sequence dimension; may be empty.
    pub symbol: String,
}

/// Content of an input per token. Padding is 0 in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Ids,
    Mask,
    Types,
    Positions,
}

impl TokenInputs {
    /// Returns the token inputs of a graph; `None` if it takes no tokens.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`], or [`LoadError::BadKey`] for an invalid size in `config.json`.
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
            context: match (length, config) {
                (Some(length), _) => length,
                (None, Some(config)) => context(config)?.unwrap_or(CONTEXT),
                (None, None) => CONTEXT,
            },
        };
        Ok(Some(Self {
            reader: TextReader::new(tokenizer, limits, Texts::OneOrTwo)?,
            columns,
            length,
            symbol,
        }))
    }

    /// Returns the padded length for a batch.
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

/// Returns the maximum sequence length that a `config.json` states, tokens.
///
/// # Errors
/// [`LoadError::BadKey`] for a number of positions that leaves none for tokens.
fn context(config: &Config) -> Result<Option<usize>, LoadError> {
    let key = "max_position_embeddings";
    let model_type = config.optional::<String>("model_type")?;
    let kind = config.optional::<String>("position_embedding_type")?;
    let begins_later = model_type.is_some_and(|name| AFTER_PADDING.contains(&name.as_str()));
    let positions = config.optional_size(key)?;
    let Some(positions) = positions.filter(|_| begins_later && kind.as_deref() != Some("rotary")) else {
        return Ok(positions);
    };
    let pad = config.optional::<usize>("pad_token_id")?.unwrap_or(1);
    match positions.checked_sub(pad.saturating_add(1)) {
        Some(context @ 1..) => Ok(Some(context)),
        _ => Err(config.invalid_value(key, format!("positions begin after pad_token_id = {pad}"))),
    }
}

/// Returns the content of an input by its name and type; the shape is `[batch, sequence]`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_after_the_padding_leave_fewer_tokens() {
        let of = |json: &str| context(&Config::parse("config.json", json.as_bytes()).unwrap());
        for (json, expected) in [
            (
                r#"{"model_type": "bert", "max_position_embeddings": 512}"#,
                Some(512),
            ),
            (
                r#"{"model_type": "roberta", "max_position_embeddings": 514}"#,
                Some(512),
            ),
            (
                r#"{"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}"#,
                Some(512),
            ),
            (
                r#"{"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 3}"#,
                Some(510),
            ),
            (
                r#"{"model_type": "esm", "max_position_embeddings": 1026, "position_embedding_type": "rotary"}"#,
                Some(1026),
            ),
            (r#"{"model_type": "roberta"}"#, None),
        ] {
            assert_eq!(of(json).unwrap(), expected, "{json}");
        }
        let error = of(r#"{"model_type": "roberta", "max_position_embeddings": 2}"#).unwrap_err();
        assert!(error.to_string().contains("`max_position_embeddings`"), "{error}");
    }
}
