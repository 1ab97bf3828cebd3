//! Confidence by agreement: a model that gives no probabilities is asked several times, and answers are as probable as they are
//! frequent.

/// Count that every answer has before the first sample (Krichevsky and Trofimov), so that agreement of a few samples is no
/// certainty.
const PRIOR: f64 = 0.5;

/// Returns the log probabilities of `classes` classes after these samples, each the number of a class.
pub fn log_shares(samples: &[usize], classes: usize) -> Vec<f64> {
    let all = samples.len() as f64 + PRIOR * classes as f64;
    let share = |class: usize| {
        let count = samples.iter().filter(|sample| **sample == class).count() as f64;
        ((count + PRIOR) / all).ln()
    };
    (0..classes).map(share).collect()
}

/// Returns the place of the first sample with the most frequent answer, and the probability of that answer; `None` without samples.
/// One answer that was not given counts as possible.
pub fn majority<T: PartialEq>(samples: &[T]) -> Option<(usize, f64)> {
    let count = |sample: &T| samples.iter().filter(|other| *other == sample).count();
    let mut best: Option<(usize, usize)> = None;
    let mut distinct = 0;
    for (place, sample) in samples.iter().enumerate() {
        if samples.iter().take(place).any(|other| other == sample) {
            continue;
        }
        distinct += 1;
        let count = count(sample);
        if best.is_none_or(|(_, most)| count > most) {
            best = Some((place, count));
        }
    }
    let all = samples.len() as f64 + PRIOR * f64::from(distinct + 1);
    best.map(|(place, count)| (place, (count as f64 + PRIOR) / all))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frequent_answers_are_probable_and_none_is_certain() {
        let shares = log_shares(&[1, 1, 1, 0], 3);
        let shares: Vec<f64> = shares.into_iter().map(f64::exp).collect();
        assert!(
            (shares[1] - 3.5 / 5.5).abs() < 1e-12 && shares[2] > 0.0,
            "{shares:?}"
        );
        let (place, share) = majority(&["b", "a", "a"]).unwrap();
        assert_eq!(place, 1);
        assert!((share - 2.5 / 4.5).abs() < 1e-12);
        assert_eq!(majority::<u8>(&[]), None);
        assert_eq!(majority(&["b", "a"]).unwrap().0, 0, "the first of equals");
    }

    proptest! {
        /// Shares are probabilities, and more agreement is never less probable.
        #[test]
        fn shares_add_up(samples in prop::collection::vec(0_usize..4, 0..20)) {
            let shares: Vec<f64> = log_shares(&samples, 4).into_iter().map(f64::exp).collect();
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            if let Some((place, share)) = majority(&samples) {
                prop_assert!(share > 0.0 && share < 1.0);
                let mut more = samples.clone();
                more.push(samples[place]);
                prop_assert!(majority(&more).unwrap().1 >= share);
            }
        }
    }
}
