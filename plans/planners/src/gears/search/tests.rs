use super::*;
use crate::thresholds::{Column as FamilyColumn, Family, evaluate, threshold_exits};
use kaskade_stated::workloads::{bert, llama};

fn search() -> CascadeSearch {
    CascadeSearch {
        thresholds: 6,
        ..CascadeSearch::default()
    }
}

fn models(profile: &Profile) -> Models {
    Models::new(profile, 64, None)
}

fn one_device(models: &Models) -> Vec<Group> {
    vec![Group {
        speed: 1.0,
        memory_bytes: u64::MAX,
        hosted: (0..models.len()).collect(),
        devices: vec![0],
    }]
}

/// The sum of reach times time: what a cascade costs where every model is everywhere.
fn work(cascade: &Cascade, models: &Models) -> f64 {
    let terms = cascade.variants.iter().zip(&cascade.reach);
    terms
        .map(|(model, reach)| reach * models.batched_time_s(*model))
        .sum()
}

#[test]
fn bit_sets_and_evaluation_agree() {
    let profile = llama().profile();
    let space = Space::new(&profile, &search(), 0);
    assert!(space.all().len() > 300);
    for cascade in space.all().iter().step_by(7) {
        let columns = cascade.variants.iter().map(|variant| {
            let variant = &profile.variants[*variant];
            FamilyColumn {
                name: variant.name.clone(),
                energy_j: 1.0,
                confidences: variant.validation.confidences.as_slice().into(),
                correct: variant.validation.correct.as_slice().into(),
            }
        });
        let family = Family::new(columns.collect()).unwrap();
        let outcome = evaluate(&family, &threshold_exits(&cascade.thresholds));
        assert!((outcome.accuracy - cascade.accuracy).abs() < 1e-12);
        for (found, expected) in cascade.reach.iter().zip(&outcome.reach) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}

#[test]
fn all_cascades_are_counted() {
    let profile = llama().profile();
    for stages in 1..=4 {
        let search = CascadeSearch {
            max_stages: stages,
            thresholds: 2,
            ..search()
        };
        let space = Space::new(&profile, &search, 0);
        // Sum over lengths k of C(4, k) 2^(k - 1); none of these thresholds forwards all or nothing.
        let expected = [4, 4 + 12, 4 + 12 + 16, 4 + 12 + 16 + 8][stages as usize - 1];
        assert_eq!(space.all().len(), expected);
    }
}

#[test]
fn nothing_beats_the_front() {
    let profile = bert().profile();
    let models = models(&profile);
    let space = Space::new(&profile, &search(), 0);
    let front = space.front(&models, &one_device(&models), usize::MAX);
    assert!(front.windows(2).all(|pair| pair[0].accuracy <= pair[1].accuracy));
    for cascade in space.all() {
        let as_good = |kept: &&Cascade| {
            kept.accuracy >= cascade.accuracy && work(kept, &models) <= work(cascade, &models) * (1.0 + 1e-6)
        };
        assert!(front.iter().any(|kept| as_good(&kept)));
    }
}

#[test]
fn thinning_keeps_the_ends() {
    let profile = bert().profile();
    let models = models(&profile);
    let space = Space::new(&profile, &search(), 0);
    let groups = one_device(&models);
    let all = space.front(&models, &groups, usize::MAX);
    for most in [2, 5, 20] {
        let thinned = space.front(&models, &groups, most);
        assert!(thinned.len() <= most + 1 + 5);
        assert_eq!(thinned.last(), all.last());
        let cheapest = |cascades: &[Cascade]| {
            cascades
                .iter()
                .map(|cascade| work(cascade, &models))
                .fold(f64::INFINITY, f64::min)
        };
        assert!((cheapest(&thinned) - cheapest(&all)).abs() < 1e-15);
    }
}

#[test]
fn cascades_beat_the_largest_variant() {
    // As in Figure 1: more accurate than the largest variant, and cheaper.
    let profile = bert().profile();
    let models = models(&profile);
    let front = Space::new(&profile, &search(), 0).front(&models, &one_device(&models), usize::MAX);
    let base = models.batched_time_s(4);
    assert!(
        front
            .iter()
            .any(|cascade| cascade.accuracy > 0.838 && work(cascade, &models) < 0.7 * base)
    );
}

#[test]
fn large_families_are_sampled_by_seed() {
    let profile = bert().profile();
    let search = CascadeSearch {
        thresholds: 12,
        exhaustive_up_to: 500,
        ..CascadeSearch::default()
    };
    let space = |seed| Space::new(&profile, &search, seed);
    assert_eq!(space(1).all(), space(1).all());
    assert_ne!(space(1).all(), space(2).all());
    let singles = space(1).singles();
    let names: std::collections::BTreeSet<usize> =
        singles.all().iter().map(|single| single.variants[0]).collect();
    assert_eq!(names.len(), 5);
    assert!(space(1).all().len() <= 505 && space(1).all().len() > 300);
}
