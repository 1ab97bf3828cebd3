//! Tests of sizes in configurations that would exhaust the memory.

use crate::architectures::registry::partitioning;
use crate::checkpoint::LoadError;

/// Returns the error for a configuration, from the partitioning, which describes all layers.
fn refused_key(config: &serde_json::Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    match partitioning(dir.path()) {
        Err(LoadError::BadKey { key, .. }) => key,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absurd_numbers_of_layers_are_refused() {
    let mut config = serde_json::json!({
        "architectures": ["BertModel"], "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8,
        "max_position_embeddings": 8, "num_hidden_layers": 1 << 24,
    });
    assert_eq!(refused_key(&config), "num_hidden_layers");
    config["architectures"] = serde_json::json!(["AlbertModel"]);
    config["embedding_size"] = 8.into();
    config["num_hidden_layers"] = 10_000.into();
    config["inner_group_num"] = (1 << 24).into();
    assert_eq!(refused_key(&config), "inner_group_num");
    let encoder = serde_json::json!({
        "architectures": ["T5EncoderModel"], "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 8, "vocab_size": 8, "num_layers": 1 << 24,
    });
    assert_eq!(refused_key(&encoder), "num_layers");
}
