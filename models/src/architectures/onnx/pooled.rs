//! Settings of sentence-transformers' `modules.json` for a graph that takes tokens: preparation of texts, and pooling
//! of the token vectors for a graph that ends before the pooling.

use std::path::{Path, PathBuf};

use super::session::{Dimension, Graph, Port};
use super::tokens::IDS;
use crate::architectures::text::Tokens;
use crate::checkpoint::sentence::{SentenceLayer, SentenceModules, SentenceTexts};
use crate::checkpoint::{LoadError, TokenizerFile};
use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Datatype, Tensor};
use crate::tasks::embedding::{EMBEDDING_OUTPUTS, Pooling, Similarity, normalised, pooled};

/// Names of the output with the token vectors, in order of preference.
const STATES: [&str; 2] = ["token_embeddings", "last_hidden_state"];

/// Settings for the texts and vectors of a graph.
#[derive(Debug)]
pub(super) struct SentenceOutputs {
    /// Folder of the encoder.
    pub encoder: PathBuf,
    /// Settings for texts.
    pub texts: SentenceTexts,
    /// The output that becomes the text vector, if there is one.
    vector: Option<Vector>,
}

/// The output that becomes the text vector.
#[derive(Debug)]
struct Vector {
    /// Index of the output.
    place: usize,
    /// Pooling of token vectors; `None` if the graph returns the text vector.
    pooling: Option<TextPooling>,
    /// Number of leading elements to keep; `None` for all.
    kept: Option<usize>,
}

/// Pooling of token vectors to a text vector.
#[derive(Debug)]
struct TextPooling {
    pooling: Pooling,
    /// Whether the vector is normalised to unit length.
    normalise: bool,
}

impl SentenceOutputs {
    /// Reads the settings in the `modules.json` of a directory for a graph. `None` for a graph that takes no tokens,
    /// and for other kinds of modules.
    ///
    /// # Errors
    /// [`LoadError`] for unsupported modules, such as `Dense` after a pooling that the graph lacks.
    pub(super) fn of(graph: &Graph, dir: &Path) -> Result<Option<Self>, LoadError> {
        if !graph.inputs.iter().any(|port| port.name == IDS) {
            return Ok(None);
        }
        let Some((texts, pools)) = SentenceTexts::of_graph(dir)? else {
            return Ok(None);
        };
        let place = |names: &[&str], extents: usize| {
            let mut places = names.iter().map(|name| {
                let mut outputs = graph.outputs.iter();
                outputs.position(|port| port.name == *name)
            });
            let place = places.find_map(|place| place)?;
            let port = graph.outputs.get(place)?;
            (port.datatype == Datatype::F32 && port.shape.len() == extents).then_some(place)
        };
        let kept = texts.kept()?;
        let has_vector = graph
            .outputs
            .iter()
            .any(|port| EMBEDDING_OUTPUTS.contains(&port.name.as_str()));
        let vector = match (place(&EMBEDDING_OUTPUTS, 2), place(&STATES, 3)) {
            (Some(place), _) => Some(Vector {
                place,
                pooling: None,
                kept,
            }),
            (None, Some(place)) if pools && !has_vector => TextPooling::read(dir)?.map(|pooling| Vector {
                place,
                pooling: Some(pooling),
                kept,
            }),
            _ => None,
        };
        Ok(Some(Self {
            encoder: dir.join(&texts.encoder),
            texts,
            vector,
        }))
    }

    /// Sets the preparation of texts before tokenization.
    pub(super) fn prepare(&self, file: &mut TokenizerFile) {
        file.preparation = self.texts.preparation.clone();
        file.sequences.max_tokens = self.texts.max_tokens.or(file.sequences.max_tokens);
    }

    /// Returns the prompt names, and the similarity function.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an unsupported similarity function.
    pub(super) fn described(&self) -> Result<(Vec<String>, Similarity), LoadError> {
        let prompts = self.texts.preparation.prompts.keys().cloned();
        Ok((prompts.collect(), self.texts.similarity()?))
    }

    /// Updates the description of the outputs: the text vector, truncated, replaces the token vectors.
    pub(super) fn describe(&self, outputs: &mut [Port]) {
        let Some(vector) = &self.vector else { return };
        let Some(port) = outputs.get_mut(vector.place) else {
            return;
        };
        if vector.pooling.is_some() {
            EMBEDDING_OUTPUTS[0].clone_into(&mut port.name);
            port.shape.remove(1);
        }
        if let (Some(kept), Some(Dimension::Exactly(width))) = (vector.kept, port.shape.last_mut()) {
            *width = kept.min(*width);
        }
    }

    /// Updates the outputs of a run: the text vectors, truncated, replace the token vectors.
    ///
    /// # Errors
    /// [`ModelError::BadOutput`] for an unexpected shape.
    pub(super) fn applied(&self, outputs: &mut [Tensor], requests: &[Tokens]) -> Result<(), ModelError> {
        let Some(vector) = &self.vector else { return Ok(()) };
        let Some(output) = outputs.get_mut(vector.place) else {
            return Ok(());
        };
        let (name, values, width) = match &vector.pooling {
            Some(pooling) => {
                let (values, width) = pooling.vectors(output, requests)?;
                (EMBEDDING_OUTPUTS[0], values, width)
            }
            None if vector.kept.is_none() => return Ok(()),
            None => {
                let width = output.shape.last().copied().unwrap_or_default();
                (output.name.as_str(), output.to_f32()?, width)
            }
        };
        let kept = vector.kept.unwrap_or(width).min(width);
        let rows = values.chunks_exact(width.max(1));
        let count = rows.len();
        let values: Vec<f32> = rows.flat_map(|row| row.iter().take(kept).copied()).collect();
        *output = Tensor::from_f32(name, &[count, kept], &values)?;
        Ok(())
    }
}

impl TextPooling {
    /// Reads the pooling of a directory. `None` for modules that return no text vector.
    ///
    /// # Errors
    /// [`LoadError`] for an unsupported module or setting, such as `Dense` next to an ONNX file.
    fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        let Some((modules, _)) = SentenceModules::open(dir)? else {
            return Ok(None);
        };
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
            pooling,
            normalise: !modules.layers.is_empty(),
        }))
    }

    /// Pools the token vectors `[batch, length, width]`; returns the text vectors, row-major, and their width.
    fn vectors(&self, output: &Tensor, requests: &[Tokens]) -> Result<(Vec<f32>, usize), ModelError> {
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
        if self.normalise {
            for vector in vectors.chunks_exact_mut(width.max(1)) {
                normalised(vector);
            }
        }
        Ok((vectors, width))
    }
}
