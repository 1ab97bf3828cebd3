//! Response formats, tools, logit biases and minimum lengths.

use super::{loaded, model, number, output, text, tokens};
use crate::generation::Cpu;
use crate::language::*;
use std::path::Path;

/// Returns a model whose vocabulary is all bytes.
fn model_of_bytes(change: impl FnOnce(&mut Generation)) -> LanguageModel<Cpu> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shakespeare/weights/shakespeare-pico");
    loaded(Checkpoint::open(&folder).unwrap(), change)
}

fn answered(model: &mut LanguageModel<Cpu>, inputs: Inputs) -> Result<Outputs, ModelError> {
    model.run(&[inputs]).pop().unwrap()
}

#[test]
fn answers_have_the_requested_format() {
    const FORMAT: &str = r#"{"type": "json_schema", "json_schema": {"schema": {"type": "object",
        "properties": {"sure": {"type": "boolean"}, "n": {"enum": [1, 22]}}, "required": ["sure", "n"], "additionalProperties": false}}}"#;
    let mut model = model_of_bytes(|generation| {
        generation.sampling.max_tokens = Some(200);
        // The app's stop texts would truncate the answers.
        generation.sampling.stop = Some(vec!["\"".to_owned(), " ".to_owned()]);
    });
    let format = |json: &str| Tensor::from_texts(response_format::RESPONSE_FORMAT, &[json]).unwrap();
    for temperature in [0.0, 2.0] {
        let warm = Tensor::from_f32("temperature", &[1], &[temperature]).unwrap();
        let outputs = answered(&mut model, vec![text("to be"), warm, format(FORMAT)]).unwrap();
        let said = output(&outputs, "text").to_texts().unwrap().concat();
        let value: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"));
        assert!(
            value["sure"].is_boolean() && [1, 22].contains(&value["n"].as_i64().unwrap()),
            "{said}"
        );
        assert_eq!(output(&outputs, "end").to_texts().unwrap(), ["token"]);
    }
    // Several concurrent answers with different formats.
    let choice = |word: &str| {
        vec![
            text("to be"),
            format(&format!(r#"{{"type": "choice", "choice": ["{word}"]}}"#)),
        ]
    };
    let outputs = model.run(&[choice("yes"), vec![text("to be")], choice("perhaps not")]);
    let said = |place: usize| {
        output(outputs[place].as_ref().unwrap(), "text")
            .to_texts()
            .unwrap()
            .concat()
    };
    assert_eq!((said(0).as_str(), said(2).as_str()), ("yes", "perhaps not"));
    for bad in [r#"{"type": "xml"}"#, r#"{"type": "regex", "regex": "("}"#] {
        let error = answered(&mut model, vec![text("to be"), format(bad)]).unwrap_err();
        assert!(
            matches!(&error, ModelError::BadInput { name, .. } if name == "response_format"),
            "{error}"
        );
    }
}

#[test]
fn a_biased_token_is_preferred_or_avoided() {
    let mut model = model(|generation| generation.sampling.max_tokens = Some(3));
    let bias = |token: i64, bias: f32| {
        vec![
            text("to be"),
            Tensor::from_i64("logit_bias_tokens", &[1], &[token]).unwrap(),
            Tensor::from_f32("logit_bias", &[1], &[bias]).unwrap(),
        ]
    };
    assert_eq!(tokens(&answered(&mut model, bias(7, 100.0)).unwrap()), [7, 7, 7]);
    let first = tokens(&answered(&mut model, vec![text("to be")]).unwrap())[0];
    assert_ne!(
        tokens(&answered(&mut model, bias(first, -100.0)).unwrap())[0],
        first
    );
    for bad in [
        bias(7, 101.0),
        bias(7, f32::NAN),
        bias(-1, 1.0),
        bias(7, 1.0).into_iter().step_by(2).collect(),
    ] {
        let refused = answered(&mut model, bad);
        assert!(refused.unwrap_err().to_string().contains("logit_bias"));
    }
}

#[test]
fn required_tools_are_called() {
    const TOOLS: &str = r##"[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"], "additionalProperties": false,
        "$defs": {"city": {"enum": ["Paris", "Oslo"]}}}}}, {"type": "function", "function": {"name": "clock"}}]"##;
    let mut model = model_of_bytes(|generation| generation.sampling.max_tokens = Some(400));
    let texts = |name: &str, value: &str| Tensor::from_texts(name, &[value]).unwrap();
    // Favours `]`, because the model would otherwise list calls until `max_tokens`.
    let close = model
        .prompts
        .tokenizer
        .as_ref()
        .unwrap()
        .token_to_id("]")
        .unwrap();
    let ask = |choice: &str, seed: i64| {
        vec![
            text("to be"),
            Tensor::from_f32("temperature", &[1], &[1.5]).unwrap(),
            number("seed", seed),
            Tensor::from_i64("logit_bias_tokens", &[1], &[i64::from(close)]).unwrap(),
            Tensor::from_f32("logit_bias", &[1], &[8.0]).unwrap(),
            texts(tools::TOOLS, TOOLS),
            texts(tools::TOOL_CHOICE, choice),
        ]
    };
    for (choice, most) in [
        ("required", 32),
        (r#"{"type": "function", "function": {"name": "weather"}}"#, 1),
    ] {
        // A random model may not stop before `max_tokens`.
        let mut answers = (0..20).map(|seed| answered(&mut model, ask(choice, seed)).unwrap());
        let outputs = answers
            .find(|outputs| output(outputs, "end").to_texts().unwrap() == ["token"])
            .unwrap();
        assert_eq!(output(&outputs, "text").to_texts().unwrap(), [""]);
        let calls = output(&outputs, tools::TOOL_CALLS).to_texts().unwrap();
        assert!((1..=most).contains(&calls.len()), "{calls:?}");
        for call in calls {
            let call: serde_json::Value = serde_json::from_str(call).unwrap();
            let cities = ["Paris", "Oslo"].map(serde_json::Value::from);
            assert!(
                call["name"] == "clock" && most > 1 || cities.contains(&call["arguments"]["city"]),
                "{call}"
            );
        }
    }
    let auto = answered(&mut model, ask("auto", 0)).unwrap();
    assert!(
        auto.iter().all(|output| output.name != tools::TOOL_CALLS),
        "a random model calls nothing"
    );
}

/// The model of bytes with a chat template that shows how calls are written.
fn model_that_calls(template: &str) -> LanguageModel<Cpu> {
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shakespeare/weights/shakespeare-pico");
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(weights).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    loaded(Checkpoint::open(folder.path()).unwrap(), |generation| {
        generation.sampling.max_tokens = Some(200);
    })
}

/// A format was refused beside tools that the model may call.
#[test]
fn an_answer_is_of_the_format_or_a_call() {
    const TOOLS: &str = r#"[{"type": "function", "function": {"name": "clock"}}]"#;
    const FORMAT: &str = r#"{"type": "json_schema", "json_schema": {"schema": {"type": "object",
        "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": false}}}"#;
    let mut model = model_that_calls("{{ tools }}<tool_call></tool_call>{{ messages }}");
    let texts = |name: &str, value: &str| Tensor::from_texts(name, &[value]).unwrap();
    let token = |model: &LanguageModel<Cpu>, text: &str| {
        let tokenizer = model.prompts.tokenizer.as_ref().unwrap();
        i64::from(tokenizer.token_to_id(text).unwrap())
    };
    let inputs = |format: &str, preferred: i64| {
        vec![
            text("to be"),
            Tensor::from_i64("logit_bias_tokens", &[1], &[preferred]).unwrap(),
            Tensor::from_f32("logit_bias", &[1], &[50.0]).unwrap(),
            texts(tools::TOOLS, TOOLS),
            texts(response_format::RESPONSE_FORMAT, format),
        ]
    };
    let (open, less, letter) = (token(&model, "{"), token(&model, "<"), token(&model, "t"));
    let said = |outputs: Outputs| output(&outputs, "text").to_texts().unwrap().concat();
    let first = said(answered(&mut model, inputs(FORMAT, open)).unwrap());
    let value: serde_json::Value = serde_json::from_str(&first).unwrap_or_else(|_| panic!("{first}"));
    assert!(value["sure"].is_boolean(), "{value}");
    let called = said(answered(&mut model, inputs(FORMAT, less)).unwrap());
    assert!(called.starts_with("<tool_call>"), "{called}");
    // What is neither cannot be said, however probable it is.
    let neither = said(answered(&mut model, inputs(FORMAT, letter)).unwrap());
    assert!(neither.starts_with(['{', '<']), "{neither}");
    for (format, accepted) in [
        (
            r#"{"type": "choice", "choice": ["{yes", "{no"]}"#,
            &["{yes", "{no"][..],
        ),
        (r#"{"type": "regex", "regex": "\\{a{3}"}"#, &["{aaa"][..]),
        (
            r#"{"type": "grammar", "grammar": "start: \"{\" end\nend: \"b\""}"#,
            &["{b"][..],
        ),
    ] {
        let said = said(answered(&mut model, inputs(format, open)).unwrap());
        assert!(accepted.contains(&said.as_str()), "{said}");
    }
    // Nothing tells a call without a mark from the format.
    let mut bare = model_that_calls("{{ tools }}{{ messages }}");
    let refused = answered(&mut bare, inputs(FORMAT, open)).unwrap_err();
    assert!(
        matches!(&refused, ModelError::BadInput { name, .. } if name == "response_format"),
        "{refused}"
    );
}

#[test]
fn tools_whose_calls_cannot_be_written_are_named() {
    let mut model = model_of_bytes(|_| ());
    let tool = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}}}]"#;
    let inputs = [("text", "to be"), ("tools", tool), ("tool_choice", "required")];
    let inputs = inputs.map(|(name, value)| Tensor::from_texts(name, &[value]).unwrap());
    let refused = answered(&mut model, inputs.to_vec()).unwrap_err();
    assert!(
        matches!(&refused, ModelError::BadInput { name, .. } if name == "tools"),
        "{refused}"
    );
}

#[test]
fn an_answer_has_its_minimum_of_tokens() {
    let mut model = model(|generation| generation.sampling.max_tokens = Some(8));
    let end = i64::from(model.engine.model_config().eos_token_ids[0]);
    let ended = |least: i64| {
        vec![
            text("to be"),
            number("min_tokens", least),
            Tensor::from_i64("logit_bias_tokens", &[1], &[end]).unwrap(),
            Tensor::from_f32("logit_bias", &[1], &[100.0]).unwrap(),
        ]
    };
    for (least, expected) in [(0, 1), (1, 2), (5, 6), (20, 8)] {
        let found = tokens(&answered(&mut model, ended(least)).unwrap());
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(found.iter().take(least as usize).all(|token| *token != end));
    }
}
