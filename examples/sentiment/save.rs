//! Checkpoints as Hugging Face directories.

use std::error::Error;
use std::path::Path;

use burn::store::{
    BurnToPyTorchAdapter, HalfPrecisionAdapter, ModuleAdapter, ModuleSnapshot, SafetensorsStore,
};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use crate::network::{Bert, EPSILON, Extents};

/// What the network calls its tensors, and what a `BertForSequenceClassification` does.
const NAMES: [(&str, &str); 14] = [
    (r"^words\.", "bert.embeddings.word_embeddings."),
    (r"^positions\.", "bert.embeddings.position_embeddings."),
    (r"^types\.", "bert.embeddings.token_type_embeddings."),
    (r"^norm\.", "bert.embeddings.LayerNorm."),
    (r"^layers\.", "bert.encoder.layer."),
    (r"\.query\.", ".attention.self.query."),
    (r"\.key\.", ".attention.self.key."),
    (r"\.value\.", ".attention.self.value."),
    (r"\.attended\.", ".attention.output.dense."),
    (r"\.attended_norm\.", ".attention.output.LayerNorm."),
    (r"\.up\.", ".intermediate.dense."),
    (r"\.down\.", ".output.dense."),
    (r"\.fed_norm\.", ".output.LayerNorm."),
    (r"^pooler\.", "bert.pooler.dense."),
];

/// Writes a network and its tokenizer.
pub(crate) fn save(
    directory: &Path,
    extents: &Extents,
    labels: &[&str],
    network: &Bert,
    tokenizer: &Tokenizer,
) -> Result<(), Box<dyn Error>> {
    let id2label: Map<String, Value> = (0..)
        .zip(labels)
        .map(|(id, label): (usize, _)| (id.to_string(), Value::from(*label)))
        .collect();
    let config = json!({
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": extents.shape.width,
        "intermediate_size": extents.shape.inner(),
        "layer_norm_eps": EPSILON,
        "max_position_embeddings": extents.context,
        "num_attention_heads": extents.shape.heads,
        "num_hidden_layers": extents.shape.layers,
        "type_vocab_size": 1,
        "vocab_size": extents.vocabulary,
        "id2label": id2label,
    });
    std::fs::create_dir_all(directory)?;
    std::fs::write(
        directory.join("config.json"),
        serde_json::to_string_pretty(&config)? + "\n",
    )?;
    tokenizer
        .save(directory.join("tokenizer.json"), false)
        .map_err(|error| format!("tokenizer.json cannot be written: {error}"))?;
    // Half precision: it halves what the repository carries, and no prediction hangs on the bits it drops.
    let store = SafetensorsStore::from_file(directory.join("model.safetensors"))
        .overwrite(true)
        .with_to_adapter(BurnToPyTorchAdapter.chain(HalfPrecisionAdapter::new()));
    let mut store = NAMES.iter().fold(store, |store, (ours, theirs)| {
        store.with_key_remapping(ours, *theirs)
    });
    network.save_into(&mut store)?;
    Ok(())
}
