//! Heads of text encoders, which the last partition applies to hidden states.

use super::config::{DenseConfig, HeadBlock, ProjectionConfig, TextEncoderConfig, TextHeadConfig};
use super::vector_layer::{Residual, VectorLayer};
use crate::architectures::layers::Layers;
use crate::architectures::text::second_text::SecondText;
use crate::checkpoint::{Config, LoadError, SentenceModules};
use crate::ops::{Activation, Ops, Span};
use crate::runtime::batch::{BatchResults, device_failed, rows};
use crate::runtime::loaded::Task;
use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;
use crate::runtime::usage::usage;
use crate::tasks::answer_span::span_outputs;
use crate::tasks::classification::Classifier;
use crate::tasks::embedding::{Pooling, pooled};
use crate::tasks::entities::AggregationStrategy;
use crate::tasks::labelling::{Labeller, TokenText};

/// Subtracted from the logits of tokens that cannot be part of a span, as in transformers.
const OUTSIDE: f32 = 1e6;

/// Task of a text encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum TextTask {
    /// Classes or a score of a text or a pair.
    Classification,
    /// The span of a context that answers a question.
    QuestionAnswering,
    /// A label for every token of a text.
    TokenClassification,
    /// A text embedding with this pooling, unless sentence-transformers modules say otherwise.
    Embedding(Pooling),
}

/// A task with its settings.
pub(in crate::architectures) enum HeadKind {
    /// Classes, labels or a score.
    Classes(Classifier),
    /// Start and end of a span.
    Spans,
    /// Labels of the tokens.
    Tokens(Labeller),
    /// An embedding, by the sentence-transformers modules or the pooling of the class; for scores, with their
    /// interpretation.
    Embedding(Box<SentenceModules>, Option<Classifier>),
}

/// Head of a task on a device.
pub(in crate::architectures) enum Head<O: Ops> {
    /// Logits per text.
    Classes {
        pooling: Pooling,
        layers: HeadLayers<O>,
        classifier: Classifier,
    },
    /// Two logits per token.
    Spans(HeadLayers<O>),
    /// Logits per token.
    Tokens {
        layers: HeadLayers<O>,
        labeller: Labeller,
    },
    /// Embeddings, or scores.
    Embedding {
        pooling: Pooling,
        layers: Vec<VectorLayer<O>>,
        width: usize,
        /// Number of leading elements to keep.
        kept: usize,
        scores: Option<Classifier>,
    },
}

/// Information about the text of a sequence, besides hidden states.
#[derive(Clone, Copy, Default)]
pub(in crate::architectures) struct KnownText<'a> {
    /// The second text of a pair.
    pub second: Option<&'a SecondText>,
    /// Number of leading tokens that cannot be part of a span, except the first token.
    pub asked: usize,
    /// The text, for token classification.
    pub labelled: Option<&'a TokenText>,
}

/// Output layer, optionally after a dense layer with activation and norm.
pub(in crate::architectures) struct HeadLayers<O: Ops> {
    dense: Option<(O::Linear, Activation, Option<O::Norm>)>,
    /// Two layers, activation and norm of a feed-forward.
    block: Option<([O::Linear; 2], Activation, O::Norm)>,
    output: O::Linear,
    columns: usize,
    /// Whether texts are pooled between the dense layer and the output layer.
    late: bool,
}

impl HeadKind {
    /// Reads the settings of a task; `strategy` is the default of a token classifier.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn read(
        task: TextTask,
        config: &Config,
        modules: Option<SentenceModules>,
        strategy: AggregationStrategy,
    ) -> Result<Self, LoadError> {
        match task {
            TextTask::TokenClassification => Ok(Self::Tokens(Labeller::read(config, strategy)?)),
            TextTask::Classification => {
                let settings = modules.as_ref().and_then(|modules| modules.settings.as_ref());
                Ok(Self::Classes(Classifier::read_with(config, settings)?))
            }
            TextTask::QuestionAnswering if config.labels()?.len() != 2 => {
                Err(config.invalid_value("id2label", "a span needs two labels, its start and its end"))
            }
            TextTask::QuestionAnswering => Ok(Self::Spans),
            TextTask::Embedding(pooling) => {
                let modules = match modules {
                    Some(modules) => modules.checked()?,
                    None => SentenceModules::pooled_by(pooling),
                };
                let scores = Classifier::of_modules(&modules)?;
                Ok(Self::Embedding(Box::new(modules), scores))
            }
        }
    }

    /// Returns the task and the class names.
    pub(in crate::architectures) fn described(&self) -> (Task, Vec<String>) {
        match self {
            Self::Classes(classifier) => (classifier.task(), classifier.labels()),
            Self::Spans => (Task::QuestionAnswering, Vec::new()),
            Self::Tokens(labeller) => (Task::TokenClassification, labeller.labels()),
            Self::Embedding(_, Some(scores)) => (scores.task(), scores.labels()),
            Self::Embedding(_, None) => (Task::Embedding, Vec::new()),
        }
    }
}

impl<O: Ops> Head<O> {
    /// Takes the head of a model from its checkpoint.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        kind: HeadKind,
        config: &TextEncoderConfig,
    ) -> Result<Self, LoadError> {
        Ok(match kind {
            HeadKind::Classes(classifier) => Self::Classes {
                pooling: config.classifier.pooling,
                layers: HeadLayers::take(layers, config, &config.classifier, classifier.len())?,
                classifier,
            },
            HeadKind::Spans => Self::Spans(HeadLayers::take(layers, config, &config.spans, 2)?),
            HeadKind::Tokens(labeller) => Self::Tokens {
                layers: HeadLayers::take(layers, config, &config.tokens, labeller.len())?,
                labeller,
            },
            HeadKind::Embedding(modules, scores) => {
                let (width, projection) = (config.encoder.width, config.vector.projection);
                Self::embedding(layers, (*modules, scores), width, projection)?
            }
        })
    }

    /// Takes the head `score` of a classifier that consists of language model layers, applied to the last token.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn score(
        layers: &mut Layers<'_, O>,
        classifier: Classifier,
        width: usize,
    ) -> Result<Self, LoadError> {
        Ok(Self::Classes {
            pooling: Pooling::Last,
            layers: HeadLayers::alone(layers, "score", width, classifier.len())?,
            classifier,
        })
    }

    /// Takes the head of a token classifier that consists of language model layers: a single layer.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn tokens(
        layers: &mut Layers<'_, O>,
        labeller: Labeller,
        (name, width): (&str, usize),
    ) -> Result<Self, LoadError> {
        Ok(Self::Tokens {
            layers: HeadLayers::alone(layers, name, width, labeller.len())?,
            labeller,
        })
    }

    /// Takes the head of an encoder-decoder classifier: two layers on the decoder's last token.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn after_decoder(
        layers: &mut Layers<'_, O>,
        classifier: Classifier,
        width: usize,
    ) -> Result<Self, LoadError> {
        let (name, columns) = ("classification_head", classifier.len());
        let dense = layers.linear(&format!("{name}.dense"), width, width)?;
        Ok(Self::Classes {
            pooling: Pooling::Last,
            layers: HeadLayers {
                dense: Some((dense, Activation::Tanh, None)),
                block: None,
                output: layers.linear(&format!("{name}.out_proj"), width, columns)?,
                columns,
                late: false,
            },
            classifier,
        })
    }

    /// Takes the layers after the pooling of an embedding model, or of a cross-encoder with the interpretation of its
    /// scores.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take); [`LoadError::UnusedTensors`] for unused tensors in
    /// the file of a layer.
    pub(in crate::architectures) fn embedding(
        layers: &mut Layers<'_, O>,
        (modules, scores): (SentenceModules, Option<Classifier>),
        mut width: usize,
        projection: Option<ProjectionConfig>,
    ) -> Result<Self, LoadError> {
        let mut taken = Vec::new();
        if let Some(ProjectionConfig {
            name,
            width: outputs,
            bias,
        }) = projection
        {
            taken.push(VectorLayer::Dense {
                linear: layers.linear_with(name, width, outputs, bias)?,
                activation: None,
                residual: Residual::No,
            });
            width = outputs;
        }
        taken.extend(VectorLayer::take_all(layers.ops, modules.layers, &mut width)?);
        Ok(Self::Embedding {
            pooling: modules.pooling.unwrap_or(Pooling::Mean),
            layers: taken,
            width,
            kept: modules.kept.unwrap_or(width),
            scores,
        })
    }

    /// Returns the outputs of requests. The rows of `states` are tokens, `width` wide and grouped by sequence;
    /// `requests` are the sequences of each request, `masks` states which tokens are visible.
    ///
    /// A token classifier returns outputs only for visible tokens. The last output is the [`usage`].
    ///
    /// # Errors
    /// [`ModelError::Failed`] with the message of the device.
    pub(in crate::architectures) fn outputs(
        &self,
        ops: &O,
        states: &O::Matrix,
        width: usize,
        masks: &[&[bool]],
        requests: &[Vec<KnownText<'_>>],
    ) -> Result<BatchResults, ModelError> {
        let mut results = self.answers(ops, states, width, masks, requests)?;
        let mut masks = masks.iter();
        for (result, sequences) in results.iter_mut().zip(requests) {
            let masks = masks.by_ref().take(sequences.len());
            let visible = masks.flat_map(|mask| mask.iter()).filter(|visible| **visible);
            let visible = visible.count();
            if let Ok(outputs) = result {
                outputs.push(usage(visible, 0)?);
            }
        }
        Ok(results)
    }

    fn answers(
        &self,
        ops: &O,
        states: &O::Matrix,
        width: usize,
        masks: &[&[bool]],
        requests: &[Vec<KnownText<'_>>],
    ) -> Result<BatchResults, ModelError> {
        match self {
            Self::Classes {
                pooling,
                layers,
                classifier,
            } => {
                let logits = if layers.late {
                    let before = layers.before_output(ops, states);
                    let states = before.as_ref().unwrap_or(states);
                    ops.multiply(&vectors(ops, states, width, masks, *pooling)?, &layers.output)
                } else {
                    layers.logits(ops, &vectors(ops, states, width, masks, *pooling)?)
                };
                let logits = rows(ops, &logits, layers.columns)?;
                Ok(logits.iter().map(|logits| classifier.outputs(logits)).collect())
            }
            Self::Spans(layers) => {
                let logits = rows(ops, &layers.logits(ops, states), layers.columns)?;
                let (mut logits, mut lengths) = (logits.into_iter(), masks.iter().map(|mask| mask.len()));
                let outputs = requests.iter().map(|sequences| {
                    let windows = sequences.iter().map(|known| {
                        let length = lengths.next().unwrap_or_default();
                        let mut own: Vec<Vec<f32>> = logits.by_ref().take(length).collect();
                        for logit in own.iter_mut().take(known.asked).skip(1).flatten() {
                            *logit -= OUTSIDE;
                        }
                        (known.second, own)
                    });
                    span_outputs(&windows.collect::<Vec<_>>())
                });
                Ok(outputs.collect())
            }
            Self::Tokens { layers, labeller } => {
                let logits = rows(ops, &layers.logits(ops, states), layers.columns)?;
                let mut logits = logits.into_iter();
                let texts = requests.iter().map(|sequences| sequences.first()?.labelled);
                let outputs = masks.iter().zip(texts).map(|(mask, text)| {
                    let own = logits.by_ref().take(mask.len()).zip(*mask);
                    let visible: Vec<Vec<f32>> =
                        own.filter(|(_, visible)| **visible).map(|(row, _)| row).collect();
                    labeller.outputs(&visible, text)
                });
                Ok(outputs.collect())
            }
            Self::Embedding {
                pooling,
                layers,
                width: last,
                kept,
                scores,
            } => {
                let vectors = vectors(ops, states, width, masks, *pooling)?;
                let vectors = layers.iter().fold(vectors, |x, layer| layer.applied(ops, &x));
                let outputs = rows(ops, &vectors, *last)?.into_iter().map(|mut vector| {
                    if let Some(scores) = scores {
                        return scores.outputs(&vector);
                    }
                    vector.truncate(*kept);
                    Ok(vec![Tensor::from_f32("embedding", &[vector.len()], &vector)?])
                });
                Ok(outputs.collect())
            }
        }
    }
}

impl<O: Ops> HeadLayers<O> {
    /// Takes only an output layer, which may lack a bias.
    fn alone(
        layers: &mut Layers<'_, O>,
        name: &str,
        width: usize,
        columns: usize,
    ) -> Result<Self, LoadError> {
        let bias = layers.weights.contains(&format!("{name}.bias"));
        Ok(Self {
            dense: None,
            block: None,
            output: layers.linear_with(name, width, columns, bias)?,
            columns,
            late: false,
        })
    }

    fn take(
        layers: &mut Layers<'_, O>,
        config: &TextEncoderConfig,
        head: &TextHeadConfig,
        columns: usize,
    ) -> Result<Self, LoadError> {
        let width = config.encoder.width;
        let mut dense = |DenseConfig {
                             name,
                             activation,
                             bias,
                             norm,
                         }: DenseConfig| {
            let layer = layers.linear_with(name, width, width, bias)?;
            let norm = norm.map(|norm| config.encoder.norm(layers, norm)).transpose()?;
            Ok::<_, LoadError>((layer, activation, norm))
        };
        let dense = head.dense.map(&mut dense).transpose()?;
        let block = head.block.map(|HeadBlock { up, down, norm }| {
            let between = config.encoder.intermediate_size;
            let linears = [
                layers.linear(up, width, between)?,
                layers.linear(down, between, width)?,
            ];
            let norm = config.encoder.norm(layers, norm)?;
            Ok::<_, LoadError>((linears, config.encoder.activation, norm))
        });
        Ok(Self {
            dense,
            block: block.transpose()?,
            output: layers.linear(head.output, width, columns)?,
            columns,
            late: head.late,
        })
    }

    fn logits(&self, ops: &O, x: &O::Matrix) -> O::Matrix {
        match self.before_output(ops, x) {
            Some(x) => ops.multiply(&x, &self.output),
            None => ops.multiply(x, &self.output),
        }
    }

    /// Returns the input of the output layer; `None` if it is `x`.
    fn before_output(&self, ops: &O, x: &O::Matrix) -> Option<O::Matrix> {
        if let Some(([up, down], activation, norm)) = &self.block {
            let sum = ops.feed_forward_residual(x, None, [up, down], *activation, false);
            return Some(ops.normalise(&sum, norm));
        }
        let (layer, activation, norm) = self.dense.as_ref()?;
        let x = ops.activate(ops.multiply(x, layer), *activation, false);
        Some(match norm {
            Some(norm) => ops.normalise(&x, norm),
            None => x,
        })
    }
}

/// Returns one vector per sequence.
fn vectors<O: Ops>(
    ops: &O,
    states: &O::Matrix,
    width: usize,
    masks: &[&[bool]],
    pooling: Pooling,
) -> Result<O::Matrix, ModelError> {
    if let Pooling::First | Pooling::FirstVisible | Pooling::Last | Pooling::End = pooling {
        let mut next = 0;
        let chosen = masks.iter().map(|mask| {
            next += mask.len();
            let place = match pooling {
                Pooling::FirstVisible => mask.iter().position(|visible| *visible),
                Pooling::Last => mask.iter().rposition(|visible| *visible),
                Pooling::End => mask.len().checked_sub(1),
                _ => None,
            };
            Span {
                matrix: states,
                from: next - mask.len() + place.unwrap_or_default(),
                count: 1,
            }
        });
        return Ok(ops.gather(&chosen.collect::<Vec<_>>(), width));
    }
    let values = ops.values(states).map_err(|error| device_failed(&error))?;
    Ok(ops.upload(pooled(&values, width, masks, pooling), width))
}
