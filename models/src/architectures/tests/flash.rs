//! Tests of RoBERTa with the tensor names of Jina's flash attention code.

use std::path::Path;

use super::{Owned, config_with, edited, load_parts};
use crate::selftest::fixtures::Fixture;

/// Renames the tensors of a RoBERTa, and fuses its three projections.
fn with_flash_names(tensors: &mut Vec<Owned>) {
    let parts = [
        (".layer.", ".layers."),
        (".embeddings.LayerNorm.", ".emb_ln."),
        (".attention.output.dense.", ".mixer.out_proj."),
        (".attention.output.LayerNorm.", ".norm1."),
        (".intermediate.dense.", ".mlp.fc1."),
        (".output.dense.", ".mlp.fc2."),
        (".output.LayerNorm.", ".norm2."),
        (".attention.self.query.", ".mixer.Wqkv."),
    ];
    let projections = [".self.key.", ".self.value."];
    for place in 0..tensors.len() {
        let name = tensors[place].0.clone();
        if name.contains(".self.query.") {
            for other in projections {
                let own = name.replace(".self.query.", other);
                let data = tensors.iter().find(|(name, ..)| *name == own).unwrap().3.clone();
                tensors[place].3.extend(data);
            }
            tensors[place].2[0] *= 3;
        }
    }
    tensors.retain(|(name, ..)| !projections.iter().any(|projection| name.contains(projection)));
    for (name, ..) in tensors.iter_mut() {
        for (theirs, own) in parts {
            *name = name.replace(theirs, own);
        }
    }
}

#[test]
fn a_table_of_positions_is_read_under_the_names_of_flash_attention() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/xlm-roberta");
    let read = |file: &str| -> &'static [u8] { std::fs::read(dir.join(file)).unwrap().leak() };
    let fixture = Fixture {
        name: "xlm-roberta",
        config: read("config.json"),
        weights: read("model.safetensors"),
        tokenizer: None,
        expected: read("expected.json"),
    };
    let config = config_with(&fixture, "use_flash_attn", serde_json::json!(true));
    let mut loaded = load_parts(&fixture, &config, edited(&fixture, with_flash_names)).unwrap();
    let parity = fixture.compare_model(loaded.model.as_mut()).unwrap();
    assert!(
        parity.cases >= 3 && parity.largest_difference < 1e-4,
        "{parity:?}"
    );
    // Files of transformers have no such key.
    assert!(load_parts(&fixture, fixture.config, fixture.weights.to_vec()).is_ok());
}
