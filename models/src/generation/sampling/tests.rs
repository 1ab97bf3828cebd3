use super::*;

fn sample(sampler: &mut Sampler, logits: &[f32], sampling: &Sampling) -> SampledToken {
    let (rules, text) = (TokenRules::default(), TextSoFar::default());
    sampler.sample(logits, sampling, &rules, &text, None).unwrap()
}

fn drawn(logits: &[f32], sampling: &Sampling, count: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(sampling.seed);
    let mut counts = vec![0; logits.len()];
    for _ in 0..count {
        let next = sample(&mut sampler, logits, sampling);
        counts[next.token as usize] += 1;
    }
    counts
}

#[test]
fn greedy_takes_the_first_of_equals() {
    let sampled = sample(&mut Sampler::new(0), &[1.0, 3.0, 3.0, 0.0], &Sampling::default());
    assert_eq!(sampled.token, 1);
    assert!(sampled.margin.abs() < 1e-6 && (sampled.probability - 0.4576).abs() < 1e-3);
    assert!((sampled.confidence - sampled.probability.powi(2)).abs() < 1e-6);
}

#[test]
fn improbable_tokens_do_not_lower_the_confidence() {
    let mut logits = vec![0.0; 10_000];
    logits[7] = 9.0;
    let sampled = greedy(&logits).unwrap();
    assert!(
        sampled.probability < 0.5 && sampled.confidence > 0.99,
        "{sampled:?}"
    );
}

#[test]
fn samples_follow_the_probabilities_and_the_limits() {
    let logits = [0.0, 3.0_f32.ln(), 6.0_f32.ln()];
    let warm = Sampling {
        temperature: 1.0,
        ..Sampling::default()
    };
    let counts = drawn(&logits, &warm, 10_000);
    for (count, expected) in counts.iter().zip([1_000, 3_000, 6_000]) {
        assert!(count.abs_diff(expected) < 250, "{counts:?}");
    }
    let top_k = drawn(
        &logits,
        &Sampling {
            top_k: 1,
            ..warm.clone()
        },
        100,
    );
    assert_eq!(top_k, [0, 0, 100]);
    let top_p = drawn(
        &logits,
        &Sampling {
            top_p: 0.65,
            ..warm.clone()
        },
        1_000,
    );
    assert_eq!(top_p[0], 0);
    assert!(top_p[1] > 200 && top_p[2] > 500);
    let min_p = drawn(
        &logits,
        &Sampling {
            min_p: 0.4,
            ..warm.clone()
        },
        1_000,
    );
    assert_eq!(min_p[0], 0);
    assert!(min_p[1] > 200 && min_p[2] > 500);
    let cold = drawn(
        &logits,
        &Sampling {
            temperature: 0.01,
            ..warm.clone()
        },
        100,
    );
    assert_eq!(cold, [0, 0, 100]);
    assert_eq!(
        drawn(&logits, &warm, 50),
        drawn(&logits, &warm, 50),
        "one seed, one answer"
    );
}

#[test]
fn non_finite_logits_give_no_token() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(greedy(&[0.0, bad]), None);
    }
    assert_eq!(greedy(&[]), None);
}

#[test]
fn invalid_parameters_are_named() {
    let of = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        sampling.check().unwrap_err()
    };
    assert_eq!(of(|s| s.max_tokens = 0), SamplingError::NoTokens);
    assert_eq!(of(|s| s.temperature = -1.0), SamplingError::Temperature(-1.0));
    assert!(matches!(of(|s| s.top_p = f32::NAN), SamplingError::TopP(_)));
    assert_eq!(of(|s| s.min_p = 1.5), SamplingError::MinP(1.5));
    assert_eq!(
        of(|s| s.top_logprobs = 21),
        SamplingError::TopLogprobs("top_logprobs", 21)
    );
    assert_eq!(
        of(|s| s.prompt_logprobs = Some(21)),
        SamplingError::TopLogprobs("prompt_logprobs", 21)
    );
    for change in [
        |s: &mut Sampling| s.repetition_penalty = 0.0,
        |s: &mut Sampling| s.presence_penalty = 2.5,
        |s: &mut Sampling| s.frequency_penalty = f32::NAN,
    ] {
        assert!(matches!(of(change), SamplingError::Penalty(..)));
    }
    assert_eq!(of(|s| s.stop.push(String::new())), SamplingError::EmptyStop);
}
