//! Static embeddings: the vector of a text is the mean of one table row per token (`model2vec`, and the
//! sentence-transformers module `StaticEmbedding`).
//!
//! Inputs: `input_ids` INT64 `[sequence]`, optionally with `attention_mask` of the same shape; or, with a
//! `tokenizer.json`, `text` BYTES `[1]`, which gets no special tokens, and `prompt_name` if the directory has prompts.
//! Output: `embedding` FP32 `[width]`; for a text without tokens, the layers after the mean receive zeros.
//!
//! A model2vec directory is read as by its library: unknown tokens of a text are ignored, and a text is truncated to
//! `max_length` tokens. Other directories are read as by sentence-transformers.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{Tokenizer, TruncationDirection, TruncationParams, TruncationStrategy};

use super::architecture::{Architecture, Build};
use super::text::{TextReader, Texts, TokenLimits, bad, only_text, text_input};
use super::text_encoder::vector_layer::VectorLayer;
use crate::checkpoint::sentence::SentenceLayer;
use crate::checkpoint::static_embedding::{MODEL2VEC, STATIC_EMBEDDING, STATIC_MODEL, is_model2vec};
use crate::checkpoint::{Checkpoint, Config, LoadError, SentenceModules, TokenizerFile, Weights};
use crate::device::{Device, with_ops};
use crate::ops::Ops;
use crate::precision::Table;
use crate::runtime::batch::{BatchResults, rows, run_batch_in_parallel};
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::Tensor;
use crate::runtime::usage::usage;
use crate::tasks::embedding::{PROMPT_NAME, Pooling};

/// The supported classes.
pub(super) const STATIC: [Architecture; 2] = [
    Architecture {
        name: STATIC_MODEL,
        model_type: MODEL2VEC,
        head: None,
        build: Build::Whole(build),
        unused: &[],
    },
    Architecture {
        name: STATIC_EMBEDDING,
        model_type: STATIC_EMBEDDING,
        head: None,
        build: Build::Whole(build),
        unused: &[],
    },
];

/// Maximum number of token ids in `input_ids`. The length of a text is limited in bytes.
const MAX_IDS: usize = 1 << 15;
/// Default maximum length of a text in model2vec, tokens.
const MAX_TOKENS: usize = 512;
/// Name of the table in sentence-transformers.
const BAG: &str = "embedding.weight";
/// Name of the table in model2vec.
const EMBEDDINGS: &str = "embeddings";

/// Builds a static embedding.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
fn build(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    let model = with_ops!(device, ops => StaticEmbedding::boxed(ops, checkpoint, device)?);
    Ok(Built {
        model,
        task: Task::Embedding,
        labels: Vec::new(),
    })
}

/// A static embedding.
struct StaticEmbedding<O: Ops> {
    ops: O,
    reader: Reader,
    tokens: TokenTable,
    layers: Vec<VectorLayer<O>>,
    /// Number of elements that the last layer returns.
    width: usize,
    /// Number of leading elements of the vector to keep.
    kept: usize,
    device: Device,
}

impl<O: Ops> StaticEmbedding<O> {
    fn boxed(ops: O, checkpoint: &mut Checkpoint, device: &Device) -> Result<Box<dyn Model>, LoadError> {
        let tokens = TokenTable::take(&mut checkpoint.weights)?;
        let modules = modules(checkpoint)?;
        let reader = Reader::new(&checkpoint.config, checkpoint.tokenizer.as_ref(), tokens.count())?;
        let mut width = tokens.width;
        let layers = VectorLayer::take_all(&ops, modules.layers, &mut width)?;
        Ok(Box::new(Self {
            ops,
            reader,
            tokens,
            layers,
            width,
            kept: modules.kept.unwrap_or(width),
            device: device.clone(),
        }))
    }

    fn answer(&self, requests: &[Vec<usize>]) -> Result<BatchResults, ModelError> {
        let means = requests.iter().flat_map(|tokens| self.tokens.mean(tokens));
        let means = self.ops.upload(means.collect(), self.tokens.width);
        let layers = self.layers.iter();
        let vectors = layers.fold(means, |x, layer| layer.applied(&self.ops, &x));
        let vectors = rows(&self.ops, &vectors, self.width)?;
        let outputs = vectors.into_iter().zip(requests).map(|(mut vector, tokens)| {
            vector.truncate(self.kept);
            Ok(vec![
                Tensor::from_f32("embedding", &[vector.len()], &vector)?,
                usage(tokens.len(), 0)?,
            ])
        });
        Ok(outputs.collect())
    }
}

impl<O: Ops> Model for StaticEmbedding<O> {
    fn signature(&self) -> Signature {
        self.reader.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.reader.read(inputs).map(drop)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| self.reader.read(inputs),
            Vec::len,
            |requests| self.answer(requests),
        )
    }
}

/// Returns the layers after the mean: the sentence-transformers modules, or those that model2vec's configuration
/// implies.
fn modules(checkpoint: &mut Checkpoint) -> Result<SentenceModules, LoadError> {
    let key = "head_config";
    if checkpoint.config.optional::<Value>(key)?.is_some() {
        let reason = "classifiers of model2vec are not supported, only its embeddings";
        return Err(checkpoint.config.invalid_value(key, reason));
    }
    let mut modules = match checkpoint.sentence.take() {
        Some(modules) => modules.checked()?,
        None => SentenceModules::pooled_by(Pooling::Mean),
    };
    if modules.is_scored {
        return Err(LoadError::NotServed {
            name: checkpoint.name.clone(),
            reason: "scores of static embeddings are not supported".into(),
        });
    }
    let normalises = checkpoint.config.optional("normalize")?.unwrap_or(false);
    let is_norm = |layer: &SentenceLayer| matches!(layer, SentenceLayer::Normalise);
    if normalises && !modules.layers.iter().any(is_norm) {
        modules.layers.push(SentenceLayer::Normalise);
    }
    Ok(modules)
}

/// Table of token vectors.
struct TokenTable {
    vectors: Table,
    /// Row of each token; empty if the row is the token id.
    rows: Vec<usize>,
    /// Weight of each token; empty if all are one.
    factors: Vec<f32>,
    width: usize,
    /// Number of rows.
    height: usize,
}

impl TokenTable {
    /// Takes the table; for model2vec also the rows and weights of tokens.
    ///
    /// # Errors
    /// Same as [`Weights::take`]; [`LoadError::BadWeights`] for an empty table, or a row outside the table.
    fn take(weights: &mut Weights) -> Result<Self, LoadError> {
        let stated = weights.raw();
        let extent = |name: &str, axis: usize| {
            let tensor = stated.iter().find(|tensor| tensor.name == name);
            tensor.and_then(|tensor| tensor.shape.get(axis).copied())
        };
        let is_bag = weights.contains(BAG);
        let name = if is_bag { BAG } else { EMBEDDINGS };
        let bad = |weights: &Weights, reason: String| LoadError::BadWeights {
            file: weights.file().to_owned(),
            reason,
        };
        let [height, width] = [0, 1].map(|axis| extent(name, axis).unwrap_or_default());
        let values = weights.take_numbers(name, &[height, width])?;
        if values.is_empty() {
            return Err(bad(weights, format!("`{name}` is empty")));
        }
        let elements = values.len();
        let vectors = Table::new(values, width).stored_as(weights.weight_type().of_embeddings());
        weights.count_prepared(elements, vectors.bytes());
        let (mut rows, mut factors) = (Vec::new(), Vec::new());
        if let Some(count) = extent("mapping", 0).filter(|_| !is_bag) {
            for row in weights.take_numbers("mapping", &[count])? {
                if !(row >= 0.0 && row < height as f32) {
                    let reason = format!("`mapping` names the row {row} of {height}");
                    return Err(bad(weights, reason));
                }
                rows.push(row as usize);
            }
        }
        let count = if rows.is_empty() { height } else { rows.len() };
        if weights.contains("weights") && !is_bag {
            factors = weights.take_numbers("weights", &[count])?;
        }
        Ok(Self {
            vectors,
            rows,
            factors,
            width,
            height,
        })
    }

    /// Returns the number of token ids.
    fn count(&self) -> usize {
        if self.rows.is_empty() {
            self.height
        } else {
            self.rows.len()
        }
    }

    /// Returns the mean of token vectors; zeros without tokens.
    fn mean(&self, tokens: &[usize]) -> Vec<f32> {
        let (mut sum, mut vector) = (vec![0.0; self.width], vec![0.0; self.width]);
        for token in tokens {
            let row = self.rows.get(*token).copied().unwrap_or(*token);
            let Some(factor) = self.factors.get(*token) else {
                self.vectors.add_row(row, &mut sum);
                continue;
            };
            self.vectors.read_row(row, &mut vector);
            for (sum, value) in sum.iter_mut().zip(&vector) {
                *sum += factor * value;
            }
        }
        let count = tokens.len().max(1) as f32;
        sum.into_iter().map(|sum| sum / count).collect()
    }
}

/// Converts requests to tokens.
struct Reader {
    /// Reader of requests with token ids.
    ids: TextReader,
    tokenizer: Option<Tokenizer>,
    vocabulary: usize,
    /// Token to ignore.
    unknown: Option<u32>,
    /// Maximum length of a text, characters.
    characters: Option<usize>,
}

impl Reader {
    /// Creates a reader for `vocabulary` token ids with the checkpoint's tokenizer, if it has one.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`] if the file is not a tokenizer, and [`LoadError::BadKey`] for an invalid `max_length`.
    fn new(config: &Config, file: Option<&TokenizerFile>, vocabulary: usize) -> Result<Self, LoadError> {
        let limits = TokenLimits {
            vocabulary,
            types: 0,
            context: MAX_IDS,
        };
        let mut reader = Self {
            ids: TextReader::new(None, limits, Texts::OneOrTwo)?,
            tokenizer: None,
            vocabulary,
            unknown: None,
            characters: None,
        };
        let Some(file) = file else { return Ok(reader) };
        reader.ids.preparation = file.preparation.clone();
        let mut tokenizer = file.tokenizer()?;
        tokenizer.with_padding(None);
        if is_model2vec(config)? {
            let most = match config.keys().get("max_length") {
                None => Some(MAX_TOKENS),
                Some(_) => config.optional_size("max_length")?,
            };
            let truncation = most.map(|max_length| TruncationParams {
                max_length,
                direction: TruncationDirection::Right,
                strategy: TruncationStrategy::LongestFirst,
                stride: 0,
            });
            let truncated = tokenizer.with_truncation(truncation);
            truncated.map_err(|error| bad_tokenizer(file, error.to_string()))?;
            reader.characters = most.map(|most| most.saturating_mul(median_length(&tokenizer)));
            reader.unknown = unknown(file, &tokenizer)?;
        }
        reader.tokenizer = Some(tokenizer);
        Ok(reader)
    }

    fn signature(&self) -> Signature {
        let mut signature = self.ids.signature();
        if self.tokenizer.is_some() {
            for input in &mut signature.inputs {
                input.optional = true;
            }
            signature.inputs.push(text_input("text"));
            let has_prompts = !self.ids.preparation.prompts.is_empty();
            signature
                .inputs
                .extend(has_prompts.then(|| text_input(PROMPT_NAME)));
        }
        signature
    }

    /// Returns the tokens of a request, without ignored ones.
    ///
    /// # Errors
    /// [`ModelError`], naming the invalid input.
    fn read(&self, inputs: &Inputs) -> Result<Vec<usize>, ModelError> {
        self.signature().check(inputs)?;
        let input = |name: &str| inputs.iter().find(|input| input.name == name);
        let (Some(tokenizer), Some(text)) = (&self.tokenizer, input("text")) else {
            if input(PROMPT_NAME).is_some() {
                return Err(bad(PROMPT_NAME, "it is allowed with `text` only"));
            }
            if input("input_ids").is_none() {
                return Err(bad(
                    "text",
                    "`text` and `input_ids` are missing; send one of them",
                ));
            }
            let tokens = self.ids.read(inputs)?.into_iter();
            let tokens = tokens.flat_map(|tokens| tokens.ids.into_iter().zip(tokens.mask));
            let visible = tokens.filter(|(_, visible)| *visible);
            return Ok(visible.filter_map(|(id, _)| usize::try_from(id).ok()).collect());
        };
        for name in ["input_ids", "attention_mask"] {
            if input(name).is_some() {
                return Err(bad(name, "it is given together with a text; send only one"));
            }
        }
        let prompt = self.ids.prompt(input(PROMPT_NAME))?;
        let whole = crate::checkpoint::sentence::Preparation::prompted(only_text(text)?, prompt);
        let end = self.characters.and_then(|most| whole.char_indices().nth(most));
        let shown = end
            .and_then(|(end, _)| whole.get(..end))
            .unwrap_or(whole.as_ref());
        let encoding = tokenizer.encode_fast(shown, false);
        let encoding = encoding.map_err(|error| bad(&text.name, format!("the tokenizer failed: {error}")))?;
        let known = encoding.get_ids().iter().filter(|id| Some(**id) != self.unknown);
        let known: Vec<usize> = known.map(|id| *id as usize).collect();
        match known.iter().find(|id| **id >= self.vocabulary) {
            None => Ok(known),
            Some(id) => {
                let reason = format!(
                    "the tokenizer returned {id}; this model takes 0..={}",
                    self.vocabulary - 1
                );
                Err(bad(&text.name, reason))
            }
        }
    }
}

fn bad_tokenizer(file: &TokenizerFile, reason: String) -> LoadError {
    LoadError::BadTokenizer {
        file: file.file.clone(),
        reason,
    }
}

/// Returns the median token length of a tokenizer, characters, rounded down.
fn median_length(tokenizer: &Tokenizer) -> usize {
    let tokens = tokenizer.get_vocab(true).into_keys();
    let mut lengths: Vec<usize> = tokens.map(|token| token.chars().count()).collect();
    lengths.sort_unstable();
    let at = |place: usize| lengths.get(place).copied().unwrap_or_default();
    let count = lengths.len();
    usize::midpoint(at(count.saturating_sub(1) / 2), at(count / 2))
}

/// Reads the unknown token of a tokenizer.
fn unknown(file: &TokenizerFile, tokenizer: &Tokenizer) -> Result<Option<u32>, LoadError> {
    #[derive(Deserialize)]
    struct Whole {
        model: Unknown,
    }
    /// The unknown token, by its text or its id.
    #[derive(Deserialize)]
    struct Unknown {
        unk_token: Option<String>,
        unk_id: Option<u32>,
    }
    let read = serde_json::from_slice::<Whole>(&file.json);
    let Unknown { unk_token, unk_id } = read
        .map_err(|error| bad_tokenizer(file, error.to_string()))?
        .model;
    Ok(match unk_token {
        Some(token) => tokenizer.token_to_id(&token),
        None => unk_id,
    })
}

#[cfg(test)]
mod tests;
