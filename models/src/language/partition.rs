//! A partition of a language model: contiguous layers on one worker, for a model that fits on no single device.
//!
//! Partitions exchange hidden states and keep no cache, so a request generates only one token: enough for next-word
//! prediction or single-word classification. For longer answers, repeat the request with the token appended. For long
//! answers of a model larger than the device, use the engine, which streams the weights.

use kaskade_policy::plan::Partition;

use super::inputs::bad_input;
use super::partial_answer::PartialAnswer;
use super::prompt::Prompts;
use crate::checkpoint::{Checkpoint, LoadError, TokenRules, WeightTotals};
use crate::decoder::registry;
use crate::device::{Device, with_ops};
use crate::generation::partition::DecoderPartition;
use crate::generation::{Event, FinishReason, detokenizer, sampling};
use crate::ops::{Ops, OpsError};
use crate::runtime::batch::{BatchResults, run_batch};
use crate::runtime::hidden_states as states;
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::Tensor;

/// Contiguous layers of a language model. The first partition takes `text` or `input_ids`, the others `hidden_states`
/// FP32 `[tokens, width]`. The last partition returns the outputs of a [`LanguageModel`](super::LanguageModel) for one
/// token, the others return `hidden_states`.
struct LanguagePartition<M: Ops> {
    layers: DecoderPartition<M>,
    partition: Partition,
    prompts: Prompts,
}

/// Loads a partition of a language model onto a device.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub(super) fn load(
    mut checkpoint: Checkpoint,
    device: &Device,
    partition: Partition,
) -> Result<(Box<dyn Model>, WeightTotals), LoadError> {
    let prompts = Prompts::take(&mut checkpoint)?;
    let name = checkpoint.name.clone();
    let (mut decoder, totals) = registry::read_partition(checkpoint, partition)?;
    // The result is ignored: one token is generated, with or without an EOS token.
    prompts.add_eos(&mut decoder.model_config);
    if decoder.model_config.rules != TokenRules::default() {
        return Err(LoadError::NotServed {
            name,
            reason:
                "its generation_config.json has rules for tokens, which partitions do not apply; serve it whole"
                    .into(),
        });
    }
    let last = partition.is_last();
    let model: Box<dyn Model> = with_ops!(device, ops => {
        let layers = DecoderPartition::new(ops, decoder, last);
        Box::new(LanguagePartition {
            layers,
            partition,
            prompts,
        })
    });
    Ok((model, totals))
}

impl<M: Ops> LanguagePartition<M> {
    /// Reads the hidden states of a request, `[tokens, width]`: embeds its tokens in the first partition.
    fn read(&self, inputs: &Inputs) -> Result<Vec<f32>, ModelError> {
        self.signature().check(inputs)?;
        if !self.partition.is_first() {
            return states::values(inputs);
        }
        let tokens = self.prompts.tokens(inputs)?;
        let model_config = self.layers.model_config();
        let name = inputs.first().map_or("text", |input| input.name.as_str());
        if tokens.len() > model_config.context {
            return Err(ModelError::TooLong {
                reason: format!(
                    "`{name}` has {} tokens; this model takes at most {}",
                    tokens.len(),
                    model_config.context
                ),
            });
        }
        match tokens
            .iter()
            .find(|token| **token as usize >= model_config.vocabulary)
        {
            Some(token) => Err(bad_input(
                name,
                format!(
                    "token {token} is not in this model's vocabulary of {}",
                    model_config.vocabulary
                ),
            )),
            None => Ok(self.layers.embed(&tokens)),
        }
    }

    fn forward(&self, requests: &[Vec<f32>]) -> Result<BatchResults, ModelError> {
        let width = self.layers.model_config().width.max(1);
        let lengths: Vec<usize> = requests.iter().map(|states| states.len() / width).collect();
        let failed = |error: OpsError| ModelError::Failed {
            reason: error.to_string(),
        };
        let all = self.layers.forward(requests.concat(), &lengths).map_err(failed)?;
        let mut rest = all.as_slice();
        let mut own = Vec::with_capacity(lengths.len());
        for length in &lengths {
            let (states, others) = rest.split_at_checked(length * width).unwrap_or((rest, &[]));
            own.push(states);
            rest = others;
        }
        if !self.partition.is_last() {
            let outputs = |(states, length): (&&[f32], &usize)| {
                Ok(vec![Tensor::from_f32(
                    states::HIDDEN_STATES,
                    &[*length, width],
                    states,
                )?])
            };
            return Ok(own.iter().zip(&lengths).map(outputs).collect());
        }
        let last = own
            .iter()
            .flat_map(|states| states.rchunks(width).next().unwrap_or_default());
        let logits = self.layers.logits(last.copied().collect()).map_err(failed)?;
        Ok(logits.iter().map(|logits| self.answer(logits)).collect())
    }

    /// Returns the most probable next token as an answer. The text is the one that the token appends to any prompt,
    /// because the last partition does not receive the prompt.
    fn answer(&self, logits: &[f32]) -> Result<Outputs, ModelError> {
        let mut answer = PartialAnswer::default();
        let Some(sampled) = sampling::greedy(logits) else {
            return answer.outputs(FinishReason::NotFinite, None);
        };
        let is_eos = self.layers.model_config().eos_token_ids.contains(&sampled.token);
        let mut text = String::new();
        if let Some(tokenizer) = self.prompts.tokenizer.as_ref().filter(|_| !is_eos) {
            text = detokenizer::appended_text(tokenizer, sampled.token);
        }
        let end = if is_eos {
            FinishReason::Token
        } else {
            FinishReason::Length
        };
        answer.add(&Event {
            request: 0,
            sampled: Some(sampled),
            text,
            top_logprobs: Vec::new(),
            prompt: Vec::new(),
            finish_reason: Some(end),
        });
        answer.outputs(end, self.prompts.tokenizer.as_ref())
    }
}

impl<M: Ops> Model for LanguagePartition<M> {
    fn signature(&self) -> Signature {
        let model_config = self.layers.model_config();
        if self.partition.is_first() {
            return Signature {
                inputs: self.prompts.inputs(model_config.context),
            };
        }
        states::signature(Extent::UpTo(model_config.context), model_config.width, false)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        run_batch(
            batch,
            |inputs| self.read(inputs),
            |requests| self.forward(requests),
        )
    }
}

#[cfg(test)]
mod tests;
