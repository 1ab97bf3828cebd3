//! The committed T5 family answers with one word.

use std::path::Path;

use kaskade_models::generation::SamplingOptions;
use kaskade_models::{Device, Generation, LoadOptions, Task, Tensor, load};

const REVIEWS: [(&str, &str); 4] = [
    ("a warm , funny and moving film", "positive"),
    ("a dull , stupid and lifeless mess", "negative"),
    ("one of the best performances of the year", "positive"),
    ("too long , too slow and not funny at all", "negative"),
];

#[test]
fn each_variant_answers_with_one_word() {
    let options = LoadOptions {
        generation: Generation {
            sampling: SamplingOptions {
                max_tokens: Some(4),
                ..SamplingOptions::default()
            },
            ..Generation::default()
        },
        ..LoadOptions::default()
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/critics/weights");
    let mut lines = Vec::new();
    for variant in ["critics-pico", "critics-mini"] {
        let mut loaded = load(&folder.join(variant), &Device::Cpu, &options).unwrap();
        assert_eq!(loaded.info.task, Task::Generation);
        let request =
            |(film, _)| vec![Tensor::from_texts("text", &[&format!("sst2 sentence: {film}")]).unwrap()];
        let answers = loaded.model.run(&REVIEWS.map(request));
        for (outputs, (film, expected)) in answers.into_iter().zip(REVIEWS) {
            let outputs = outputs.unwrap();
            let output = |name: &str| outputs.iter().find(|output| output.name == name).unwrap();
            let text = output("text").to_texts().unwrap()[0].trim().to_owned();
            assert_eq!(text, expected, "{variant}: {film}");
            assert!(
                output("tokens").to_i64().unwrap().len() < 4,
                "{variant} does not end"
            );
            let confidence = output("confidence").to_f32().unwrap()[0];
            lines.push(format!("{variant} ({confidence:.2}) {text}: {film}"));
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}
