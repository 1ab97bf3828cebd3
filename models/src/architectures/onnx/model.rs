//! `Model` implementation of an ONNX graph: batches requests, and splits the graph's outputs by request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rayon::prelude::*;

use super::super::text::Tokens;
use super::images::GraphImages;
use super::labels::Labels;
use super::pooled::SentenceOutputs;
use super::scores::{self, Scores};
use super::session::{Dimension, Graph, Port};
use super::tokens::TokenInputs;
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::runtime::batch::BatchResults;
use crate::runtime::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::Tensor;
use crate::runtime::usage::{USAGE, usage};
use crate::tasks::classification::Classifier;

/// Maximum size of a dimension that the graph leaves open.
const MAX_EXTENT: usize = 1 << 16;

/// An ONNX graph.
///
/// The batch dimension is the first of every input and output; requests and their outputs have none. A graph with
/// batch size 1 runs the requests of a batch one after the other. A graph whose inputs have no common batch dimension
/// receives them unchanged. Class scores are returned as `logits` under any name in the graph; see [`scores`].
pub(super) struct OnnxModel {
    graph: Graph,
    tokens: Option<TokenInputs>,
    batching: BatchDimension,
    signature: Signature,
    /// Conversion of image files, if the graph takes images.
    images: Option<GraphImages>,
    outputs: Vec<Port>,
    scores: Scores,
    labels: Labels,
    /// Interpretation of the only logit, for a graph with one logit.
    score: Option<Classifier>,
    /// Treatment of token vectors and text vectors.
    sentence: Option<SentenceOutputs>,
}

/// First dimension of a graph's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchDimension {
    /// Batch dimension of any size.
    Free,
    /// Batch dimension of size 1.
    One,
    /// No batch dimension: inputs are passed as a whole.
    Absent,
}

impl BatchDimension {
    fn of(inputs: &[Port]) -> Self {
        let all =
            |test: fn(&Dimension) -> bool| inputs.iter().all(|port| port.shape.first().is_some_and(test));
        if all(|dimension| matches!(dimension, Dimension::Any(_))) {
            Self::Free
        } else if all(|dimension| *dimension == Dimension::Exactly(1)) {
            Self::One
        } else {
            Self::Absent
        }
    }
}

impl OnnxModel {
    /// Creates a model of a graph. `softmax` lists the values that softmax nodes compute.
    ///
    /// # Errors
    /// [`LoadError`] of the tokenizer or the configuration.
    pub(super) fn new(
        graph: Graph,
        softmax: &[String],
        config: Option<&Config>,
        tokenizer: Option<&TokenizerFile>,
    ) -> Result<Self, LoadError> {
        let tokens = TokenInputs::of(&graph.inputs, config, tokenizer)?;
        let batching = BatchDimension::of(&graph.inputs);
        let signature = match &tokens {
            Some(tokens) => tokens.reader.signature(),
            None => signature(&graph.inputs, batching),
        };
        let (outputs, scores) = scores::find(&graph.outputs, softmax);
        Ok(Self {
            graph,
            tokens,
            batching,
            signature,
            images: None,
            outputs,
            scores,
            labels: Labels::default(),
            score: None,
            sentence: None,
        })
    }

    /// Accepts image files in place of the tensor.
    pub(super) fn take_files(&mut self, images: GraphImages) {
        self.signature = GraphImages::signature(std::mem::take(&mut self.signature));
        self.images = Some(images);
    }

    /// Applies sentence-transformers settings to text vectors, if the graph takes only tokens.
    pub(super) fn apply(&mut self, sentence: SentenceOutputs) {
        if self.takes_tokens() {
            sentence.describe(&mut self.outputs);
            self.sentence = Some(sentence);
        }
    }

    /// Returns whether all inputs derive from tokens.
    pub(super) const fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Sets the interpretation of the only logit, which adds a score to answers.
    pub(super) fn score_by(&mut self, score: Option<Classifier>) {
        self.score = score;
    }

    /// Sets the class names for answers.
    pub(super) fn name_classes(&mut self, labels: Labels) {
        self.labels = labels;
    }

    /// Returns the outputs, as served, with their batch dimension.
    pub(super) fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Runs requests of the same shapes as one batch.
    fn run_tensors(&mut self, requests: &[&Inputs]) -> Result<BatchResults, ModelError> {
        let inputs = stack(requests, self.batching)?;
        let results = self.scores.to_logits(self.graph.run(&inputs)?)?;
        split(results, requests.len(), self.batching, &self.outputs, None)
    }

    /// Runs tokenized requests as one batch, padded to the longest.
    fn run_tokens(&mut self, requests: &[Tokens]) -> Result<BatchResults, ModelError> {
        let Self {
            graph,
            outputs,
            batching,
            tokens,
            scores,
            sentence,
            ..
        } = self;
        let Some(tokens) = tokens else {
            return Ok(Vec::new());
        };
        let length = tokens.padded(requests);
        let mut results = scores.to_logits(graph.run(&tokens.tensors(requests, length)?)?)?;
        if let Some(sentence) = sentence {
            sentence.applied(&mut results, requests)?;
        }
        let lengths: Vec<usize> = requests.iter().map(|request| request.ids.len()).collect();
        let padding = Padding {
            symbol: &tokens.symbol,
            length,
            lengths: &lengths,
        };
        let mut results = split(results, requests.len(), *batching, outputs, Some(&padding))?;
        // If the graph has an output of this name, that one is kept.
        if outputs.iter().all(|port| port.name != USAGE) {
            for (result, request) in results.iter_mut().zip(requests) {
                if let Ok(answer) = result {
                    answer.push(usage(request.mask.iter().filter(|visible| **visible).count(), 0)?);
                }
            }
        }
        Ok(results)
    }
}

impl Model for OnnxModel {
    fn signature(&self) -> Signature {
        self.signature.clone()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        match &self.tokens {
            Some(tokens) => tokens.reader.read(inputs).map(drop),
            None => self.tensors(inputs).map(drop),
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut answers = self.answers(batch);
        for answer in &mut answers {
            if let Ok(outputs) = answer
                && let Err(error) = self.labels.add(outputs).and_then(|()| self.add_score(outputs))
            {
                *answer = Err(error);
            }
        }
        answers
    }
}

impl OnnxModel {
    /// Returns the inputs of the graph for a request without tokens.
    fn tensors<'a>(&self, inputs: &'a Inputs) -> Result<Cow<'a, Inputs>, ModelError> {
        self.signature.check(inputs)?;
        match &self.images {
            Some(images) => images.tensors(inputs),
            None => Ok(Cow::Borrowed(inputs)),
        }
    }

    /// Returns the inputs of the graph for each request of a batch; decodes image files in parallel.
    fn all_tensors<'a>(&self, batch: &'a [Inputs]) -> Vec<Result<Cow<'a, Inputs>, ModelError>> {
        let Some(images) = self.images.as_ref().filter(|_| batch.len() > 1) else {
            return batch.iter().map(|inputs| self.tensors(inputs)).collect();
        };
        let signature = &self.signature;
        let tensors = batch.par_iter().map(|inputs| {
            signature.check(inputs)?;
            images.tensors(inputs)
        });
        tensors.collect()
    }

    /// Adds the output `score` to the outputs of a request, for a graph with one logit.
    fn add_score(&self, outputs: &mut Outputs) -> Result<(), ModelError> {
        let logits = outputs.iter().find(|output| output.name == scores::LOGITS);
        let (Some(classifier), Some(logits)) = (&self.score, logits) else {
            return Ok(());
        };
        let answer = classifier.outputs(&logits.to_f32()?)?;
        for own in answer.into_iter().filter(|own| own.name != scores::LOGITS) {
            outputs.retain(|output| output.name != own.name);
            outputs.push(own);
        }
        Ok(())
    }

    /// Runs the graph on a batch, and returns the answers.
    fn answers(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let one_by_one = self.batching != BatchDimension::Free;
        if self.tokens.is_some() {
            let read = |model: &Self, inputs: &Inputs| match &model.tokens {
                // If a context has several windows, only the first is used.
                Some(tokens) => tokens.reader.read(inputs)?.into_iter().next().ok_or_else(lost),
                None => Err(lost()),
            };
            let requests: Vec<_> = batch.iter().map(|inputs| read(self, inputs)).collect();
            return answer(requests, one_by_one, |requests| self.run_tokens(requests));
        }
        let tensors = self.all_tensors(batch);
        let mut groups: BTreeMap<Vec<&[usize]>, Vec<usize>> = BTreeMap::new();
        let mut results: Vec<Result<Outputs, ModelError>> = Vec::with_capacity(batch.len());
        for (place, inputs) in tensors.iter().enumerate() {
            match inputs {
                Ok(inputs) => {
                    results.push(Err(lost()));
                    let shapes = inputs.iter().map(|input| input.shape.as_slice()).collect();
                    groups.entry(shapes).or_default().push(place);
                }
                Err(error) => results.push(Err(error.clone())),
            }
        }
        for places in groups.into_values() {
            let requests = places.iter().filter_map(|place| tensors.get(*place));
            let requests: Vec<_> = requests
                .filter_map(|inputs| inputs.as_ref().ok())
                .map(|inputs| Ok(inputs.as_ref()))
                .collect();
            let answers = answer(requests, one_by_one, |requests| self.run_tensors(requests));
            for (place, answer) in places.into_iter().zip(answers) {
                if let Some(result) = results.get_mut(place) {
                    *result = answer;
                }
            }
        }
        results
    }
}

fn lost() -> ModelError {
    ModelError::Failed {
        reason: "the request was not run".into(),
    }
}

/// Answers the valid requests: as one batch, or if that fails or the graph takes one at a time, one by one.
fn answer<T>(
    requests: Vec<Result<T, ModelError>>,
    one_by_one: bool,
    mut run: impl FnMut(&[T]) -> Result<BatchResults, ModelError>,
) -> BatchResults {
    let (mut read, mut places) = (
        Vec::with_capacity(requests.len()),
        Vec::with_capacity(requests.len()),
    );
    for request in requests {
        match request {
            Ok(request) => {
                places.push(None);
                read.push(request);
            }
            Err(error) => places.push(Some(error)),
        }
    }
    let alone = |request: &T, run: &mut dyn FnMut(&[T]) -> Result<BatchResults, ModelError>| {
        run(std::slice::from_ref(request))
            .and_then(|mut results| results.pop().unwrap_or_else(|| Err(lost())))
    };
    let together = (!one_by_one && read.len() > 1)
        .then(|| run(&read))
        .and_then(Result::ok);
    let answers = match together {
        Some(answers) => answers,
        None => read.iter().map(|request| alone(request, &mut run)).collect(),
    };
    let mut answers = answers.into_iter();
    let results = places.into_iter();
    results
        .map(|error| error.map_or_else(|| answers.next().unwrap_or_else(|| Err(lost())), Err))
        .collect()
}

/// Returns the inputs of a graph unchanged, without the batch dimension.
fn signature(inputs: &[Port], batching: BatchDimension) -> Signature {
    let skipped = usize::from(batching != BatchDimension::Absent);
    let spec = |port: &Port| {
        let dimensions = port.shape.iter().skip(skipped);
        let extents = dimensions.map(|dimension| match dimension {
            Dimension::Exactly(extent) => Extent::Exactly(*extent),
            Dimension::Any(_) => Extent::UpTo(MAX_EXTENT),
        });
        InputSpec::required(port.name.as_str(), port.datatype, extents.collect())
    };
    Signature {
        inputs: inputs.iter().map(spec).collect(),
    }
}

/// Stacks requests of the same shapes.
fn stack(requests: &[&Inputs], batching: BatchDimension) -> Result<Vec<Tensor>, ModelError> {
    let Some(first) = requests.first() else {
        return Ok(Vec::new());
    };
    if batching == BatchDimension::Absent {
        return Ok((*first).clone());
    }
    let stacked = first.iter().map(|input| {
        let mut data = Vec::with_capacity(input.data.len() * requests.len());
        for request in requests {
            let same = request
                .iter()
                .find(|other| other.name == input.name)
                .ok_or_else(lost)?;
            data.extend_from_slice(&same.data);
        }
        let shape = std::iter::once(requests.len()).chain(input.shape.iter().copied());
        let stacked = Tensor {
            name: input.name.clone(),
            shape: shape.collect(),
            datatype: input.datatype,
            data: data.into(),
        };
        Ok(stacked.checked()?)
    });
    stacked.collect()
}

/// Padding of sequences.
struct Padding<'a> {
    /// Symbol of the sequence dimension; may be empty.
    symbol: &'a str,
    /// Padded length of all sequences.
    length: usize,
    /// Original length of each sequence.
    lengths: &'a [usize],
}

/// Splits outputs by request, and removes batch dimension and padding.
fn split(
    results: Vec<Tensor>,
    requests: usize,
    batching: BatchDimension,
    ports: &[Port],
    padding: Option<&Padding<'_>>,
) -> Result<BatchResults, ModelError> {
    let mut answers: Vec<Outputs> = vec![Outputs::with_capacity(results.len()); requests];
    for (result, port) in results.into_iter().zip(ports) {
        let result = Tensor {
            name: port.name.clone(),
            ..result
        };
        if batching == BatchDimension::Absent {
            for answer in &mut answers {
                answer.push(result.clone());
            }
            continue;
        }
        let Some((rows, shape)) = result.shape.split_first() else {
            return Err(ModelError::BadOutput {
                reason: format!("output `{}` has no batch dimension", port.name),
            });
        };
        if *rows != requests {
            return Err(ModelError::BadOutput {
                reason: format!("output `{}` has {rows} rows for {requests} requests", port.name),
            });
        }
        let Some(size) = result.datatype.size() else {
            let texts = result.to_texts()?;
            let each = shape.iter().product::<usize>().max(1);
            for (row, answer) in texts.chunks(each).zip(&mut answers) {
                let texts = Tensor::from_texts(&port.name, row)?;
                answer.push(Tensor {
                    shape: shape.to_vec(),
                    ..texts
                });
            }
            continue;
        };
        let row_bytes = shape.iter().product::<usize>() * size;
        for (place, answer) in answers.iter_mut().enumerate() {
            let begin = place * row_bytes;
            let kept = padding.and_then(|padding| padding.kept(port, shape, place));
            let mut shape = shape.to_vec();
            let mut bytes = row_bytes;
            if let (Some(kept), Some(sequence)) = (kept, shape.first_mut()) {
                bytes = row_bytes / (*sequence).max(1) * kept;
                *sequence = kept;
            }
            answer.push(Tensor {
                name: port.name.clone(),
                shape,
                datatype: result.datatype,
                data: result.data.slice(begin..begin + bytes),
            });
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

impl Padding<'_> {
    /// Returns the number of unpadded positions in a row of an output, if its first dimension is the sequence.
    fn kept(&self, port: &Port, row: &[usize], place: usize) -> Option<usize> {
        let is_sequence = matches!(port.shape.get(1), Some(Dimension::Any(symbol)) if !symbol.is_empty() && symbol == self.symbol);
        (is_sequence && row.first() == Some(&self.length)).then(|| self.lengths.get(place).copied())?
    }
}
