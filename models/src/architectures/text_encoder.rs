//! Text encoders: classification, token classification, question answering and embeddings by any architecture with a
//! [`TextEncoderConfig`](self::config::TextEncoderConfig).
//!
//! Inputs: `input_ids` INT64 `[sequence]`, optionally with `attention_mask` and, if the model has token types,
//! `token_type_ids` of the same shape; or, if the checkpoint has a `tokenizer.json`, `text` BYTES `[1]` and optionally
//! `text_pair`. Text beyond the context is truncated, in a pair the longer text; the context of a question is split
//! into overlapping windows ([`super::text`]).
//!
//! Outputs: [`Classifier::outputs`](crate::tasks::classification::Classifier),
//! [`span_outputs`](crate::tasks::answer_span::span_outputs),
//! [`Labeller::outputs`](crate::tasks::labelling::Labeller), or `embedding` FP32 `[width]`.
//!
//! In partitions, all but the last return `hidden_states` FP32 `[sequence, width]` and `attention_mask` INT64
//! `[sequence]`, which all but the first take, and `token_type_ids` if scores depend on them. Partitions use only the
//! first window of a context, and the last one has no text to extract an answer from: it returns only logits.
//! Partitions of a token classifier also pass on the text.

pub(super) mod config;
pub(super) mod head;
pub(super) mod input;
pub(super) mod passthrough;
pub(super) mod vector_layer;

use std::sync::Arc;

use kaskade_policy::plan::Partition;

use self::config::{DistanceVectors, Segments, TextEncoderConfig, sinusoids};
use self::head::{Head, HeadKind, KnownText, TextTask};
use self::input::InputStage;
use self::passthrough::TextPassthrough;
use super::encoder::bottleneck::Bottleneck;
use super::encoder::{Bias, Block, Distances};
use super::layers::Layers;
use super::text::{TextReader, Texts, Tokens};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::{Device, with_ops};
use crate::ops::Ops;
use crate::runtime::batch::{BatchResults, device_failed, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::Built;
use crate::runtime::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::{self, Datatype};
use crate::tasks::entities::AggregationStrategy;
use crate::tasks::labelling::TokenText;

/// Builds a text encoder, or a partition of it; `strategy` is the default of a token classifier.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build(
    read: fn(&Config) -> Result<TextEncoderConfig, LoadError>,
    task: TextTask,
    checkpoint: &mut Checkpoint,
    device: &Device,
    partition: Partition,
    strategy: AggregationStrategy,
) -> Result<Built, LoadError> {
    let mut config = read(&checkpoint.config)?;
    let modules = checkpoint.sentence.take();
    let head = HeadKind::read(task, &checkpoint.config, modules, strategy)?;
    let (task, labels) = head.described();
    let base = format!("{}.", config.base);
    if let Some(renamed) = config.renamed {
        checkpoint.weights.rename(renamed);
    }
    checkpoint.weights.expect_base(&base);
    for block in &mut config.blocks {
        block.prefix = format!("{base}{}", block.prefix);
        if let Some(convolution) = &mut block.convolution {
            convolution.name = format!("{base}{}", convolution.name);
        }
    }
    checkpoint.weights.ignore_suffixes(config.buffers);
    if config.segments.is_of_questions() && !matches!(head, HeadKind::Spans) {
        config.segments = Segments::Ignored;
    }
    if !matches!(head, HeadKind::Classes(_) | HeadKind::Spans) {
        for name in config
            .blocks
            .iter_mut()
            .filter_map(|block| block.global.take())
            .flatten()
        {
            checkpoint.weights.ignore(|tensor| tensor.contains(name));
        }
    }
    let names = BaseNames { base };
    let model = with_ops!(device, ops => TextEncoder::boxed(ops, checkpoint, device, partition, (&config, head, &names))?);
    Ok(Built { model, task, labels })
}

/// Names of the base model's tensors in this checkpoint.
struct BaseNames {
    /// Prefix, including the trailing dot.
    base: String,
}

impl BaseNames {
    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }
}

/// A text encoder or a partition of one.
struct TextEncoder<O: Ops> {
    ops: O,
    width: usize,
    context: usize,
    /// Present only in the first partition.
    input_stage: Option<InputStage<O>>,
    text: TextPassthrough,
    /// Segments on which attention depends.
    segments: Segments,
    blocks: Blocks<O>,
    position_bias: Option<O::Matrix>,
    /// Final norm and head; present only in the last partition.
    last_stage: Option<(Option<O::Norm>, Head<O>)>,
    device: Device,
}

/// Blocks of a partition.
enum Blocks<O: Ops> {
    /// Blocks as wide as the hidden states.
    Wide(Vec<Arc<Block<O>>>),
    /// Bottleneck blocks, narrower than the hidden states.
    Narrow(Vec<Bottleneck<O>>),
}

/// A request in a partition.
struct Request {
    /// Sequences of the request; several only for a question with a long context.
    sequences: Vec<Sequence>,
    /// The text, for token classification, if it came with hidden states.
    text: Option<TokenText>,
    /// Inputs that the next partition receives besides hidden states.
    forwarded_inputs: Inputs,
}

impl Request {
    fn known(&self, segments: Segments) -> Vec<KnownText<'_>> {
        let is_asked = matches!(segments, Segments::Asked(_));
        let known = self.sequences.iter().map(|sequence| {
            let question = sequence.segments().iter().filter(|_| is_asked);
            let (second, labelled) = match sequence {
                Sequence::Tokens(tokens) => (tokens.second.as_ref(), tokens.labelled.as_ref()),
                Sequence::States { .. } => (None, self.text.as_ref()),
            };
            KnownText {
                second,
                asked: question.filter(|segment| **segment == 1).count(),
                labelled,
            }
        });
        known.collect()
    }
}

/// Input of a partition: a sequence of a request.
enum Sequence {
    /// Tokens, for the first partition.
    Tokens(Box<Tokens>),
    /// Hidden states of the previous partition with attention mask, and segments if scores depend on them.
    States {
        values: Vec<f32>,
        mask: Vec<bool>,
        segments: Vec<i64>,
    },
}

impl Sequence {
    fn mask(&self) -> &[bool] {
        match self {
            Self::Tokens(tokens) => &tokens.mask,
            Self::States { mask, .. } => mask,
        }
    }

    fn segments(&self) -> &[i64] {
        match self {
            Self::Tokens(tokens) => &tokens.segments,
            Self::States { segments, .. } => segments,
        }
    }

    fn tokens(&self) -> Option<&Tokens> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::States { .. } => None,
        }
    }
}

impl<O: Ops> Model for TextEncoder<O> {
    fn signature(&self) -> Signature {
        if let Some(input_stage) = &self.input_stage {
            return input_stage.reader.signature();
        }
        let mut signature = states::signature(Extent::UpTo(self.context), self.width, true);
        if self.segments != Segments::Ignored {
            let length = vec![Extent::UpTo(self.context)];
            let segments = InputSpec::required(states::TOKEN_TYPE_IDS, Datatype::I64, length);
            signature.inputs.push(segments);
        }
        signature.inputs.extend(self.text.inputs());
        signature
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.read(inputs, &self.signature()).map(drop)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let signature = self.signature();
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| self.read(inputs, &signature),
            |request| {
                request
                    .sequences
                    .iter()
                    .map(|sequence| sequence.mask().len())
                    .sum()
            },
            |requests| self.answer(requests),
        )
    }
}

impl<O: Ops> TextEncoder<O> {
    /// Takes a model, or a partition of it, from a checkpoint.
    fn boxed(
        ops: O,
        checkpoint: &mut Checkpoint,
        device: &Device,
        partition: Partition,
        (config, head, names): (&TextEncoderConfig, HeadKind, &BaseNames),
    ) -> Result<Box<dyn Model>, LoadError> {
        let texts = match head {
            HeadKind::Spans => Texts::QuestionAndContext,
            HeadKind::Tokens(_) => Texts::Labelled,
            _ => Texts::OneOrTwo,
        };
        let limits = config.embeddings.limits;
        let mut input_stage = None;
        if partition.is_first() {
            let mut reader = TextReader::new(checkpoint.tokenizer.as_ref(), limits, texts)?;
            reader.whole = partition.is_last();
            reader.end = config.vector.end;
            let mut layers = Layers {
                ops: &ops,
                weights: &mut checkpoint.weights,
            };
            input_stage = Some(InputStage::take(
                &mut layers,
                config,
                &|name| names.at(name),
                reader,
            )?);
        }
        let reader = || TextReader::new(checkpoint.tokenizer.as_ref(), limits, texts);
        let text = TextPassthrough::of(texts, partition, reader)?;
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let heads = config.encoder.heads;
        let position_bias = config.position_bias.as_ref();
        let position_bias = position_bias.map(|bias| bias.take(&mut layers, heads, &|name| names.at(name)));
        let position_bias = position_bias.transpose()?;
        let distances = distances(&mut layers, config, names)?;
        let blocks = if let Some(narrow) = config.bottleneck {
            Blocks::Narrow(Bottleneck::take_all(
                &mut layers,
                narrow,
                &config.blocks,
                partition,
            )?)
        } else {
            let (encoder, distances) = (&config.encoder, distances.as_ref());
            Blocks::Wide(encoder.take_blocks(
                &mut layers,
                &config.blocks,
                &config.names,
                distances,
                partition,
            )?)
        };
        let mut last_stage = None;
        if partition.is_last() {
            let norm = config
                .final_norm
                .map(|norm| config.encoder.norm(&mut layers, &names.at(norm)));
            last_stage = Some((norm.transpose()?, Head::take(&mut layers, head, config)?));
        }
        Ok(Box::new(Self {
            ops,
            width: config.encoder.width,
            context: config.embeddings.limits.context,
            input_stage,
            text,
            segments: config.segments,
            blocks,
            position_bias,
            last_stage,
            device: device.clone(),
        }))
    }

    fn read(&self, inputs: &Inputs, signature: &Signature) -> Result<Request, ModelError> {
        let mut forwarded_inputs = self.text.forwarded_inputs(inputs);
        if let Some(input_stage) = &self.input_stage {
            let windows = input_stage.reader.read(inputs)?;
            let mut windows: Vec<Tokens> = windows;
            let typed = inputs.iter().any(|input| input.name == states::TOKEN_TYPE_IDS);
            for tokens in &mut windows {
                tokens.segments = self.segments.of(&tokens.ids, &tokens.types);
                if matches!(self.segments, Segments::Asked(_)) && !typed {
                    tokens.types = tokens.segments.iter().map(|segment| 1 - segment).collect();
                }
            }
            if let Some(first) = windows.first().filter(|_| self.segments != Segments::Ignored) {
                let shape = [first.segments.len()];
                forwarded_inputs.push(tensor::Tensor::from_i64(
                    states::TOKEN_TYPE_IDS,
                    &shape,
                    &first.segments,
                )?);
            }
            let windows = windows.into_iter();
            return Ok(Request {
                sequences: windows.map(|tokens| Sequence::Tokens(Box::new(tokens))).collect(),
                text: None,
                forwarded_inputs,
            });
        }
        signature.check(inputs)?;
        let values = states::values(inputs)?;
        let input = |name: &str| inputs.iter().find(|input| input.name == name);
        let mask = input(states::ATTENTION_MASK).map(tensor::Tensor::to_i64);
        let mask = mask.transpose()?.unwrap_or_default();
        let mask: Vec<bool> = mask.into_iter().map(|mask| mask != 0).collect();
        let own = input(states::TOKEN_TYPE_IDS).filter(|_| self.segments != Segments::Ignored);
        let segments = own.map(tensor::Tensor::to_i64).transpose()?.unwrap_or_default();
        forwarded_inputs.extend(own.cloned());
        let bad = |name: &str, reason: &str| ModelError::BadInput {
            name: name.into(),
            reason: reason.into(),
        };
        let other_length = "its length differs from that of the hidden states";
        if values.len() != mask.len() * self.width {
            return Err(bad(states::ATTENTION_MASK, other_length));
        }
        if self.segments != Segments::Ignored && segments.len() != mask.len() {
            return Err(bad(states::TOKEN_TYPE_IDS, other_length));
        }
        if !mask.contains(&true) {
            return Err(bad(states::ATTENTION_MASK, "it masks every token"));
        }
        Ok(Request {
            sequences: vec![Sequence::States {
                values,
                mask,
                segments,
            }],
            text: self.text.read(inputs)?,
            forwarded_inputs,
        })
    }

    fn answer(&self, requests: &[Request]) -> Result<BatchResults, ModelError> {
        let (ops, width) = (&self.ops, self.width);
        let sequences: Vec<&Sequence> = requests.iter().flat_map(|request| &request.sequences).collect();
        let masks: Vec<&[bool]> = sequences.iter().map(|sequence| sequence.mask()).collect();
        let embedded = if let Some(input_stage) = &self.input_stage {
            let tokens = sequences.iter().filter_map(|sequence| sequence.tokens());
            input_stage.embedded(ops, &tokens.collect::<Vec<_>>())
        } else {
            let states = sequences.iter().map(|sequence| match sequence {
                Sequence::States { values, .. } => values.as_slice(),
                Sequence::Tokens(_) => &[],
            });
            ops.upload(states.collect::<Vec<_>>().concat(), width)
        };
        let segments: Vec<&[i64]> = sequences.iter().map(|sequence| sequence.segments()).collect();
        let bias = match &self.position_bias {
            Some(table) => Some(Bias::Distances(table)),
            None => (self.segments != Segments::Ignored).then_some(Bias::Kinds(&segments)),
        };
        let states = match &self.blocks {
            Blocks::Wide(blocks) => blocks
                .iter()
                .try_fold(embedded, |x, block| block.forward(ops, &x, &masks, bias.as_ref()))
                .map_err(|error| device_failed(&error))?,
            Blocks::Narrow(blocks) => blocks
                .iter()
                .fold(embedded, |x, block| block.forward(ops, &x, &masks)),
        };
        let Some((norm, head)) = &self.last_stage else {
            let lengths: Vec<usize> = masks.iter().map(|mask| mask.len()).collect();
            let states = ops.values(&states).map_err(|error| device_failed(&error))?;
            let outputs = states::outputs(&states, width, &lengths, Some(&masks));
            let forwarded_inputs = requests.iter().map(|request| request.forwarded_inputs.as_slice());
            return Ok(states::with_inputs(outputs, forwarded_inputs));
        };
        let states = match norm {
            Some(norm) => ops.normalise(&states, norm),
            None => states,
        };
        let known: Vec<_> = requests
            .iter()
            .map(|request| request.known(self.segments))
            .collect();
        head.outputs(ops, &states, width, &masks, &known)
    }
}

/// Takes the distance embeddings.
fn distances<O: Ops>(
    layers: &mut Layers<'_, O>,
    config: &TextEncoderConfig,
    names: &BaseNames,
) -> Result<Option<Distances<O>>, LoadError> {
    let (Some(distances), width) = (&config.distances, config.encoder.width) else {
        return Ok(None);
    };
    let vectors = match distances.vectors {
        DistanceVectors::Table { name, count, norm } => {
            let name = format!("{}.weight", names.at(name));
            let vectors = layers.weights.take(&name, &[count, width])?;
            let vectors = layers.ops.upload(vectors, width);
            match norm {
                Some(norm) => {
                    let norm = config.encoder.norm(layers, &names.at(norm))?;
                    layers.ops.normalise(&vectors, &norm)
                }
                None => vectors,
            }
        }
        DistanceVectors::Sinusoidal(longest, clamp) => {
            layers.ops.upload(sinusoids(longest, clamp, width), width)
        }
    };
    Ok(Some(Distances {
        rows: distances.rows.clone(),
        vectors,
        keys: distances.keys,
        key_bias: distances.key_bias,
        queries: distances.queries,
    }))
}
