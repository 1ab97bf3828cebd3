//! Classifiers, token classifiers and embedding models that consist of language model layers, with causal attention
//! unless `is_causal` of the configuration is false.
//!
//! Inputs: those of a text encoder without token types ([`super::text_encoder`]). Masked tokens are removed. A
//! classifier applies the layer `score` to the last token that is not padding; an encoder-decoder applies two layers to
//! the last EOS token of its decoder, which must end the text (mBART and `PLBart`: may precede the language). A token classifier reads every token. An embedding model uses the pooling
//! of its sentence-transformers modules, by default the mean.
//!
//! In partitions, all but the last return `hidden_states` FP32 `[sequence, width]`, which all but the first take;
//! token classifiers also pass on the text.

use kaskade_policy::plan::Partition;

use super::layers::Layers;
use super::text::{TextReader, Texts, TokenLimits, Tokens};
use super::text_encoder::head::{Head, KnownText};
use super::text_encoder::passthrough::TextPassthrough;
use crate::checkpoint::{Checkpoint, Config, LoadError, SentenceModules, WeightTotals};
use crate::decoder::registry::{self, DecoderClass, DecoderTask};
use crate::decoder::weights::Decoder;
use crate::device::{Device, with_ops};
use crate::generation::partition::DecoderPartition;
use crate::ops::Ops;
use crate::runtime::batch::{BatchResults, device_failed, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::tasks::classification::Classifier;
use crate::tasks::embedding::Pooling;
use crate::tasks::entities::AggregationStrategy;
use crate::tasks::labelling::{Labeller, TokenText};

/// Tensor name prefixes of heads that base models are saved with, and embeddings do not use.
const OTHER_HEADS: [&str; 4] = ["lm_head.", "embed_out.", "decoder.weight", "decoder.bias"];

/// Tensor name prefixes of classification heads, which a sentence-transformers directory with pooling does not use.
const CLASSIFIERS: [&str; 3] = ["score.", "classifier.", "classification_head."];

/// Rejects checkpoints with custom code that may change the attention, as in gte-Qwen2, unless `is_causal` states the
/// mask.
fn check_code(config: &Config) -> Result<(), LoadError> {
    let key = "auto_map";
    let code = config.optional::<serde_json::Map<String, serde_json::Value>>(key)?;
    let replaces = |name: &String| name == "AutoModel" || name.ends_with("Classification");
    if !code.is_some_and(|code| code.keys().any(replaces)) || config.keys().contains_key("is_causal") {
        return Ok(());
    }
    let reason = "the code of this model is not run, and may let tokens see later ones: add `is_causal` to this file, `false` if it \
                  does (gte-Qwen2), else `true`";
    Err(config.invalid_value(key, reason))
}

/// Builds a classifier or an embedding model, or a partition of it; `strategy` is the default of a token classifier.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build(
    mut checkpoint: Checkpoint,
    class: DecoderClass,
    device: &Device,
    partition: Partition,
    strategy: AggregationStrategy,
) -> Result<(Built, WeightTotals), LoadError> {
    check_code(&checkpoint.config)?;
    let pools_tokens = checkpoint.pools_tokens();
    let modules = checkpoint.sentence.take();
    let head = match class.task {
        DecoderTask::Classification => {
            let settings = modules.as_ref().and_then(|modules| modules.settings.as_ref());
            TaskHead::Score(Classifier::read_with(&checkpoint.config, settings)?)
        }
        DecoderTask::TokenClassification => {
            TaskHead::Tokens(Labeller::read(&checkpoint.config, strategy)?, class.token_layer())
        }
        _ => {
            let modules = match modules {
                Some(modules) => modules.checked()?,
                None => SentenceModules::pooled_by(Pooling::Mean),
            };
            let scores = Classifier::of_modules(&modules)?;
            TaskHead::Modules(Box::new(modules), scores)
        }
    };
    let (task, labels) = match &head {
        TaskHead::Score(classifier) => (classifier.task(), classifier.labels()),
        TaskHead::Tokens(labeller, _) => (Task::TokenClassification, labeller.labels()),
        TaskHead::Modules(_, Some(scores)) => (scores.task(), scores.labels()),
        TaskHead::Modules(_, None) => (Task::Embedding, Vec::new()),
    };
    let decoder = registry::read_layers(&mut checkpoint, class, partition)?;
    let is_encoder_decoder = decoder.encoder.is_some();
    if is_encoder_decoder && class.task != DecoderTask::Classification {
        return Err(LoadError::NotServed {
            name: checkpoint.name,
            reason: "an encoder-decoder gives no embeddings".into(),
        });
    }
    let limits = TokenLimits {
        vocabulary: decoder.model_config.vocabulary,
        types: 0,
        context: match &decoder.encoder {
            Some(encoder) => encoder.context.min(decoder.model_config.context),
            None => decoder.model_config.context,
        },
    };
    let texts = if class.task == DecoderTask::TokenClassification {
        Texts::Labelled
    } else {
        Texts::OneOrTwo
    };
    let reader = || TextReader::new(checkpoint.tokenizer.as_ref(), limits, texts);
    let mut input_stage = None;
    if partition.is_first() {
        let padding = match class.task {
            DecoderTask::Classification if !is_encoder_decoder => {
                checkpoint.config.optional::<i64>("pad_token_id")?
            }
            _ => None,
        };
        let end = match &decoder.encoder {
            Some(encoder) => Some(End {
                token: checkpoint.config.required::<u32>("eos_token_id")?,
                precedes: encoder.starts_with_last,
            }),
            None => None,
        };
        input_stage = Some(InputStage {
            reader: reader()?,
            padding,
            end,
        });
    }
    let text = TextPassthrough::of(texts, partition, reader)?;
    let layers = registry::totals(&decoder);
    let before = checkpoint.weights.totals();
    let model = with_ops!(device, ops => {
        Box::new(TextDecoder::new(ops, &mut checkpoint, device, partition, (decoder, input_stage, text, head))?) as Box<dyn Model>
    });
    let after = checkpoint.weights.totals();
    if partition == Partition::WHOLE {
        let classifiers: &[&str] = if pools_tokens { &CLASSIFIERS } else { &[] };
        checkpoint.weights.finish(&[&OTHER_HEADS, classifiers].concat())?;
    }
    let totals = WeightTotals {
        parameters: layers.parameters + after.parameters - before.parameters,
        bytes: layers.bytes + after.bytes - before.bytes,
    };
    Ok((Built { model, task, labels }, totals))
}

/// A model or a partition of one.
struct TextDecoder<O: Ops> {
    ops: O,
    layers: DecoderPartition<O>,
    /// Present only in the first partition.
    input_stage: Option<InputStage>,
    text: TextPassthrough,
    /// Final norm and head; present only in the last partition.
    last_stage: Option<(O::Norm, Head<O>)>,
    device: Device,
}

/// A request in a partition.
struct Request {
    /// Hidden states before the layers.
    states: Vec<f32>,
    /// Number of tokens up to the last one that the head reads; `None` if it reads all.
    read: Option<usize>,
    /// The text, for token classification.
    text: Option<TokenText>,
    /// Inputs that the next partition receives besides hidden states.
    forwarded_inputs: Inputs,
}

/// Head after the layers.
enum TaskHead {
    /// Layer `score` on the last token.
    Score(Classifier),
    /// Named layer on every token.
    Tokens(Labeller, &'static str),
    /// Pooling and following modules; for scores, with their interpretation.
    Modules(Box<SentenceModules>, Option<Classifier>),
}

/// Reads the tokens of requests.
struct InputStage {
    reader: TextReader,
    /// Padding token: a classifier reads the last token before the trailing padding; `None` if all tokens count.
    padding: Option<i64>,
    /// Token that must end a text; `None` if there is no such requirement.
    end: Option<End>,
}

/// Token at the end of a text.
#[derive(Clone, Copy)]
struct End {
    token: u32,
    /// Whether other tokens, such as the language, may follow it.
    precedes: bool,
}

impl End {
    /// Returns the number of tokens up to the last end; `None` if the text does not end with it.
    fn of(self, tokens: &[u32]) -> Option<usize> {
        let last = tokens.iter().rposition(|token| *token == self.token)? + 1;
        (self.precedes || last == tokens.len()).then_some(last)
    }
}

impl InputStage {
    /// Returns the visible tokens of a request, up to the last one that is not padding.
    fn visible(&self, tokens: &Tokens) -> Vec<u32> {
        let ids = tokens.ids.iter().zip(&tokens.mask);
        let ids = ids.filter(|(_, visible)| **visible).map(|(id, _)| *id);
        let mut visible: Vec<i64> = ids.collect();
        if let Some(padding) = self.padding {
            // If there is only padding, the first token remains, as in transformers.
            let last = visible.iter().rposition(|id| *id != padding).unwrap_or_default();
            visible.truncate(last + 1);
        }
        let ids = visible.into_iter();
        ids.map(|id| u32::try_from(id).unwrap_or_default()).collect()
    }
}

impl<O: Ops + Clone> TextDecoder<O> {
    fn new(
        ops: O,
        checkpoint: &mut Checkpoint,
        device: &Device,
        partition: Partition,
        (decoder, input_stage, text, head): (Decoder, Option<InputStage>, TextPassthrough, TaskHead),
    ) -> Result<Self, LoadError> {
        let model_config = &decoder.model_config;
        let (width, epsilon) = (model_config.width, model_config.epsilon);
        let mut last_stage = None;
        if partition.is_last() {
            let norm = decoder.final_norm.clone();
            let mut layers = Layers {
                ops: &ops,
                weights: &mut checkpoint.weights,
            };
            let head = match head {
                TaskHead::Score(classifier) if decoder.encoder.is_some() => {
                    Head::after_decoder(&mut layers, classifier, width)?
                }
                TaskHead::Score(classifier) => Head::score(&mut layers, classifier, width)?,
                TaskHead::Tokens(labeller, name) => Head::tokens(&mut layers, labeller, (name, width))?,
                TaskHead::Modules(modules, scores) => {
                    Head::embedding(&mut layers, (*modules, scores), width, None)?
                }
            };
            last_stage = Some((ops.norm(norm.gamma, norm.beta, epsilon), head));
        }
        Ok(Self {
            layers: DecoderPartition::new(ops.clone(), decoder, false),
            ops,
            input_stage,
            text,
            last_stage,
            device: device.clone(),
        })
    }
}

impl<O: Ops> TextDecoder<O> {
    /// Reads a request, and computes its hidden states before the layers.
    fn read(&self, inputs: &Inputs, signature: &Signature) -> Result<Request, ModelError> {
        let forwarded_inputs = self.text.forwarded_inputs(inputs);
        let Some(input_stage) = &self.input_stage else {
            signature.check(inputs)?;
            return Ok(Request {
                states: states::values(inputs)?,
                read: None,
                text: self.text.read(inputs)?,
                forwarded_inputs,
            });
        };
        let windows = input_stage.reader.read(inputs)?.into_iter().next();
        let tokens = windows.as_ref().map(|tokens| input_stage.visible(tokens));
        let tokens = tokens.unwrap_or_default();
        let read = match input_stage.end.map(|end| (end, end.of(&tokens))) {
            None => None,
            Some((_, Some(read))) => Some(read),
            Some((end, None)) => {
                let place = if end.precedes { "a" } else { "its last" };
                return Err(ModelError::BadInput {
                    name: inputs
                        .first()
                        .map_or_else(|| "input_ids".into(), |input| input.name.clone()),
                    reason: format!(
                        "{place} token must be {}, the end of the text, which is classified",
                        end.token
                    ),
                });
            }
        };
        Ok(Request {
            states: self.layers.embed(&tokens),
            read,
            text: windows.and_then(|tokens| tokens.labelled),
            forwarded_inputs,
        })
    }

    fn answer(&self, requests: &[Request]) -> Result<BatchResults, ModelError> {
        let (ops, width) = (&self.ops, self.layers.model_config().width);
        let states: Vec<&[f32]> = requests.iter().map(|request| request.states.as_slice()).collect();
        let lengths: Vec<usize> = states.iter().map(|states| self.layers.tokens(states)).collect();
        let states = self.layers.hidden_states(states.concat(), &lengths);
        let states = states.map_err(|error| device_failed(&error))?;
        let Some((norm, head)) = &self.last_stage else {
            let states = ops.values(&states).map_err(|error| device_failed(&error))?;
            let outputs = states::outputs(&states, width, &lengths, None);
            let forwarded_inputs = requests.iter().map(|request| request.forwarded_inputs.as_slice());
            return Ok(states::with_inputs(outputs, forwarded_inputs));
        };
        let states = ops.normalise(&states, norm);
        let masks = requests.iter().zip(&lengths).map(|(request, length)| {
            let read = request.read.unwrap_or(*length);
            (0..*length).map(|token| token < read).collect()
        });
        let masks: Vec<Vec<bool>> = masks.collect();
        let masks: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let known = requests.iter().map(|request| {
            vec![KnownText {
                labelled: request.text.as_ref(),
                ..KnownText::default()
            }]
        });
        head.outputs(ops, &states, width, &masks, &known.collect::<Vec<_>>())
    }
}

impl<O: Ops> Model for TextDecoder<O> {
    fn signature(&self) -> Signature {
        let model_config = self.layers.model_config();
        if let Some(input_stage) = &self.input_stage {
            return input_stage.reader.signature();
        }
        let mut signature = states::signature(Extent::UpTo(model_config.context), model_config.width, false);
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
            |request| request.states.len(),
            |requests| self.answer(requests),
        )
    }
}

#[cfg(test)]
mod tests;
