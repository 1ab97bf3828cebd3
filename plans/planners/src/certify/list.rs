//! The certified list of a plan: the cascades that passed together, and what each does on the certification part.

use kaskade_policy::fnv::fnv1a;
use kaskade_policy::plan::{
    Certificate, CertifiedCascade, CertifiedList, ExpectedStage, Gear, LoadRange, MAX_CERTIFIED, Stage,
    Wiring,
};
use kaskade_policy::profile::Profile;
use kaskade_policy::routing::{self, Route};

use super::split_samples;

/// Cascades in a list, besides those that gears run. Each one more is one more step to safety; each one less a coarser one.
const STEPS: usize = 8;

/// Bins of confidence per stage.
const BINS: usize = 8;

/// Answers per bin at least, so that the rate of a bin is known.
const PER_BIN: usize = 40;

/// A cascade that passed, as the plan wires it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wired {
    pub(crate) wiring: Wiring,
    pub(crate) certificate: Certificate,
}

/// Returns the indices of at most [`STEPS`] of `count` cascades at even distances, the first and the last included, and of all that
/// `needed` names; ascending. With those that are needed, the distances are so long that a list has room for all.
///
/// More than [`MAX_CERTIFIED`] only if `needed` and both ends are.
pub(crate) fn steps(count: usize, needed: &[usize]) -> Vec<usize> {
    let last = count.saturating_sub(1);
    let with = |steps: usize| {
        let even = (0..steps).map(|step| step * last / (steps - 1).max(1));
        let mut indices: Vec<usize> = even
            .filter(|index| *index < count)
            .chain(needed.iter().copied())
            .collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    };
    let most = STEPS.min(count);
    let room = |steps: &usize| with(*steps).len() <= MAX_CERTIFIED;
    with((2..=most).rev().find(room).unwrap_or(2.min(most)))
}

/// Returns the list of cascades from the largest variant alone to the cheapest, and for each gear the index of its cascade.
pub(crate) fn certified_list(
    profile: &Profile,
    wired: Vec<Wired>,
    cascade_of_gear: Vec<u32>,
) -> CertifiedList {
    let samples = split_samples(profile.samples).certification;
    let has_answers = has_answers(profile);
    let cascades = wired.into_iter().enumerate().map(|(index, wired)| {
        let routes = route(profile, &wired.wiring, &samples);
        let stages = wired.wiring.stages.iter().zip(routes.stages);
        CertifiedCascade {
            differs: has_answers.then_some(routes.differing),
            stages: stages.map(|(stage, passed)| expected(stage, &passed)).collect(),
            gear: Gear {
                name: format!("certified{index}"),
                load: LoadRange::ALL,
                expected: None,
                wiring: wired.wiring,
            },
            certificate: wired.certificate,
        }
    });
    CertifiedList {
        texts: profile.texts,
        samples: Some(fingerprint(profile, &samples)),
        cascades: cascades.collect(),
        cascade_of_gear,
    }
}

/// The routes of samples through a cascade.
struct SampleRoutes {
    /// For each stage and each sample that reaches it: the value that its bands compared, and whether it deferred.
    stages: Vec<Vec<(f64, bool)>>,
    /// Samples whose answer does not count as the largest variant's.
    differing: u64,
}

fn route(profile: &Profile, wiring: &Wiring, samples: &[usize]) -> SampleRoutes {
    let index = |name: &str| wiring.stages.iter().position(|stage| stage.name == name);
    let stages: Vec<_> = wiring
        .stages
        .iter()
        .map(|stage| {
            let variant = profile
                .variants
                .iter()
                .find(|variant| variant.name == stage.variant);
            (stage, variant, profile.stage_confidences(&wiring.stages, stage))
        })
        .collect();
    let mut routes = SampleRoutes {
        stages: vec![Vec::new(); stages.len()],
        differing: 0,
    };
    let entry = index(&wiring.entry.stage);
    for sample in samples {
        let (mut answer, mut agrees) = (None, None);
        let mut next = entry;
        while let Some(at) = next
            && let Some((stage, Some(variant), confidences)) = stages.get(at)
            && let Some(passed) = routes.stages.get_mut(at)
        {
            let confidence = confidences
                .as_ref()
                .and_then(|stage| stage.at(*sample))
                .unwrap_or(0.0);
            answer = variant.validation.predictions.get(*sample).copied();
            agrees = variant.validation.agrees.get(*sample).copied();
            // Edges lead to later stages only, so the walk ends.
            next = match routing::route(&stage.exit, Some(confidence)) {
                Ok(Route::Forward(edge)) => index(&edge.stage),
                _ => None,
            };
            passed.push((confidence, next.is_some()));
        }
        // Where the profile does not say whether answers agree, they are compared by their numbers.
        let agrees = agrees.unwrap_or_else(|| answer == largest_answer(profile, *sample));
        routes.differing += u64::from(!agrees);
    }
    routes
}

fn largest_answer(profile: &Profile, sample: usize) -> Option<u32> {
    let largest = profile.variants.last()?;
    largest.validation.predictions.get(sample).copied()
}

/// Returns a fingerprint of samples, in hexadecimal: of their number, the sizes of their inputs, and what the largest variant answered and
/// whether it was right. The same variants, profiled again on the same samples, give the same one.
fn fingerprint(profile: &Profile, samples: &[usize]) -> String {
    let largest = profile.variants.last().map(|variant| &variant.validation);
    let facts = samples.iter().flat_map(|sample| {
        let bytes = profile.input_bytes.get(*sample).copied();
        let answer = largest.and_then(|validation| validation.predictions.get(*sample).copied());
        let right = largest.and_then(|validation| validation.correct.get(*sample).copied());
        [bytes.map(u64::from), answer.map(u64::from), right.map(u64::from)]
    });
    let numbers = facts.map(|fact| fact.map_or(0, |fact| 1 + fact));
    let numbers = std::iter::once(samples.len() as u64).chain(numbers);
    let hash = fnv1a(numbers.flat_map(u64::to_le_bytes));
    format!("{hash:016x}")
}

/// Whether the profile says what the variants answered; where a task has no answers to compare, all of them are 0.
fn has_answers(profile: &Profile) -> bool {
    let variants = profile.variants.iter();
    let mut answers = variants.flat_map(|variant| &variant.validation.predictions);
    answers.any(|answer| *answer != 0)
}

/// `here` are the samples that reach the stage: what its bands compared, and whether it deferred.
fn expected(stage: &Stage, here: &[(f64, bool)]) -> ExpectedStage {
    let mut exits: Vec<f64> = here
        .iter()
        .filter(|(_, deferred)| !deferred)
        .map(|(confidence, _)| *confidence)
        .collect();
    exits.sort_unstable_by(f64::total_cmp);
    let mut expected = ExpectedStage {
        stage: stage.name.clone(),
        samples: here.len() as u64,
        deferred: (here.len() - exits.len()) as u64,
        edges: edges(&exits),
        exits: Vec::new(),
    };
    expected.exits = vec![0; expected.edges.len() + 1];
    for confidence in exits {
        let bin = expected.category(false, confidence) - 1;
        if let Some(count) = expected.exits.get_mut(bin) {
            *count += 1;
        }
    }
    expected
}

/// Returns the ends of bins with about as many confidences each; `sorted` ascends.
fn edges(sorted: &[f64]) -> Vec<f64> {
    let bins = (sorted.len() / PER_BIN).clamp(1, BINS);
    let mut edges: Vec<f64> = Vec::new();
    for bin in 1..bins {
        let Some(edge) = sorted.get(bin * sorted.len() / bins) else {
            continue;
        };
        if *edge > edges.last().copied().unwrap_or(0.0) && *edge < 1.0 {
            edges.push(*edge);
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use kaskade_policy::profile::Validation;

    use super::*;

    #[test]
    fn steps_keep_both_ends_and_what_is_needed() {
        assert_eq!(steps(3, &[]), [0, 1, 2]);
        assert_eq!(steps(0, &[]), [0_usize; 0]);
        let many = steps(40, &[17]);
        assert_eq!((many.first(), many.last()), (Some(&0), Some(&39)));
        assert!(many.contains(&17) && many.len() <= STEPS + 1);
    }

    #[test]
    fn samples_are_told_apart_by_what_the_largest_variant_answers() {
        const SAMPLES: usize = 100;
        let mut profile = kaskade_stated::pipelines::stated().profile();
        profile.samples = SAMPLES;
        let right = (0..SAMPLES).map(|sample| sample % 10 > 0).collect();
        profile.variants.last_mut().unwrap().validation =
            Validation::new((0..SAMPLES as u32).collect(), vec![0.5; SAMPLES], right);
        let samples = split_samples(profile.samples).certification;
        let found = fingerprint(&profile, &samples);
        assert_eq!(
            (found.len(), &found),
            (16, &fingerprint(&profile.clone(), &samples))
        );
        // As many right answers, of other samples.
        let mut other = profile.clone();
        let correct = &mut other.variants.last_mut().unwrap().validation.correct;
        let of = |right: bool| *samples.iter().find(|sample| correct[**sample] == right).unwrap();
        let (right, wrong) = (of(true), of(false));
        correct.swap(right, wrong);
        assert_ne!(fingerprint(&other, &samples), found);
        // Another sample outside the part says nothing.
        let mut outside = profile.clone();
        let selection = split_samples(profile.samples).selection[0];
        let correct = &mut outside.variants.last_mut().unwrap().validation.correct;
        correct[selection] = !correct[selection];
        assert_eq!(fingerprint(&outside, &samples), found);
    }

    /// Eight steps and a dozen gears were more than a list takes, and there was none.
    #[test]
    fn steps_leave_room_for_what_is_needed() {
        let needed: Vec<usize> = (20..34).collect();
        let found = steps(40, &needed);
        assert!(found.len() <= MAX_CERTIFIED, "{found:?}");
        assert!(
            needed.iter().chain(&[0, 39]).all(|index| found.contains(index)),
            "{found:?}"
        );
        // One step to safety more if there is room.
        assert_eq!(steps(40, &needed[1..]).len(), MAX_CERTIFIED);
        let needed: Vec<usize> = (20..40).collect();
        assert_eq!(steps(40, &needed).len(), 21);
        assert_eq!(steps(1, &[0]), [0]);
        assert_eq!(steps(2, &[1]), [0, 1]);
    }

    #[test]
    fn bins_hold_alike_many_confidences() {
        let sorted: Vec<f64> = (1..=400).map(|n| f64::from(n) / 401.0).collect();
        let edges = edges(&sorted);
        assert_eq!(edges.len(), BINS - 1);
        assert!(super::edges(&[0.5; 10]).is_empty());
        assert!(super::edges(&[1.0; 400]).is_empty());
    }
}
