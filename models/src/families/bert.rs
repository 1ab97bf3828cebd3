//! BERT (Devlin et al. 2019): `BertForSequenceClassification` and `BertForQuestionAnswering`.
//!
//! A request brings `input_ids` INT64 `[sequence]`, optionally with `attention_mask` and `token_type_ids` of the same
//! shape; or, where the checkpoint has a `tokenizer.json`, `text` BYTES `[1]` and optionally `text_pair`. Text beyond
//! the context (`max_position_embeddings` tokens) is cut off: of a pair, the longer text's; of a question and its
//! context, the context's.
//!
//! - Classification gives `logits` FP32 `[labels]`.
//! - Question answering gives `start_logits` and `end_logits` FP32 `[sequence]`, raw; and where a question and a
//!   context came as texts, `answer` BYTES `[1]` and `answer_span` INT64 `[2]`, its first byte in the context and the
//!   one after its last: the span with the largest product of start and end probability among those of at most
//!   [`LONGEST_ANSWER`] tokens within the context, widened to whole words.

use burn::nn::{Embedding, LayerNorm, Linear};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::encoder::{Block, BlockNames, EncoderConfig, padding_mask};
use super::layers::{embedding, layer_norm, linear};
use super::text::{SecondText, TextReader, Texts, TokenLimits, Tokens};
use super::{Answers, Built, Task, answer_batch_in_parts, logits_per_row, rows};
use crate::checkpoint::{Checkpoint, LoadError, Weights};
use crate::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::tensor;

/// The longest answer that is read out of a context, tokens: what transformers' question answering has as its default.
pub const LONGEST_ANSWER: usize = 15;

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: "attention.self",
    attention_norm: "attention.output.LayerNorm",
    feed_forward_norm: "output.LayerNorm",
};

/// Builds a `BertForSequenceClassification`.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub fn sequence_classification(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    let labels = checkpoint.config.labels()?;
    let encoder = Encoder::take(checkpoint, device)?;
    let reader = encoder.reader(checkpoint, Texts::OneOrTwo)?;
    let weights = &mut checkpoint.weights;
    let classifier = Classifier {
        pooler: linear(
            weights,
            "bert.pooler.dense",
            encoder.config.width,
            encoder.config.width,
            device,
        )?,
        output: linear(weights, "classifier", encoder.config.width, labels.len(), device)?,
        encoder,
        reader,
    };
    Ok(Built {
        model: Box::new(classifier),
        task: Task::Classification,
        labels,
    })
}

/// Builds a `BertForQuestionAnswering`.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub fn question_answering(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    if checkpoint.config.labels()?.len() != 2 {
        return Err(checkpoint
            .config
            .refuse("id2label", "a span has two labels, its start and its end"));
    }
    let encoder = Encoder::take(checkpoint, device)?;
    let reader = encoder.reader(checkpoint, Texts::QuestionAndContext)?;
    let output = linear(
        &mut checkpoint.weights,
        "qa_outputs",
        encoder.config.width,
        2,
        device,
    )?;
    Ok(Built {
        model: Box::new(QuestionAnswering {
            encoder,
            reader,
            output,
        }),
        task: Task::QuestionAnswering,
        labels: Vec::new(),
    })
}

struct Classifier {
    encoder: Encoder,
    reader: TextReader,
    pooler: Linear,
    output: Linear,
}

impl Model for Classifier {
    fn signature(&self) -> Signature {
        self.reader.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        answer_batch_in_parts(
            &self.encoder.device,
            batch,
            |inputs| self.reader.read(inputs),
            |tokens| tokens.ids.len(),
            |tokens| {
                let states = self.encoder.forward(tokens);
                let [batch, _, width] = states.dims();
                let first = states.slice_dim(1, 0..1).reshape([batch, width]);
                logits_per_row(self.output.forward(tanh(self.pooler.forward(first))))
            },
        )
    }
}

struct QuestionAnswering {
    encoder: Encoder,
    reader: TextReader,
    output: Linear,
}

impl Model for QuestionAnswering {
    fn signature(&self) -> Signature {
        self.reader.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        answer_batch_in_parts(
            &self.encoder.device,
            batch,
            |inputs| self.reader.read(inputs),
            |tokens| tokens.ids.len(),
            |tokens| {
                let logits = self.output.forward(self.encoder.forward(tokens));
                let [batch, sequence, _] = logits.dims();
                let starts_and_ends = rows(logits.swap_dims(1, 2).reshape([batch * 2, sequence]))?;
                let (pairs, _) = starts_and_ends.as_chunks::<2>();
                let outputs = tokens.iter().zip(pairs);
                Ok(outputs
                    .map(|(tokens, [start, end])| span_outputs(tokens, start, end))
                    .collect::<Answers>())
            },
        )
    }
}

/// The outputs of one question, whose logits are still padded.
fn span_outputs(tokens: &Tokens, start: &[f32], end: &[f32]) -> Result<Outputs, ModelError> {
    let length = tokens.ids.len();
    let (start, end) = (
        start.get(..length).unwrap_or(start),
        end.get(..length).unwrap_or(end),
    );
    let mut outputs = vec![
        tensor::Tensor::from_f32("start_logits", &[length], start)?,
        tensor::Tensor::from_f32("end_logits", &[length], end)?,
    ];
    if let Some(context) = &tokens.second {
        let (answer, span) = best_answer(context, start, end).ok_or_else(|| ModelError::BadInput {
            name: "text_pair".into(),
            reason: "the question leaves no room for it in this model's context, or it has no words".into(),
        })?;
        outputs.push(tensor::Tensor::from_texts("answer", &[answer])?);
        outputs.push(tensor::Tensor::from_i64("answer_span", &[2], &span)?);
    }
    Ok(outputs)
}

/// The text of the best span and its byte range in the context; nothing if the context has no token.
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

/// Embeddings and blocks: everything but the task's head.
struct Encoder {
    config: EncoderConfig,
    limits: TokenLimits,
    words: Embedding,
    positions: Tensor<2>,
    types: Embedding,
    norm: LayerNorm,
    blocks: Vec<Block>,
    device: Device,
}

impl Encoder {
    fn take(checkpoint: &mut Checkpoint, device: &Device) -> Result<Self, LoadError> {
        let keys = &checkpoint.config;
        let positions = keys.optional::<String>("position_embedding_type")?;
        if positions.is_some_and(|kind| kind != "absolute") {
            return Err(keys.refuse("position_embedding_type", "only absolute positions are served"));
        }
        if keys.optional::<bool>("is_decoder")?.unwrap_or(false) {
            return Err(keys.refuse("is_decoder", "only encoders are served"));
        }
        let config = EncoderConfig::read(keys)?;
        let limits = TokenLimits {
            vocabulary: keys.size("vocab_size")?,
            types: keys.size("type_vocab_size")?,
            context: keys.size("max_position_embeddings")?,
        };
        let weights: &mut Weights = &mut checkpoint.weights;
        let width = config.width;
        let mut table =
            |name: &str, rows| embedding(weights, &format!("bert.embeddings.{name}"), rows, width, device);
        Ok(Self {
            config,
            limits,
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
            blocks: config.take_blocks(weights, "bert.encoder.layer", &BLOCK_NAMES, device)?,
            device: device.clone(),
        })
    }

    fn reader(&self, checkpoint: &Checkpoint, texts: Texts) -> Result<TextReader, LoadError> {
        TextReader::new(checkpoint.tokenizer.as_ref(), self.limits, texts)
    }

    /// The last hidden states, `[batch, longest sequence, width]`; shorter sequences are padded at their end.
    fn forward(&self, batch: &[Tokens]) -> Tensor<3> {
        let longest = batch
            .iter()
            .map(|tokens| tokens.ids.len())
            .max()
            .unwrap_or_default();
        let ids = |column: fn(&Tokens) -> &[i64]| {
            let values = batch
                .iter()
                .flat_map(|tokens| padded(column(tokens), longest))
                .collect::<Vec<_>>();
            Tensor::<2, Int>::from_data(TensorData::new(values, [batch.len(), longest]), &self.device)
        };
        let seen = batch
            .iter()
            .map(|tokens| padded(&tokens.seen, longest))
            .collect::<Vec<_>>();
        let hidden = padding_mask(&seen, self.config.heads, &self.device);
        let words = self.words.forward(ids(|tokens| &tokens.ids));
        let types = self.types.forward(ids(|tokens| &tokens.types));
        let positions = self.positions.clone().slice_dim(0, 0..longest).unsqueeze::<3>();
        let embedded = self.norm.forward(words + types + positions);
        self.blocks
            .iter()
            .fold(embedded, |x, block| block.post_norm(x, hidden.as_ref()))
    }
}

/// A row filled up with token 0, type 0 or unseen.
fn padded<T: Copy + Default>(row: &[T], length: usize) -> Vec<T> {
    let mut padded = row.to_vec();
    padded.resize(length, T::default());
    padded
}
