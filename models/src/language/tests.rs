mod answers;
mod default;
mod format;
mod long_prompt;

use std::path::Path;

use kaskade_policy::hybrid_cache::Kind;

use super::*;
use crate::generation::Cpu;

/// Returns a small random GPT-2 checkpoint saved by transformers.
fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gpt2")).unwrap()
}

pub(super) fn model(change: impl FnOnce(&mut Generation)) -> LanguageModel<Cpu> {
    loaded(checkpoint(), change)
}

pub(super) fn loaded(checkpoint: Checkpoint, change: impl FnOnce(&mut Generation)) -> LanguageModel<Cpu> {
    let mut generation = Generation {
        sampling: SamplingOptions {
            max_tokens: Some(24),
            ..SamplingOptions::default()
        },
        ..Generation::default()
    };
    change(&mut generation);
    LanguageModel::new(Cpu, checkpoint, &generation).unwrap().0
}

pub(super) fn text(text: &str) -> Tensor {
    Tensor::from_texts("text", &[text]).unwrap()
}

pub(super) fn number(name: &str, value: i64) -> Tensor {
    Tensor::from_i64(name, &[1], &[value]).unwrap()
}

pub(super) fn output<'a>(outputs: &'a Outputs, name: &str) -> &'a Tensor {
    outputs.iter().find(|output| output.name == name).unwrap()
}

pub(super) fn tokens(outputs: &Outputs) -> Vec<i64> {
    output(outputs, "tokens").to_i64().unwrap()
}

/// Bytes of a KV block: 16 tokens in two layers, 24 wide.
const BLOCK_BYTES: u64 = 2 * 16 * 2 * 24 * 4;

#[test]
fn the_cache_is_a_bound() {
    let model = model(|generation| generation.cache_bytes = 3 * BLOCK_BYTES + 5);
    assert_eq!(
        model.engine.model_config().context,
        48,
        "the cache holds 48 tokens"
    );
    assert_eq!(model.engine.blocks(), (3, 3));
    let rejected = |change: fn(&mut Generation)| {
        let mut generation = Generation::default();
        change(&mut generation);
        LanguageModel::new(Cpu, checkpoint(), &generation)
            .err()
            .unwrap()
            .to_string()
    };
    let small = rejected(|generation| generation.cache_bytes = BLOCK_BYTES - 1);
    assert!(small.contains("holds 0 tokens"), "{small}");
    let long = rejected(|generation| {
        generation.cache_bytes = 2 * BLOCK_BYTES;
        generation.max_model_len = Some(33);
    });
    assert!(long.contains("too few for max_model_len = 33"), "{long}");
}

#[test]
fn the_cache_is_a_bound_in_host_memory_too() {
    for (name, layers) in [("gpt2", 2), ("llama", 3)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let generation = Generation {
            cache_bytes: 20 * BLOCK_BYTES,
            device_bytes: Some(1 << 30),
            ..Generation::default()
        };
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let (mut model, _) = LanguageModel::new(Cpu, checkpoint, &generation).unwrap();
        let config = model.engine.config().clone();
        let bytes = |kind| {
            let decoder = model.engine.model_config();
            crate::generation::config::block_bytes(decoder, layers, config.block_tokens, kind)
        };
        let host = config.capacity.host;
        let taken = host.act as u64 * bytes(Kind::Act) + host.kv as u64 * bytes(Kind::Kv);
        assert!(taken <= generation.cache_bytes, "{name}: {host:?} take {taken}");
        assert!(host.total() > 5, "{name}: {host:?}");
        // The longest accepted request gets an answer.
        let context = model.engine.model_config().context;
        let ids = Tensor::from_i64("input_ids", &[context - 2], &vec![3; context - 2]).unwrap();
        let answered = model
            .run(&[vec![ids, number("max_tokens", 2), number("min_tokens", 2)]])
            .remove(0);
        assert_eq!(tokens(&answered.unwrap()).len(), 2, "{name}");
    }
}

#[test]
fn recurrent_states_count_in_the_cache() {
    let load = |generation: &Generation| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lfm2");
        LanguageModel::new(Cpu, Checkpoint::open(&folder).unwrap(), generation)
    };
    // State: three tokens of two layers, 32 wide. Block: keys and values of 16 tokens in one layer, 16 wide each.
    let (state, block) = (2 * 3 * 32 * 4, 16 * 2 * 16 * 4);
    let cache_bytes = 8 * state;
    let (model, _) = load(&Generation {
        cache_bytes,
        ..Generation::default()
    })
    .unwrap();
    assert_eq!(model.engine.config().requests, 4);
    let blocks = usize::try_from((cache_bytes - 4 * state) / block).unwrap();
    assert_eq!(model.engine.blocks(), (blocks, blocks));
    let small = load(&Generation {
        cache_bytes: state - 1,
        ..Generation::default()
    });
    let error = small.err().unwrap().to_string();
    let wanted = format!("set `cache` to {} bytes at least", 2 * state);
    assert!(error.contains(&wanted), "{error}");
}

#[test]
fn requests_beyond_max_model_len_are_refused() {
    let mut model = model(|generation| generation.max_model_len = Some(20));
    let ids = |count: usize| Tensor::from_i64("input_ids", &[count], &vec![3; count]).unwrap();
    let mut ask = |count, answer| {
        model
            .run(&[vec![ids(count), number("max_tokens", answer)]])
            .remove(0)
    };
    assert_eq!(tokens(&ask(12, 8).unwrap()).len(), 8);
    for (count, answer) in [(12, 9), (21, 1)] {
        let refused = ask(count, answer).unwrap_err();
        assert!(matches!(refused, ModelError::TooLong { .. }), "{refused}");
    }
}

#[test]
fn the_default_length_of_an_answer_is_what_the_context_leaves() {
    let mut model = model(|_| ());
    let context = model.engine.model_config().context;
    let long = Tensor::from_i64("input_ids", &[context - 5], &vec![3; context - 5]).unwrap();
    let answered = model.run(&[vec![long.clone()]]).remove(0).unwrap();
    assert_eq!(tokens(&answered).len(), 5, "not the 24 of the app");
    let refused = model.run(&[vec![long, number("max_tokens", 24)]]).remove(0);
    let refused = refused.expect_err("the request's own number is not lowered");
    assert!(matches!(refused, ModelError::TooLong { .. }), "{refused}");
}

#[test]
fn a_batch_after_a_panic_is_answered() {
    let mut model = model(|_| ());
    let ask = vec![text("the inner thing")];
    let expected = model.run(std::slice::from_ref(&ask)).remove(0).unwrap();
    // Simulates the state after a panic in the middle of a batch.
    let first = model.next_of_batch;
    for number in first..first + 3 {
        model.submit(number, &ask).unwrap();
    }
    model.step();
    for _ in 0..2 {
        let again = model.run(&[ask.clone(), ask.clone()]);
        assert!(again.iter().all(|answer| answer.as_ref().unwrap() == &expected));
    }
    let (free, all) = model.engine.blocks();
    assert_eq!(free, all);
}

#[test]
fn without_a_seed_prompts_have_their_own_and_every_try_the_same() {
    let mut model = model(|generation| generation.sampling.temperature = Some(3.0));
    let mut ask = |id: i64, more: Vec<Tensor>| {
        let mut inputs = vec![Tensor::from_i64("input_ids", &[1], &[id]).unwrap()];
        inputs.extend(more);
        tokens(&model.run(&[inputs]).remove(0).unwrap())
    };
    assert_eq!(ask(5, vec![]), ask(5, vec![]));
    assert_ne!(ask(5, vec![]), ask(5, vec![number("seed", 0)]));
    assert_ne!(super::seed_of(&[5]), super::seed_of(&[6]));
}

/// Returns a copy of the checkpoint with additional files.
pub(super) fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gpt2");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

pub(super) fn of(dir: &tempfile::TempDir) -> LanguageModel<Cpu> {
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    LanguageModel::new(Cpu, checkpoint, &Generation::default())
        .unwrap()
        .0
}

#[test]
fn messages_are_rendered_by_the_chat_template() {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role[:1] }} {{ m.content }}{% endfor %}";
    let dir = directory(&[
        ("chat_template.jinja", template),
        ("tokenizer_config.json", r#"{"bos_token": "</s>"}"#),
    ]);
    let mut model = of(&dir);
    let mut ask = |name: &str, value: &str| {
        let input = Tensor::from_texts(name, &[value]).unwrap();
        model.run(&[vec![input]]).remove(0)
    };
    let chat = r#"[{"role": "user", "content": [{"type": "text", "text": "the one"}]}]"#;
    let answered = tokens(&ask("messages", chat).unwrap());
    let of_text = tokens(&ask("text", "</s>u the one").unwrap());
    assert_eq!(answered[..64], of_text, "64 tokens are the default of a text");
    assert_eq!(
        answered.len(),
        96 - 8,
        "a chat ends by itself, or with the context"
    );
    for (json, reason) in [
        ("[]", "at least one message"),
        ("{}", "not a JSON array"),
        (
            r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
            "reads text only",
        ),
    ] {
        let error = ask("messages", json).unwrap_err().to_string();
        assert!(error.contains(reason), "{json}: {error}");
    }
    let plain = of(&directory(&[]))
        .run(&[vec![Tensor::from_texts("messages", &[chat]).unwrap()]])
        .remove(0);
    let error = plain.unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
}

/// Post-processor with which the tokenizer adds a BOS token.
pub(super) const BEGINNING: &str = r#""post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"</s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"</s>":{"id":"</s>","ids":[0],"tokens":["</s>"]}}}"#;

#[test]
fn a_text_gets_one_token_of_beginning() {
    let json = std::fs::read_to_string(directory(&[]).path().join("tokenizer.json")).unwrap();
    let json = json.replace(r#""post_processor":null"#, BEGINNING);
    let config = ("tokenizer_config.json", r#"{"bos_token": "</s>"}"#);
    let model = of(&directory(&[("tokenizer.json", &json), config]));
    let ids = |text: &str| {
        model
            .prompts
            .tokens(&vec![Tensor::from_texts("text", &[text]).unwrap()])
            .unwrap()
    };
    assert_eq!(ids("one")[0], 0);
    assert_eq!(
        ids("</s>one"),
        ids("one"),
        "a rendered text has the token already"
    );
}

#[test]
fn the_checkpoint_states_its_sampling_and_ends() {
    let stated = r#"{"eos_token_id": [7, 8], "max_new_tokens": 6, "do_sample": true, "temperature": 5.0}"#;
    let mut model = of(&directory(&[("generation_config.json", stated)]));
    assert_eq!(model.engine.model_config().eos_token_ids, [7, 8]);
    assert_eq!(model.sampling.temperature, Some(5.0));
    let greedy = Tensor::from_f32("temperature", &[1], &[0.0]).unwrap();
    let answered = model.run(&[vec![text("one"), greedy]]).remove(0).unwrap();
    assert!(tokens(&answered).len() <= 6);
    let invalid = directory(&[("generation_config.json", r#"{"do_sample": true, "top_p": 7.0}"#)]);
    let error = LanguageModel::new(
        Cpu,
        Checkpoint::open(invalid.path()).unwrap(),
        &Generation::default(),
    );
    assert!(error.err().unwrap().to_string().contains("top_p 7"));
}

#[test]
fn batched_answers_equal_single_answers() {
    let mut model = model(|_| ());
    let ask = ["the inner thing", "a tour of", "one"].map(|prompt| vec![text(prompt)]);
    let together: Vec<Outputs> = model.run(&ask).into_iter().map(Result::unwrap).collect();
    for (inputs, expected) in ask.iter().zip(&together) {
        let alone = model.run(std::slice::from_ref(inputs)).remove(0).unwrap();
        assert_eq!(&alone, expected);
        assert_eq!(tokens(expected).len(), 24);
        let probabilities = output(expected, "probabilities").to_f32().unwrap();
        assert!(probabilities.iter().all(|p| (0.0..=1.0).contains(p)));
        let confidence = output(expected, "confidence").to_f32().unwrap()[0];
        assert!(confidence > 0.0 && confidence <= 1.0, "{confidence}");
        assert_eq!(output(expected, "end").to_texts().unwrap(), ["length"]);
    }
}

#[test]
fn an_encoder_decoder_answers_too() {
    let checkpoint = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/t5")).unwrap();
    let (mut model, totals) = LanguageModel::new(Cpu, checkpoint, &Generation::default()).unwrap();
    assert!(totals.parameters > 0);
    let ids = |values: &[i64]| Tensor::from_i64("input_ids", &[values.len()], values).unwrap();
    let few = [ids(&[5, 6, 7]), number("max_tokens", 5)].to_vec();
    let answered = model.run(&[few, vec![ids(&[9])]]);
    assert_eq!(tokens(answered[0].as_ref().unwrap()).len(), 5);
    assert!(!tokens(answered[1].as_ref().unwrap()).is_empty());
    let longest = model.engine.longest_prompt();
    let rejected = model.run(&[vec![ids(&vec![1; longest + 1])]]).remove(0);
    assert!(
        matches!(rejected, Err(ModelError::TooLong { .. })),
        "{rejected:?}"
    );
}

#[test]
fn a_request_overrides_the_defaults() {
    let mut model = model(|_| ());
    let mut ask = |more: Vec<Tensor>| {
        let mut inputs = vec![text("the inner thing, a tour")];
        inputs.extend(more);
        model.run(&[inputs]).remove(0)
    };
    assert_eq!(tokens(&ask(vec![number("max_tokens", 3)]).unwrap()).len(), 3);
    let warm = |seed| {
        let temperature = Tensor::from_f32("temperature", &[1], &[2.0]).unwrap();
        vec![temperature, number("seed", seed)]
    };
    let [first, again, other] = [5, 5, 6].map(|seed| tokens(&ask(warm(seed)).unwrap()));
    assert_eq!(first, again);
    assert_ne!(first, other);
    let whole = ask(vec![]).unwrap();
    let text = output(&whole, "text").to_texts().unwrap()[0].to_owned();
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped = ask(vec![Tensor::from_texts("stop", &[&stop]).unwrap()]).unwrap();
    assert_eq!(output(&stopped, "end").to_texts().unwrap(), ["stop"]);
    assert!(text.starts_with(output(&stopped, "text").to_texts().unwrap()[0]));
}

#[test]
fn invalid_requests_fail_alone() {
    let mut model = model(|_| ());
    let context = i64::try_from(model.engine.model_config().context).unwrap();
    let long = Tensor::from_i64("input_ids", &[2], &[1, 2]).unwrap();
    let rejected = [
        vec![],
        vec![text("a"), long.clone()],
        vec![text("a"), number("max_tokens", 0)],
        vec![text("a"), number("max_tokens", -1)],
        vec![text("a"), number("max_tokens", context + 1)],
        vec![Tensor::from_i64("input_ids", &[1], &[-4]).unwrap()],
        vec![Tensor::from_i64("input_ids", &[1], &[1 << 40]).unwrap()],
        vec![text("a"), Tensor::from_f32("top_p", &[1], &[0.0]).unwrap()],
        vec![text("")],
        vec![number("colour", 1)],
    ];
    let mut batch: Vec<Inputs> = rejected.to_vec();
    batch.push(vec![long]);
    let mut results = model.run(&batch);
    assert_eq!(tokens(&results.pop().unwrap().unwrap()).len(), 24);
    for (inputs, result) in rejected.iter().zip(results) {
        assert!(result.is_err(), "{inputs:?}");
    }
    let (free, all) = model.engine.blocks();
    assert_eq!(free, all);
}

#[test]
fn a_cancelled_request_ends_at_the_next_step() {
    let mut model = model(|_| ());
    model.submit(1, &vec![text("one")]).unwrap();
    model.submit(2, &vec![text("two")]).unwrap();
    model.step();
    model.cancel(1);
    assert!(model.step().iter().all(|progress| progress.number == 2));
    while !model.answers.is_empty() {
        model.step();
    }
    let (free, all) = model.engine.blocks();
    assert_eq!(free, all, "every block was freed");
}

#[test]
fn a_small_cache_queues_requests_and_a_small_budget_is_rejected() {
    // Three KV blocks: 16 tokens each, in two layers, 24 wide.
    let mut tight = model(|generation| generation.cache_bytes = 3 * BLOCK_BYTES);
    let ask: Vec<Inputs> = (0..5).map(|_| vec![text("the inner thing")]).collect();
    let results = tight.run(&ask);
    assert!(results.iter().all(|result| result == &results[0]) && results[0].is_ok());
    let generation = Generation {
        device_bytes: Some(1000),
        ..Generation::default()
    };
    let rejected = LanguageModel::new(Cpu, checkpoint(), &generation).err();
    assert!(
        matches!(rejected, Some(LoadError::NotServed { .. })),
        "{rejected:?}"
    );
}

#[test]
fn what_the_preprocessor_reads_is_answered_like_the_text() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shakespeare/weights/shakespeare-pico");
    let generation = Generation::default();
    let mut model = LanguageModel::new(Cpu, Checkpoint::open(&dir).unwrap(), &generation)
        .unwrap()
        .0;
    let preprocessor = model.preprocessor().unwrap();
    let request = vec![number("max_tokens", 6), text("O Romeo, Romeo! wherefore")];
    let tokenised = preprocessor(&request).unwrap();
    assert_eq!(tokenised[0], request[0]);
    assert_eq!(tokenised[1].name, "input_ids");
    let answers = model.run(&[request, tokenised.clone()]);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(preprocessor(&tokenised), None, "nothing to read");
    assert_eq!(preprocessor(&vec![text("")]), None, "the model refuses it");
    // Regression: the prompt was tokenized again on the model's thread.
    let tokenised = preprocessor(&vec![text(&"word ".repeat(5000))]).unwrap();
    let refused = model.run(&[tokenised]).remove(0).unwrap_err();
    let ModelError::TooLong { reason } = &refused else {
        panic!("{refused}")
    };
    assert!(
        reason.starts_with("this model's maximum context length is 256 tokens"),
        "{reason}"
    );
}
