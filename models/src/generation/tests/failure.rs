//! Tests of steps that fail and are repeated.

use std::collections::BTreeMap;

use super::{family, generate, greedy, resident, run};

#[test]
fn a_prefill_that_failed_is_repeated() {
    let prompts = [vec![3, 1, 4, 1, 5, 9, 2, 6], vec![7], vec![2, 7, 1, 8, 2]];
    for number in [0, 1, 13] {
        let decoder = family(number, 3, 5);
        let expected = generate(&mut resident(&decoder), &prompts, 12);
        let mut engine = resident(&decoder);
        let mut answers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (request, prompt) in (0..).zip(&prompts) {
            engine.submit(request, prompt.clone(), greedy(12)).unwrap();
            // Simulates the state after a step that fails before its first layer.
            let step = engine.scheduler.step(&mut engine.space);
            assert_eq!(step.prefill, [request]);
            for event in engine.step().unwrap().events {
                let answer = answers.entry(event.request).or_default();
                answer.extend(event.sampled.map(|sampled| sampled.token));
            }
        }
        for (request, tokens) in run(&mut engine) {
            answers.entry(request).or_default().extend(tokens);
        }
        assert!(answers.into_values().eq(expected), "family {number}");
    }
}
