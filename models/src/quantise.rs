//! Quantises a checkpoint offline: writes a directory that loads like the original.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::architectures::registry::architecture;
use crate::checkpoint::quantised::Quantisation;
use crate::checkpoint::quantised::{KEY, stated_key};
use crate::checkpoint::sentence::SentenceModules;
use crate::checkpoint::weights::RawTensor;
use crate::checkpoint::{Checkpoint, LoadError, is_of_pytorch, transposed};
use crate::precision::{WeightType, encode};

/// Suffixes of the names of matrices stored as `[inputs, outputs]`, by `model_type`; all others are `[outputs,
/// inputs]`.
const TRANSPOSED: [(&str, &[&str]); 1] = [(
    "gpt2",
    &[
        "attn.c_attn.weight",
        "attn.c_proj.weight",
        "mlp.c_fc.weight",
        "mlp.c_proj.weight",
    ],
)];
/// Substrings of the names of embeddings and language model heads, which become `Q8_0` if layers become `Q4_0`.
const EMBEDDINGS: [&str; 5] = ["embed", "wte", "wpe", "shared", "lm_head"];
/// Substrings of the names of projections next to embeddings, which count as layers.
const PROJECTIONS: [&str; 2] = ["mapping", "proj"];
/// Substrings of the names of matrices that are copied: position bias tables, and norms with a weight per head.
const OTHERS: [&str; 3] = ["relative_attention_bias", "q_norm", "k_norm"];

/// Suffixes of the names of expert routers, which are computed in f32.
const ROUTERS: [&str; 4] = [
    ".gate.weight",
    ".router.weight",
    ".router.layer.weight",
    ".shared_expert_gate.weight",
];

/// Summary of a completed [`quantise`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantised {
    /// Number of quantised matrices.
    pub matrices: usize,
    /// Number of unchanged tensors.
    pub others: usize,
    /// Size of all tensors before, bytes.
    pub bytes_before: u64,
    /// Size of all tensors after, bytes.
    pub bytes_after: u64,
}

/// Why a checkpoint was not quantised.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The target type is not a quantised type.
    #[error("checkpoints are quantised to q8_0 or q4_0; for `{0}`, save the checkpoint in that type")]
    NotQuantised(WeightType),
    /// The checkpoint is quantised already.
    #[error(
        "`{file}` has a `{key}`: it is quantised already; quantise the original instead, or set the variant's `dtype`, which \
         converts while loading"
    )]
    Already {
        /// Configuration file of the checkpoint.
        file: String,
        /// The key that shows it.
        key: &'static str,
    },
    /// The checkpoint is a GGUF file.
    #[error(
        "`{}` is a GGUF file, and Hugging Face directories are quantised; set the variant's `dtype`, which converts while loading, or \
         use llama.cpp's llama-quantize",
        path.display()
    )]
    Gguf {
        /// Path of the checkpoint.
        path: PathBuf,
    },
    /// The target exists.
    #[error("`{}` exists already; name a new directory", path.display())]
    Exists {
        /// Path of the target.
        path: PathBuf,
    },
    /// The target is inside the checkpoint.
    #[error("`{}` is inside the checkpoint, whose files are copied there; name a directory outside it", path.display())]
    Inside {
        /// Path of the target.
        path: PathBuf,
    },
    /// No matrix can be divided into whole blocks.
    #[error("`{file}` has no matrix whose rows consist of blocks of 32 weights; nothing would be smaller")]
    Nothing {
        /// Weights of the checkpoint.
        file: String,
    },
    /// The target cannot be written.
    #[error("`{}` cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Message of the operating system.
        source: std::io::Error,
    },
}

/// A tensor of the new file, before it is written.
struct Planned {
    name: String,
    /// Shape in the original.
    before: Vec<usize>,
    /// Element type and shape, as in the header of the new file.
    dtype: String,
    shape: Vec<usize>,
    bytes: usize,
    /// Type to quantise to; `None` to copy the tensor.
    kind: Option<WeightType>,
}

/// Quantises the matrices of a Hugging Face directory to `kind` and writes the result to a new directory, with all
/// other files unchanged. Copies norms, biases, convolutions, routers, fused expert tensors, and matrices that cannot
/// be divided into whole blocks.
///
/// # Errors
/// [`QuantiseError`]; the new directory is then removed.
pub fn quantise(from: &Path, to: &Path, kind: WeightType) -> Result<Quantised, QuantiseError> {
    if !kind.is_quantised() {
        return Err(QuantiseError::NotQuantised(kind));
    }
    // The architecture determines which matrices are transposed, so it must be supported.
    architecture(from)?;
    if !from.join("config.json").exists() && SentenceModules::open(from)?.is_none() {
        return Err(QuantiseError::Gguf {
            path: from.to_owned(),
        });
    }
    let mut checkpoint = Checkpoint::open(from)?;
    let config = &checkpoint.config;
    if let Some(key) = stated_key(config) {
        return Err(QuantiseError::Already {
            file: config.file().to_owned(),
            key,
        });
    }
    let model_type = config.optional::<String>("model_type")?.unwrap_or_default();
    let known = TRANSPOSED.iter().find(|(name, _)| *name == model_type);
    let quantisation = Quantisation::new(kind, known.map_or(&[], |(_, names)| names));
    let raw = checkpoint.weights.raw();
    let planned: Vec<Planned> = raw.iter().map(|tensor| plan(tensor, &quantisation)).collect();
    let matrices = planned.iter().filter(|tensor| tensor.kind.is_some()).count();
    if matrices == 0 {
        return Err(QuantiseError::Nothing {
            file: checkpoint.weights.file().to_owned(),
        });
    }
    let report = Quantised {
        matrices,
        others: planned.len() - matrices,
        bytes_before: raw.iter().map(|tensor| tensor.bytes).sum(),
        bytes_after: planned.iter().map(|tensor| tensor.bytes as u64).sum(),
    };
    if to.exists() {
        return Err(QuantiseError::Exists { path: to.to_owned() });
    }
    if is_inside(to, from) {
        return Err(QuantiseError::Inside { path: to.to_owned() });
    }
    let partial = partial(to);
    // Left by an interrupted run of a process with the same id.
    let _ = std::fs::remove_dir_all(&partial);
    let written = write(from, &partial, &mut checkpoint, &planned, &quantisation);
    let written = written.and_then(|()| std::fs::rename(&partial, to).map_err(failed(to)));
    if let Err(error) = written {
        let _ = std::fs::remove_dir_all(&partial);
        return Err(error);
    }
    Ok(report)
}

/// Returns whether a path that does not exist yet would be inside an existing directory.
fn is_inside(path: &Path, directory: &Path) -> bool {
    // Folders that do not exist have no canonical form.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().find_map(|folder| folder.canonicalize().ok());
    let directory = directory.canonicalize().ok();
    existing
        .zip(directory)
        .is_some_and(|(existing, directory)| existing.starts_with(directory))
}

/// Returns the temporary directory next to `to`, which is renamed to `to` when it is complete.
fn partial(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    to.with_file_name(name)
}

/// Writes the new directory.
fn write(
    from: &Path,
    to: &Path,
    checkpoint: &mut Checkpoint,
    planned: &[Planned],
    quantisation: &Quantisation,
) -> Result<(), QuantiseError> {
    let folder = SentenceModules::open(from)?.map_or_else(String::new, |(_, folder)| folder);
    copy_others(from, to, Path::new(""), Path::new(&folder))?;
    let folder = to.join(&folder);
    write_config(checkpoint, &folder, quantisation)?;
    write_weights(
        checkpoint,
        &folder.join("model.safetensors"),
        planned,
        quantisation,
    )
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> QuantiseError {
    let path = path.to_owned();
    move |source| QuantiseError::Write {
        path: path.clone(),
        source,
    }
}

/// Decides whether a tensor is quantised or copied.
fn plan(tensor: &RawTensor, quantisation: &Quantisation) -> Planned {
    let mut planned = Planned {
        name: tensor.name.clone(),
        before: tensor.shape.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.clone(),
        bytes: usize::try_from(tensor.bytes).unwrap_or(usize::MAX),
        kind: None,
    };
    let &[mut rows, mut columns] = tensor.shape.as_slice() else {
        return planned;
    };
    if quantisation.is_transposed(&tensor.name) {
        (rows, columns) = (columns, rows);
    }
    let whole = columns > 0 && quantisation.kind.for_rows(columns, &[]).is_quantised();
    let contains = |parts: &[&str]| parts.iter().any(|part| tensor.name.contains(part));
    if !tensor.is_float || !whole || !tensor.name.ends_with(".weight") || contains(&OTHERS) {
        return planned;
    }
    if ROUTERS.iter().any(|router| tensor.name.ends_with(router)) {
        return planned;
    }
    let embeds = contains(&EMBEDDINGS) && !contains(&PROJECTIONS);
    let kind = if embeds {
        quantisation.kind.of_embeddings()
    } else {
        quantisation.kind
    };
    let line = kind.bytes(columns);
    "U8".clone_into(&mut planned.dtype);
    planned.shape = vec![rows, line];
    planned.bytes = rows * line;
    planned.kind = Some(kind);
    planned
}

/// Copies all files except configuration and weights of the folder `model`.
fn copy_others(from: &Path, to: &Path, inside: &Path, model: &Path) -> Result<(), QuantiseError> {
    let target = to.join(inside);
    std::fs::create_dir_all(&target).map_err(failed(&target))?;
    let source = from.join(inside);
    for entry in std::fs::read_dir(&source).map_err(failed(&source))? {
        let entry = entry.map_err(failed(&source))?;
        let (path, inside_file) = (entry.path(), inside.join(entry.file_name()));
        if path.is_dir() {
            copy_others(from, to, &inside_file, model)?;
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let replaced = inside == model
            && (name == "config.json"
                || name.ends_with(".safetensors")
                || name.ends_with(".safetensors.index.json")
                || is_of_pytorch(&name));
        if !replaced {
            let target = to.join(&inside_file);
            std::fs::copy(&path, &target).map_err(failed(&target))?;
        }
    }
    Ok(())
}

fn write_config(
    checkpoint: &Checkpoint,
    to: &Path,
    quantisation: &Quantisation,
) -> Result<(), QuantiseError> {
    let mut keys = checkpoint.config.keys().clone();
    keys.insert(KEY.to_owned(), json!(quantisation));
    let path = to.join("config.json");
    std::fs::write(&path, format!("{:#}\n", Value::Object(keys))).map_err(failed(&path))
}

/// Writes the tensors, one at a time.
fn write_weights(
    checkpoint: &mut Checkpoint,
    path: &Path,
    planned: &[Planned],
    quantisation: &Quantisation,
) -> Result<(), QuantiseError> {
    let failed = failed(path);
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in planned {
        let offsets = [offset, offset + tensor.bytes];
        header.insert(
            tensor.name.clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}),
        );
        offset += tensor.bytes;
    }
    let mut header = Value::Object(header).to_string();
    // The header is padded so that data begins at a multiple of 8 bytes.
    let padding = header.len().next_multiple_of(8) - header.len();
    header.extend(std::iter::repeat_n(' ', padding));
    let mut file = BufWriter::new(File::create(path).map_err(&failed)?);
    file.write_all(&(header.len() as u64).to_le_bytes())
        .map_err(&failed)?;
    file.write_all(header.as_bytes()).map_err(&failed)?;
    for tensor in planned {
        let bytes = match tensor.kind {
            None => checkpoint.weights.bytes_of(&tensor.name)?,
            Some(kind) => {
                let mut values = checkpoint.weights.copy(&tensor.name, &tensor.before)?;
                if let ([_, columns], true) = (&tensor.before[..], quantisation.is_transposed(&tensor.name)) {
                    values = transposed(&values, *columns);
                }
                encode(&values, kind)
            }
        };
        file.write_all(&bytes).map_err(&failed)?;
    }
    file.flush().map_err(&failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_choose_experts_and_norms_of_heads_are_copied() {
        let kind = |name: &str| {
            let tensor = RawTensor {
                name: format!("model.layers.0.{name}.weight"),
                dtype: "F32".to_owned(),
                shape: vec![8, 64],
                bytes: 4 * 8 * 64,
                is_float: true,
            };
            plan(&tensor, &Quantisation::new(WeightType::Q8_0, &[])).kind
        };
        for name in [
            "mlp.gate",
            "mlp.router",
            "block_sparse_moe.router.layer",
            "mlp.shared_expert_gate",
            "self_attn.q_norm",
            "self_attn.k_norm",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
        for name in [
            "mlp.gate_proj",
            "self_attn.kv_a_proj_with_mqa",
            "self_attn.q_proj",
        ] {
            assert_eq!(kind(name), Some(WeightType::Q8_0), "{name}");
        }
    }
}
