//! Defaults of a request: EOS tokens, temperature, special tokens.

use std::path::Path;

use super::{BEGINNING, directory, loaded, model, number, of, output, text, tokens};
use crate::generation::Cpu;
use crate::language::*;

#[test]
fn the_end_of_sequence_of_the_tokenizer_ends_answers_too() {
    let ask = |model: &mut LanguageModel<Cpu>| {
        let answered = model.run(&[vec![text("one"), number("max_tokens", 12)]]);
        answered.into_iter().next().unwrap().unwrap()
    };
    let mut plain = model(|_| ());
    let end = u32::try_from(tokens(&ask(&mut plain))[3]).unwrap();
    let end = plain
        .prompts
        .tokenizer
        .as_ref()
        .unwrap()
        .id_to_token(end)
        .unwrap();
    let stated = serde_json::json!({"eos_token": end}).to_string();
    let answered = ask(&mut of(&directory(&[("tokenizer_config.json", &stated)])));
    assert!(tokens(&answered).len() <= 4, "{answered:?}");
    assert_eq!(output(&answered, "end").to_texts().unwrap(), ["token"]);
}

#[test]
fn texts_that_end_answers_are_read_from_the_checkpoint_and_held_off() {
    let mut plain = model(|_| ());
    let ask = |model: &mut LanguageModel<Cpu>, more: Vec<Tensor>| {
        let mut inputs = vec![text("one"), number("max_tokens", 24), number("top_logprobs", 0)];
        inputs.extend(more);
        model.run(&[inputs]).remove(0).unwrap()
    };
    let whole = ask(&mut plain, vec![]);
    let stop = output(&whole, "token_texts").to_texts().unwrap()[2].to_owned();
    let stated = serde_json::json!({"stop_strings": [stop]}).to_string();
    let mut ending = of(&directory(&[("generation_config.json", &stated)]));
    let ended = ask(&mut ending, vec![]);
    assert!(tokens(&ended).len() <= 3, "{ended:?}");
    assert_eq!(output(&ended, "end").to_texts().unwrap(), ["stop"]);
    let held_off = ask(&mut ending, vec![number("min_tokens", 5)]);
    assert!(tokens(&held_off).len() > 5, "{held_off:?}");
    let none = ask(&mut ending, vec![Tensor::from_texts("stop", &[]).unwrap()]);
    assert_eq!(tokens(&none), tokens(&whole), "a request replaces them");
    let refused = plain.run(&[vec![
        text("one"),
        number("min_tokens", 5),
        number("max_tokens", 4),
    ]]);
    let error = refused[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("`min_tokens`"), "{error}");
}

#[test]
fn a_request_that_says_what_to_sample_from_is_sampled() {
    let mut model = model(|generation| generation.sampling.max_tokens = Some(40));
    let float = |name: &str, value: f32| Tensor::from_f32(name, &[1], &[value]).unwrap();
    let mut ask = |more: Vec<Tensor>| {
        let mut inputs = vec![text("one")];
        inputs.extend(more);
        tokens(&model.run(&[inputs]).remove(0).unwrap())
    };
    let greedy = ask(vec![]);
    assert_eq!(ask(vec![number("default_seed", 5)]), greedy);
    assert_eq!(ask(vec![float("top_p", 1.0)]), greedy, "neutral");
    assert_eq!(ask(vec![float("top_p", 0.9), float("temperature", 0.0)]), greedy);
    for (name, value) in [("top_p", 0.9), ("min_p", 0.01), ("default_temperature", 1.0)] {
        assert_ne!(ask(vec![float(name, value)]), greedy, "{name}");
    }
    let choice = |seed| vec![number("top_k", 20), number("default_seed", seed)];
    assert_ne!(ask(choice(1)), ask(choice(2)));
    let own = ask(vec![float("temperature", 0.0), float("default_temperature", 1.0)]);
    assert_eq!(own, greedy);
}

#[test]
fn special_tokens_are_added_as_the_request_says() {
    let json = std::fs::read_to_string(directory(&[]).path().join("tokenizer.json")).unwrap();
    let json = json.replace(r#""post_processor":null"#, BEGINNING);
    let template = ("chat_template.jinja", "{{ messages[0].content }}");
    let model = of(&directory(&[("tokenizer.json", &json), template]));
    let ids = |name: &str, value: &str, adds: Option<bool>| {
        let mut inputs = vec![Tensor::from_texts(name, &[value]).unwrap()];
        inputs.extend(adds.map(|adds| Tensor {
            name: "add_special_tokens".to_owned(),
            shape: vec![1],
            datatype: crate::Datatype::Bool,
            data: vec![u8::from(adds)].into(),
        }));
        model.signature().check(&inputs).unwrap();
        model.prompts.tokens(&inputs).unwrap()
    };
    let chat = r#"[{"role": "user", "content": "one"}]"#;
    let without = ids("text", "one", Some(false));
    assert_ne!(without[0], 0);
    assert_eq!(ids("text", "one", None), [&[0], without.as_slice()].concat());
    assert_eq!(ids("messages", chat, None), without);
    assert_eq!(ids("messages", chat, Some(true)), ids("text", "one", None));
}

#[test]
fn the_default_of_max_tokens_is_lowered_to_what_the_cache_leaves() {
    let fixture = |name: &str| {
        Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
    };
    for name in ["t5", "gpt2"] {
        let mut model = loaded(fixture(name), |generation| {
            generation.sampling.max_tokens = None;
            generation.cache_bytes = 40_000;
            generation.max_num_seqs = 1;
        });
        for prompt in 1..=model.engine.longest_prompt() {
            let ids = vec![7; prompt];
            let inputs = vec![Tensor::from_i64("input_ids", &[prompt], &ids).unwrap()];
            let answered = model.run(&[inputs]).remove(0);
            let is_full = prompt == model.engine.longest_prompt();
            assert_eq!(
                answered.is_err(),
                is_full,
                "{name}, {prompt} tokens: {answered:?}"
            );
        }
    }
}
