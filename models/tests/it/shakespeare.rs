//! The committed Shakespeare family: a snapshot of its texts, and its confidence in predictable words.

use std::path::Path;

use kaskade_models::generation::SamplingOptions;
use kaskade_models::{Device, Generation, LoadOptions, Loaded, Outputs, Task, Tensor, load};

const VARIANTS: [&str; 3] = ["shakespeare-pico", "shakespeare-mini", "shakespeare-base"];

fn loaded(variant: &str, max_tokens: usize, stop: &[&str]) -> Loaded {
    let options = LoadOptions {
        generation: Generation {
            sampling: SamplingOptions {
                max_tokens: Some(max_tokens),
                stop: Some(stop.iter().map(ToString::to_string).collect()),
                ..SamplingOptions::default()
            },
            ..Generation::default()
        },
        ..LoadOptions::default()
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shakespeare/weights");
    load(&folder.join(variant), &Device::Cpu, &options).unwrap()
}

fn ask(loaded: &mut Loaded, text: &str) -> Outputs {
    let request = vec![Tensor::from_texts("text", &[text]).unwrap()];
    loaded.model.run(&[request]).remove(0).unwrap()
}

fn text(outputs: &Outputs) -> String {
    let text = outputs.iter().find(|output| output.name == "text").unwrap();
    text.to_texts().unwrap()[0].to_owned()
}

fn confidence(outputs: &Outputs) -> f32 {
    let confidence = outputs.iter().find(|output| output.name == "confidence").unwrap();
    confidence.to_f32().unwrap()[0]
}

#[test]
fn continuations() {
    let answers = VARIANTS.map(|variant| {
        let mut loaded = loaded(variant, 48, &[]);
        assert_eq!(loaded.info.task, Task::Generation);
        let outputs = ask(&mut loaded, "KING RICHARD III:\nMy lord, ");
        format!("{variant} ({:.2}): {:?}", confidence(&outputs), text(&outputs))
    });
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn an_almost_complete_word_has_a_higher_confidence_than_a_new_one() {
    for variant in VARIANTS {
        let mut loaded = loaded(variant, 8, &[" ", ",", "\n", "."]);
        let almost_complete = ask(&mut loaded, "I know not what to say to my lor");
        let new = ask(&mut loaded, "I know not what to say to my ");
        if variant == "shakespeare-base" {
            assert_eq!((text(&almost_complete), text(&new)), ("d".into(), "lord".into()));
        }
        assert!(confidence(&almost_complete) > confidence(&new), "{variant}");
    }
}
