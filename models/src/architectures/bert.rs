//! BERT (Devlin et al. 2019): `BertForSequenceClassification` and `BertForQuestionAnswering`.
//!
//! Inputs: `input_ids` INT64 `[sequence]`, optionally with `attention_mask` and `token_type_ids` of the same shape; or,
//! if the checkpoint has a `tokenizer.json`, `text` BYTES `[1]` and optionally `text_pair`. Text beyond the context
//! (`max_position_embeddings` tokens) is truncated: of a pair the longer text, of a question and its context the
//! context.
//!
//! - Classification returns `logits` FP32 `[labels]`.
//! - Question answering returns `start_logits` and `end_logits` FP32 `[sequence]`, raw; for a question and a context as
//!   texts also `answer` BYTES `[1]` and `answer_span` INT64 `[2]`, the answer's first byte in the context and the one
//!   after its last: the span with the largest product of start and end probability among those of at most
//!   [`LONGEST_ANSWER`](super::answer_span::LONGEST_ANSWER) tokens within the context, extended to whole words.
//!
//! As slices, all but the last return `hidden_states` FP32 `[sequence, width]` and `attention_mask` INT64 `[sequence]`,
//! which all but the first take. The last one has no text for an answer and returns logits only.

use super::answer_span::span_outputs;
use super::encoder::{Block, BlockNames, EncoderConfig};
use super::layers::Layers;
use super::text::{SecondText, TextReader, Texts, TokenLimits, Tokens};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::device::{Device, with_ops};
use crate::ops::{Activation, Ops, Span};
use crate::runtime::batch::{BatchResults, device_failed, logits_per_row, rows, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::slice::Slice;
use crate::runtime::tensor;

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: "attention.self",
    attention_norm: "attention.output.LayerNorm",
    feed_forward_norm: "output.LayerNorm",
};

/// Builds a `BertForSequenceClassification`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn sequence_classification(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    let labels = checkpoint.config.labels()?;
    let head = HeadKind::Classes(labels.len());
    Ok(Built {
        model: with_ops!(device, ops => Bert::boxed(ops, checkpoint, device, slice, head)?),
        task: Task::Classification,
        labels,
    })
}

/// Builds a `BertForQuestionAnswering`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn question_answering(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    if checkpoint.config.labels()?.len() != 2 {
        return Err(checkpoint
            .config
            .invalid_value("id2label", "a span needs two labels, its start and its end"));
    }
    Ok(Built {
        model: with_ops!(device, ops => Bert::boxed(ops, checkpoint, device, slice, HeadKind::Span)?),
        task: Task::QuestionAnswering,
        labels: Vec::new(),
    })
}

/// A BERT model or a slice of one.
struct Bert<O: Ops> {
    ops: O,
    config: EncoderConfig,
    limits: TokenLimits,
    /// Only in the first slice.
    input_stage: Option<InputStage<O>>,
    blocks: Vec<Block<O>>,
    /// Only in the last slice.
    head: Option<Head<O>>,
    device: Device,
}

/// Computes hidden states from tokens. The tables are rows of the model's width in host memory.
struct InputStage<O: Ops> {
    reader: TextReader,
    words: Vec<f32>,
    positions: Vec<f32>,
    types: Vec<f32>,
    norm: O::Norm,
}

/// What the last slice computes.
#[derive(Debug, Clone, Copy)]
enum HeadKind {
    /// One of as many classes.
    Classes(usize),
    /// Start and end of a span.
    Span,
}

/// Computes the answer from hidden states.
enum Head<O: Ops> {
    Classes {
        pooler: O::Linear,
        output: O::Linear,
        labels: usize,
    },
    Span(O::Linear),
}

/// Input of a slice for one request.
enum Request {
    /// Tokens, for the first slice.
    Tokens(Box<Tokens>),
    /// Hidden states of the previous slice with their attention mask.
    States { values: Vec<f32>, mask: Vec<bool> },
}

impl Request {
    fn mask(&self) -> &[bool] {
        match self {
            Self::Tokens(tokens) => &tokens.mask,
            Self::States { mask, .. } => mask,
        }
    }

    fn second(&self) -> Option<&SecondText> {
        match self {
            Self::Tokens(tokens) => tokens.second.as_ref(),
            Self::States { .. } => None,
        }
    }
}

impl<O: Ops> Model for Bert<O> {
    fn signature(&self) -> Signature {
        match &self.input_stage {
            Some(input_stage) => input_stage.reader.signature(),
            None => states::signature(Extent::UpTo(self.limits.context), self.config.width, true),
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let signature = self.signature();
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| self.read(inputs, &signature),
            |request| request.mask().len(),
            |requests| self.answer(requests),
        )
    }
}

impl<O: Ops> Bert<O> {
    fn read(&self, inputs: &Inputs, signature: &Signature) -> Result<Request, ModelError> {
        if let Some(input_stage) = &self.input_stage {
            return Ok(Request::Tokens(Box::new(input_stage.reader.read(inputs)?)));
        }
        signature.check(inputs)?;
        let values = states::values(inputs)?;
        let mask = inputs.iter().find(|input| input.name == states::ATTENTION_MASK);
        let mask = mask.map(tensor::Tensor::to_i64).transpose()?.unwrap_or_default();
        let mask: Vec<bool> = mask.into_iter().map(|mask| mask != 0).collect();
        let bad = |reason: &str| ModelError::BadInput {
            name: states::ATTENTION_MASK.into(),
            reason: reason.into(),
        };
        if values.len() != mask.len() * self.config.width {
            return Err(bad("its length differs from that of the hidden states"));
        }
        if !mask.contains(&true) {
            return Err(bad("it masks every token"));
        }
        Ok(Request::States { values, mask })
    }

    fn answer(&self, requests: &[Request]) -> Result<BatchResults, ModelError> {
        let (ops, width) = (&self.ops, self.config.width);
        let masks: Vec<&[bool]> = requests.iter().map(Request::mask).collect();
        let lengths: Vec<usize> = masks.iter().map(|mask| mask.len()).collect();
        let states = self.forward(requests, &masks);
        match &self.head {
            None => {
                let states = ops.values(&states).map_err(|error| device_failed(&error))?;
                Ok(states::outputs(&states, width, &lengths, Some(&masks)))
            }
            Some(Head::Classes {
                pooler,
                output,
                labels,
            }) => {
                let mut next = 0;
                let first = lengths.iter().map(|length| {
                    next += length;
                    Span {
                        matrix: &states,
                        from: next - length,
                        count: 1,
                    }
                });
                let first = ops.gather(&first.collect::<Vec<_>>(), width);
                let pooled = ops.activate(ops.multiply(&first, pooler), Activation::Tanh, false);
                Ok(logits_per_row(rows(
                    ops,
                    &ops.multiply(&pooled, output),
                    *labels,
                )?))
            }
            Some(Head::Span(output)) => {
                let logits = rows(ops, &ops.multiply(&states, output), 2)?;
                let mut rest = logits.as_slice();
                let outputs = requests.iter().zip(&lengths).map(|(request, length)| {
                    let (own, others) = rest.split_at_checked(*length).unwrap_or((rest, &[]));
                    rest = others;
                    span_outputs(request.second(), own)
                });
                Ok(outputs.collect::<BatchResults>())
            }
        }
    }
}

impl<O: Ops> Bert<O> {
    /// Takes a model or a slice of one from a checkpoint.
    fn boxed(
        ops: O,
        checkpoint: &mut Checkpoint,
        device: &Device,
        slice: Slice,
        head: HeadKind,
    ) -> Result<Box<dyn Model>, LoadError> {
        let keys = &checkpoint.config;
        let positions = keys.optional::<String>("position_embedding_type")?;
        if positions.is_some_and(|kind| kind != "absolute") {
            return Err(
                keys.invalid_value("position_embedding_type", "only absolute positions are supported")
            );
        }
        if keys.optional::<bool>("is_decoder")?.unwrap_or(false) {
            return Err(keys.invalid_value("is_decoder", "only encoders are supported"));
        }
        let config = EncoderConfig::read(keys)?;
        let limits = TokenLimits {
            vocabulary: keys.size("vocab_size")?,
            types: keys.size("type_vocab_size")?,
            context: keys.size("max_position_embeddings")?,
        };
        let texts = match head {
            HeadKind::Classes(_) => Texts::OneOrTwo,
            HeadKind::Span => Texts::QuestionAndContext,
        };
        let input_stage = if slice.is_first() {
            Some(InputStage::take(&ops, checkpoint, config, limits, texts)?)
        } else {
            None
        };
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let blocks = config.take_blocks(&mut layers, "bert.encoder.layer", &BLOCK_NAMES, slice)?;
        let head = if slice.is_last() {
            Some(Head::take(&mut layers, head, config.width)?)
        } else {
            None
        };
        Ok(Box::new(Self {
            ops,
            config,
            limits,
            input_stage,
            blocks,
            head,
            device: device.clone(),
        }))
    }

    /// Returns the hidden states after the blocks, one row per token, grouped by request.
    fn forward(&self, requests: &[Request], masks: &[&[bool]]) -> O::Matrix {
        let embedded = if let Some(input_stage) = &self.input_stage {
            input_stage.embedded(&self.ops, requests, self.config.width)
        } else {
            let states = requests.iter().map(|request| match request {
                Request::States { values, .. } => values.as_slice(),
                Request::Tokens(_) => &[],
            });
            let states = states.collect::<Vec<_>>().concat();
            self.ops.upload(states, self.config.width)
        };
        self.blocks
            .iter()
            .fold(embedded, |x, block| block.post_norm(&self.ops, &x, masks))
    }
}

impl<O: Ops> Head<O> {
    fn take(layers: &mut Layers<'_, O>, kind: HeadKind, width: usize) -> Result<Self, LoadError> {
        Ok(match kind {
            HeadKind::Classes(labels) => Self::Classes {
                pooler: layers.linear("bert.pooler.dense", width, width)?,
                output: layers.linear("classifier", width, labels)?,
                labels,
            },
            HeadKind::Span => Self::Span(layers.linear("qa_outputs", width, 2)?),
        })
    }
}

impl<O: Ops> InputStage<O> {
    fn take(
        ops: &O,
        checkpoint: &mut Checkpoint,
        config: EncoderConfig,
        limits: TokenLimits,
        texts: Texts,
    ) -> Result<Self, LoadError> {
        let (weights, width) = (&mut checkpoint.weights, config.width);
        let mut table =
            |name: &str, rows| weights.take(&format!("bert.embeddings.{name}.weight"), &[rows, width]);
        let (words, positions, types) = (
            table("word_embeddings", limits.vocabulary)?,
            table("position_embeddings", limits.context)?,
            table("token_type_embeddings", limits.types)?,
        );
        let mut layers = Layers { ops, weights };
        Ok(Self {
            words,
            positions,
            types,
            norm: layers.layer_norm("bert.embeddings.LayerNorm", width, config.epsilon)?,
            reader: TextReader::new(checkpoint.tokenizer.as_ref(), limits, texts)?,
        })
    }

    fn embedded(&self, ops: &O, requests: &[Request], width: usize) -> O::Matrix {
        let mut values = Vec::new();
        for request in requests {
            let Request::Tokens(tokens) = request else {
                continue;
            };
            let ids = tokens.ids.iter().zip(&tokens.types);
            for ((word, kind), position) in ids.zip(self.positions.chunks(width.max(1))) {
                let (word, kind) = (row(&self.words, *word, width), row(&self.types, *kind, width));
                let sums = word.iter().zip(kind).zip(position);
                values.extend(sums.map(|((word, kind), position)| word + kind + position));
            }
        }
        ops.normalise(&ops.upload(values, width), &self.norm)
    }
}

/// Returns a row of a table; the reader has checked that it exists.
fn row(table: &[f32], index: i64, width: usize) -> &[f32] {
    let index = usize::try_from(index).unwrap_or_default();
    table.get(index * width..(index + 1) * width).unwrap_or_default()
}
