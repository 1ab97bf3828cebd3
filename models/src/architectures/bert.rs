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
//!   [`LONGEST_ANSWER`] tokens within the context, extended to whole words.
//!
//! As slices, all but the last return `hidden_states` FP32 `[sequence, width]` and `attention_mask` INT64 `[sequence]`,
//! which all but the first take. The last one has no text for an answer and returns logits only.

use burn::nn::{Embedding, LayerNorm, Linear};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::encoder::{Block, BlockNames, EncoderConfig, padding_mask};
use super::layers::{embedding, layer_norm, linear};
use super::text::{SecondText, TextReader, Texts, TokenLimits, Tokens};
use crate::checkpoint::{Checkpoint, LoadError, Weights};
use crate::runtime::batch::{BatchResults, logits_per_row, rows, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::slice::Slice;
use crate::runtime::tensor;

/// Maximum length of an answer, tokens: the default of transformers' question answering.
pub(super) const LONGEST_ANSWER: usize = 15;

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
    let mut bert = Bert::take(checkpoint, device, slice, Texts::OneOrTwo)?;
    if slice.is_last() {
        let (weights, width) = (&mut checkpoint.weights, bert.config.width);
        bert.head = Some(Head::Classes {
            pooler: linear(weights, "bert.pooler.dense", width, width, device)?,
            output: linear(weights, "classifier", width, labels.len(), device)?,
        });
    }
    Ok(Built {
        model: Box::new(bert),
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
    let mut bert = Bert::take(checkpoint, device, slice, Texts::QuestionAndContext)?;
    if slice.is_last() {
        let width = bert.config.width;
        bert.head = Some(Head::Span(linear(
            &mut checkpoint.weights,
            "qa_outputs",
            width,
            2,
            device,
        )?));
    }
    Ok(Built {
        model: Box::new(bert),
        task: Task::QuestionAnswering,
        labels: Vec::new(),
    })
}

/// A BERT model or a slice of one.
struct Bert {
    config: EncoderConfig,
    limits: TokenLimits,
    /// Only in the first slice.
    input_stage: Option<InputStage>,
    blocks: Vec<Block>,
    /// Only in the last slice.
    head: Option<Head>,
    device: Device,
}

/// Computes hidden states from tokens.
struct InputStage {
    reader: TextReader,
    words: Embedding,
    positions: Tensor<2>,
    types: Embedding,
    norm: LayerNorm,
}

/// Computes the answer from hidden states.
enum Head {
    Classes { pooler: Linear, output: Linear },
    Span(Linear),
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

impl Model for Bert {
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

impl Bert {
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
        let states = self.forward(requests);
        match &self.head {
            None => {
                let mask: Vec<&[bool]> = requests.iter().map(Request::mask).collect();
                let lengths: Vec<usize> = mask.iter().map(|mask| mask.len()).collect();
                states::outputs(states, &lengths, Some(&mask))
            }
            Some(Head::Classes { pooler, output }) => {
                let [batch, _, width] = states.dims();
                let first = states.slice_dim(1, 0..1).reshape([batch, width]);
                logits_per_row(output.forward(tanh(pooler.forward(first))))
            }
            Some(Head::Span(output)) => {
                let logits = output.forward(states);
                let [batch, sequence, _] = logits.dims();
                let starts_and_ends = rows(logits.swap_dims(1, 2).reshape([batch * 2, sequence]))?;
                let (pairs, _) = starts_and_ends.as_chunks::<2>();
                let outputs = requests.iter().zip(pairs);
                Ok(outputs
                    .map(|(request, [start, end])| span_outputs(request, start, end))
                    .collect::<BatchResults>())
            }
        }
    }
}

/// Returns the outputs of one question; the logits are still padded.
fn span_outputs(request: &Request, start: &[f32], end: &[f32]) -> Result<Outputs, ModelError> {
    let length = request.mask().len();
    let (start, end) = (
        start.get(..length).unwrap_or(start),
        end.get(..length).unwrap_or(end),
    );
    let mut outputs = vec![
        tensor::Tensor::from_f32("start_logits", &[length], start)?,
        tensor::Tensor::from_f32("end_logits", &[length], end)?,
    ];
    if let Some(context) = request.second() {
        let (answer, span) = best_answer(context, start, end).ok_or_else(|| ModelError::BadInput {
            name: "text_pair".into(),
            reason: "the question leaves no room for it in this model's context, or it has no tokens".into(),
        })?;
        outputs.push(tensor::Tensor::from_texts("answer", &[answer])?);
        outputs.push(tensor::Tensor::from_i64("answer_span", &[2], &span)?);
    }
    Ok(outputs)
}

/// Returns the text of the best span and its byte range in the context; `None` if the context has no token.
///
/// The product of the two probabilities is largest where the sum of the two logits is.
fn best_answer<'a>(context: &'a SecondText, start: &[f32], end: &[f32]) -> Option<(&'a str, [i64; 2])> {
    let tokens = context.tokens();
    let starts = start.iter().enumerate().take(tokens.end).skip(tokens.start);
    let spans = starts.flat_map(|(first, start)| {
        let ends = end
            .iter()
            .enumerate()
            .take(tokens.end)
            .skip(first)
            .take(LONGEST_ANSWER);
        ends.map(move |(last, end)| (first, last, start + end))
    });
    let (first, last, _) = spans.max_by(|(.., a), (.., b)| a.total_cmp(b))?;
    let bytes = context.bytes(first, last)?;
    let span = [i64::try_from(bytes.start).ok()?, i64::try_from(bytes.end).ok()?];
    Some((context.text.get(bytes)?, span))
}

impl Bert {
    /// Takes everything but the head from a checkpoint.
    fn take(
        checkpoint: &mut Checkpoint,
        device: &Device,
        slice: Slice,
        texts: Texts,
    ) -> Result<Self, LoadError> {
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
        let input_stage = if slice.is_first() {
            Some(InputStage::take(checkpoint, config, limits, texts, device)?)
        } else {
            None
        };
        let weights = &mut checkpoint.weights;
        Ok(Self {
            config,
            limits,
            input_stage,
            blocks: config.take_blocks(weights, "bert.encoder.layer", &BLOCK_NAMES, device, slice)?,
            head: None,
            device: device.clone(),
        })
    }

    /// Returns the hidden states after the blocks, `[batch, longest sequence, width]`; shorter sequences are padded at
    /// their end.
    fn forward(&self, requests: &[Request]) -> Tensor<3> {
        let longest = requests
            .iter()
            .map(|request| request.mask().len())
            .max()
            .unwrap_or_default();
        let mask = requests
            .iter()
            .map(|requests| padded(requests.mask(), longest))
            .collect::<Vec<_>>();
        let padding = padding_mask(&mask, self.config.heads, &self.device);
        let (mut tokens, mut sequences) = (Vec::<&Tokens>::new(), Vec::new());
        for requests in requests {
            match requests {
                Request::Tokens(requests) => tokens.push(requests),
                Request::States { values, .. } => sequences.push(values.as_slice()),
            }
        }
        let embedded = match &self.input_stage {
            Some(input_stage) => input_stage.embedded(&tokens, longest, &self.device),
            None => states::pad_and_stack(&sequences, longest, self.config.width, &self.device),
        };
        self.blocks
            .iter()
            .fold(embedded, |x, block| block.post_norm(x, padding.as_ref()))
    }
}

impl InputStage {
    fn take(
        checkpoint: &mut Checkpoint,
        config: EncoderConfig,
        limits: TokenLimits,
        texts: Texts,
        device: &Device,
    ) -> Result<Self, LoadError> {
        let weights: &mut Weights = &mut checkpoint.weights;
        let width = config.width;
        let mut table =
            |name: &str, rows| embedding(weights, &format!("bert.embeddings.{name}"), rows, width, device);
        Ok(Self {
            words: table("word_embeddings", limits.vocabulary)?,
            positions: table("position_embeddings", limits.context)?.weight.val(),
            types: table("token_type_embeddings", limits.types)?,
            norm: layer_norm(
                weights,
                "bert.embeddings.LayerNorm",
                width,
                config.epsilon,
                device,
            )?,
            reader: TextReader::new(checkpoint.tokenizer.as_ref(), limits, texts)?,
        })
    }

    fn embedded(&self, batch: &[&Tokens], longest: usize, device: &Device) -> Tensor<3> {
        let ids = |column: fn(&Tokens) -> &[i64]| {
            let values = batch
                .iter()
                .flat_map(|tokens| padded(column(tokens), longest))
                .collect::<Vec<_>>();
            Tensor::<2, Int>::from_data(TensorData::new(values, [batch.len(), longest]), device)
        };
        let words = self.words.forward(ids(|tokens| &tokens.ids));
        let types = self.types.forward(ids(|tokens| &tokens.types));
        let positions = self.positions.clone().slice_dim(0, 0..longest).unsqueeze::<3>();
        self.norm.forward(words + types + positions)
    }
}

/// Pads a row with token 0, type 0 or `false`.
fn padded<T: Copy + Default>(row: &[T], length: usize) -> Vec<T> {
    let mut padded = row.to_vec();
    padded.resize(length, T::default());
    padded
}
