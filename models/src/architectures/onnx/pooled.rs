//! The vector of a text from those of its tokens, for a graph that ends before the pooling of sentence-transformers.

use std::path::{Path, PathBuf};

use super::session::{Dimension, Graph, Port};
use super::tokens::IDS;
use crate::architectures::text::Tokens;
use crate::checkpoint::sentence::{SentenceLayer, SentenceModules};
use crate::checkpoint::{LoadError, TokenizerFile};
use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Datatype, Tensor};
use crate::tasks::embedding::{EMBEDDING_OUTPUTS, Pooling, Similarity, normalised, pooled};

/// Names of the output with the vectors of the tokens, the first one found.
const STATES: [&str; 2] = ["token_embeddings", "last_hidden_state"];

/// Pools the vectors of tokens.
#[derive(Debug)]
pub(super) struct PooledStates {
    /// Folder of the tokenizer.
    pub folder: PathBuf,
    /// Place of the output with the vectors of the tokens.
    place: usize,
    pooling: Pooling,
    /// Whether the vector is divided by its length.
    normalise: bool,
    modules: SentenceModules,
}

impl PooledStates {
    /// Returns what becomes of the vectors of tokens, by the `modules.json` of a folder; `None` without that file, and for a graph that
    /// gives the vector of a text, or none of tokens.
    ///
    /// # Errors
    /// [`LoadError`] for modules that are not supported, such as `Dense` beside an ONNX file.
    pub(super) fn of(graph: &Graph, folder: &Path) -> Result<Option<Self>, LoadError> {
        let place = |names: &[&str]| {
            let mut places = names.iter().map(|name| {
                let mut outputs = graph.outputs.iter();
                outputs.position(|port| port.name == *name)
            });
            places.find_map(|place| place)
        };
        let takes_tokens = graph.inputs.iter().any(|port| port.name == IDS);
        let (None, Some(place)) = (place(&EMBEDDING_OUTPUTS), place(&STATES)) else {
            return Ok(None);
        };
        let is_states = |port: &Port| port.datatype == Datatype::F32 && port.shape.len() == 3;
        if !takes_tokens || !graph.outputs.get(place).is_some_and(is_states) {
            return Ok(None);
        }
        let Some((modules, encoder)) = SentenceModules::open(folder)? else {
            return Ok(None);
        };
        let modules = modules.checked()?;
        let Some(pooling) = modules.pooling else {
            return Ok(None);
        };
        let is_dense = |layer: &SentenceLayer| matches!(layer, SentenceLayer::Dense(_));
        if modules.layers.iter().any(is_dense) {
            let reason = "a module `Dense` beside an ONNX file is not supported; export the file with all modules, by `optimum-cli export \
                          onnx --library sentence_transformers`, or name the directory as `dir`";
            return Err(modules.bad(reason));
        }
        Ok(Some(Self {
            folder: folder.join(encoder),
            place,
            pooling,
            normalise: !modules.layers.is_empty(),
            modules,
        }))
    }

    /// Adds what becomes of a text before it is tokenized.
    pub(super) fn prepare(&self, file: &mut TokenizerFile) {
        file.preparation = self.modules.preparation.clone();
        file.sequences.max_tokens = self.modules.max_tokens.or(file.sequences.max_tokens);
    }

    /// Returns the names of the prompts, and how vectors are compared.
    pub(super) fn described(&self) -> (Vec<String>, Similarity) {
        let prompts = self.modules.preparation.prompts.keys().cloned();
        (prompts.collect(), self.modules.similarity)
    }

    /// Describes the vector in place of those of the tokens.
    pub(super) fn describe(&self, outputs: &mut [Port]) {
        if let Some(port) = outputs.get_mut(self.place) {
            EMBEDDING_OUTPUTS[0].clone_into(&mut port.name);
            port.shape.remove(1);
            if let (Some(kept), Some(width)) = (self.modules.kept, port.shape.last_mut()) {
                *width = Dimension::Exactly(kept);
            }
        }
    }

    /// Replaces the vectors of the tokens, `[batch, length, width]`, by those of the texts in the outputs of a run.
    ///
    /// # Errors
    /// [`ModelError::BadOutput`] for another shape.
    pub(super) fn pooled(&self, outputs: &mut [Tensor], requests: &[Tokens]) -> Result<(), ModelError> {
        let Some(output) = outputs.get_mut(self.place) else {
            return Ok(());
        };
        let &[rows, length, width] = output.shape.as_slice() else {
            return Err(ModelError::BadOutput {
                reason: format!("output `{}` has the shape {:?}", output.name, output.shape),
            });
        };
        let masks = requests.iter().map(|request| {
            let mut mask = request.mask.clone();
            mask.resize(length, false);
            mask
        });
        let masks: Vec<Vec<bool>> = masks.collect();
        if rows != masks.len() {
            return Err(ModelError::BadOutput {
                reason: format!(
                    "output `{}` has {rows} rows for {} texts",
                    output.name,
                    masks.len()
                ),
            });
        }
        let shown: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let mut vectors = pooled(&output.to_f32()?, width, &shown, self.pooling);
        let kept = self.modules.kept.unwrap_or(width).min(width);
        let mut values = Vec::with_capacity(rows * kept);
        for vector in vectors.chunks_exact_mut(width.max(1)) {
            if self.normalise {
                normalised(vector);
            }
            values.extend(vector.iter().take(kept));
        }
        *output = Tensor::from_f32(EMBEDDING_OUTPUTS[0], &[rows, kept], &values)?;
        Ok(())
    }
}
