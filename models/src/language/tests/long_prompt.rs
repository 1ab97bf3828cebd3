//! Prompts longer than the training length of an encoder with relative positions.

use std::path::Path;

use super::{loaded, number, tokens};
use crate::checkpoint::Checkpoint;
use crate::language::*;

#[test]
fn a_stated_maximum_raises_that_of_an_encoder_with_distances() {
    for name in ["t5", "umt5"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let ask = |stated: Option<usize>, count: usize| {
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let mut model = loaded(checkpoint, |generation| generation.max_model_len = stated);
            let ids: Vec<i64> = (0..).map(|place| 3 + place % 60).take(count).collect();
            let ids = Tensor::from_i64("input_ids", &[count], &ids).unwrap();
            let more = [number("max_tokens", 4), number("min_tokens", 4)];
            model.run(&[[vec![ids], more.to_vec()].concat()]).remove(0)
        };
        let refused = ask(None, 600).unwrap_err().to_string();
        assert!(refused.contains("has 600"), "{name}: {refused}");
        assert_eq!(tokens(&ask(Some(700), 600).unwrap()).len(), 4, "{name}");
        // Requests that fit get the same answer as before.
        let answer = tokens(&ask(None, 80).unwrap());
        assert_eq!(tokens(&ask(Some(700), 80).unwrap()), answer, "{name}");
    }
}
