use std::path::Path;

use super::*;
use crate::generation::Cpu;

/// A small random GPT-2 saved by transformers.
fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gpt2")).unwrap()
}

fn model(change: impl FnOnce(&mut Generation)) -> LanguageModel<Cpu> {
    let mut generation = Generation {
        sampling: Sampling {
            max_tokens: 24,
            ..Sampling::default()
        },
        ..Generation::default()
    };
    change(&mut generation);
    LanguageModel::new(Cpu, checkpoint(), &generation).unwrap().0
}

fn text(text: &str) -> Tensor {
    Tensor::from_texts("text", &[text]).unwrap()
}

fn number(name: &str, value: i64) -> Tensor {
    Tensor::from_i64(name, &[1], &[value]).unwrap()
}

fn output<'a>(outputs: &'a Outputs, name: &str) -> &'a Tensor {
    outputs.iter().find(|output| output.name == name).unwrap()
}

fn tokens(outputs: &Outputs) -> Vec<i64> {
    output(outputs, "tokens").to_i64().unwrap()
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
        matches!(rejected, Err(ModelError::WrongShape { .. })),
        "{rejected:?}"
    );
}

#[test]
fn the_streamed_parts_add_up_to_the_answer() {
    let mut model = model(|_| ());
    model.submit(7, &vec![text("on the one hand")]).unwrap();
    let (mut read, mut pieces, mut ended) = (String::new(), Vec::new(), None);
    while ended.is_none() {
        for progress in model.step() {
            assert_eq!(progress.number, 7);
            pieces.push(progress.pieces);
            read.push_str(output(&progress.part, "text").to_texts().unwrap()[0]);
            ended = progress.end;
        }
    }
    let outputs = ended.unwrap().unwrap();
    assert_eq!(output(&outputs, "text").to_texts().unwrap(), [read.as_str()]);
    assert_eq!(pieces, (1..=24).collect::<Vec<u32>>());
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
    let mut tight = model(|generation| generation.cache_bytes = 0);
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
