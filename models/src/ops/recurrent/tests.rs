use super::*;
use crate::decoder::weights::Decoder;
use crate::generation::ModelConfig;

const KINDS: std::ops::Range<usize> = 0..4;

/// Returns a recurrence of each kind, with the width of its gate rows.
fn recurrence(kind: usize) -> (Recurrence, usize) {
    let model_config = ModelConfig {
        width: 20,
        vocabulary: 2,
        ..ModelConfig::default()
    };
    let decoder = Decoder::random(model_config, 1, 1).with_random_recurrences(kind, 2);
    let recurrence = decoder.layers[0].recurrent.as_ref().unwrap().recurrence.clone();
    let gates = match &recurrence.scan {
        Scan::Gates => 0,
        Scan::DeltaRule(rule, _) => 2 * rule.value_heads,
        Scan::StateSpace(space, _) => space.heads,
        Scan::Selective(space, _) => space.gates(),
    };
    (recurrence, gates)
}

/// Returns pseudo-random numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|index| ((index * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0)
        .collect()
}

fn run(
    (recurrence, gates): &(Recurrence, usize),
    (projected, gate_rows): (&[f32], &[f32]),
    counts: &[usize],
    states: &mut [Vec<f32>],
) -> Vec<f32> {
    assert_eq!(gate_rows.len(), gates * counts.iter().sum::<usize>());
    let mut states: Vec<&mut [f32]> = states.iter_mut().map(Vec::as_mut_slice).collect();
    let convolved = recurrence.convolve(projected, counts, &mut states);
    recurrence.scan(projected, convolved, gate_rows, counts, &mut states)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn results_depend_neither_on_passes_nor_on_the_batch() {
    for kind in KINDS {
        let form = recurrence(kind);
        let (width, gates) = (form.0.projected_width(), form.1);
        let zeros = || vec![0.0; form.0.state_elements()];
        let (rows, gate_rows) = (numbers(11 * width, 1), numbers(11 * gates, 2));
        let mut state = [zeros()];
        let whole = run(&form, (&rows, &gate_rows), &[11], &mut state);
        assert_eq!(whole.len(), 11 * form.0.width());
        assert!(whole.iter().all(|value| value.is_finite()));
        let (mut parts, mut from, mut other) = (Vec::new(), 0, [zeros()]);
        for count in [4, 1, 6] {
            let (rows, gates) = (
                &rows[from * width..(from + count) * width],
                &gate_rows[from * gates..(from + count) * gates],
            );
            parts.extend(run(&form, (rows, gates), &[count], &mut other));
            from += count;
        }
        assert_eq!(bits(&whole), bits(&parts), "{kind}: in parts");
        assert_eq!(bits(&state[0]), bits(&other[0]), "{kind}: the state");
        let (more, more_gates) = (numbers(3 * width, 5), numbers(3 * gates, 6));
        let both = [more.as_slice(), &rows].concat();
        let both_gates = [more_gates.as_slice(), &gate_rows].concat();
        let mut states = [zeros(), zeros()];
        let batch = run(&form, (&both, &both_gates), &[3, 11], &mut states);
        let second = &batch[3 * form.0.width()..];
        assert_eq!(bits(&whole), bits(second), "{kind}: in a batch");
    }
}

#[test]
fn the_state_is_as_large_as_it_says_and_all_of_it_is_used() {
    for kind in KINDS {
        let form = recurrence(kind);
        let mut state = [vec![0.0; form.0.state_elements()]];
        let (width, gates) = (form.0.projected_width(), form.1);
        // More tokens than the convolution covers.
        let (rows, gate_rows) = (numbers(6 * width, 3), numbers(6 * gates, 4));
        run(&form, (&rows, &gate_rows), &[6], &mut state);
        let unused = state[0].iter().filter(|value| **value == 0.0).count();
        assert!(
            unused * 20 < state[0].len(),
            "{kind}: {unused} of {}",
            state[0].len()
        );
    }
}

/// Checks that NaN makes the results of its token NaN, and those of later tokens as far as states reach.
#[test]
fn undefined_values_stay_undefined() {
    for kind in KINDS {
        let form = recurrence(kind);
        let (width, gates) = (form.0.projected_width(), form.1);
        for value in [f32::NAN, f32::INFINITY] {
            for at_gates in [false, true] {
                let (mut rows, mut gate_rows) = (numbers(6 * width, 3), numbers(6 * gates, 4));
                if at_gates {
                    if gates == 0 {
                        continue;
                    }
                    gate_rows[2 * gates..3 * gates].fill(value);
                } else {
                    rows[2 * width..3 * width].fill(value);
                }
                let mut state = [vec![0.0; form.0.state_elements()]];
                let out = run(&form, (&rows, &gate_rows), &[6], &mut state);
                let of = |token: usize| &out[token * form.0.width()..(token + 1) * form.0.width()];
                assert!(
                    of(1).iter().all(|value| value.is_finite()),
                    "{kind}: before {value}"
                );
                // Infinite gates may be valid factors of zero and one.
                if value.is_nan() || !at_gates {
                    let undefined = of(2).iter().filter(|value| !value.is_finite()).count();
                    assert!(undefined > 0, "{kind}: {value} is lost");
                }
                if value.is_nan() && kind > 0 {
                    assert!(of(2).iter().all(|value| value.is_nan()), "{kind}: {:?}", of(2));
                    assert!(of(5).iter().any(|value| value.is_nan()), "{kind}: {:?}", of(5));
                }
            }
        }
    }
}
