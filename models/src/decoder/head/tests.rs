use std::collections::HashMap;
use std::path::PathBuf;

use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize};

use crate::checkpoint::Checkpoint;
use crate::decoder::registry;
use crate::decoder::weights::Decoder;

const EMBEDDING: &str = "model.embed_tokens.weight";

fn file(name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(root.join("fixtures/gemma2").join(name)).unwrap()
}

/// Reads a tied checkpoint whose file also has a head, which `change` makes from the embedding.
fn with_head(change: impl FnOnce(&mut [u8])) -> Decoder {
    let weights = file("model.safetensors");
    let stored = SafeTensors::deserialize(&weights).unwrap();
    let embedding = stored.tensor(EMBEDDING).unwrap();
    let mut head = embedding.data().to_vec();
    change(&mut head);
    let head = TensorView::new(embedding.dtype(), embedding.shape().to_vec(), &head).unwrap();
    let mut tensors: HashMap<String, TensorView<'_>> = stored
        .iter()
        .map(|(name, view)| (name.to_owned(), view))
        .collect();
    tensors.insert("lm_head.weight".to_owned(), head);
    let weights = serialize(&tensors, None).unwrap();
    let checkpoint = Checkpoint::from_bytes("gemma2", &file("config.json"), weights, None).unwrap();
    registry::read_decoder(checkpoint).unwrap()
}

/// A head that was trained apart from the embedding was dropped without a word, although the configuration still says that they are tied.
#[test]
fn a_stored_head_is_used_if_it_differs_from_the_embedding() {
    assert!(with_head(|_| ()).head.shared);
    let untied = with_head(|head| {
        let (last, _) = head.as_chunks_mut::<4>();
        *last.last_mut().unwrap() = 5.0_f32.to_le_bytes();
    });
    assert!(!untied.head.shared);
    // The weight is stored by input: its last element is that of the last token and the last hidden value.
    assert_eq!(untied.head.weight.last(), Some(&5.0));
}
