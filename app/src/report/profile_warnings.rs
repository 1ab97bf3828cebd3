//! Remarks about profiles that planners accept.

use std::collections::BTreeMap;

use kaskade_planners::thresholds::Paired;
use kaskade_policy::linear_fit;
use kaskade_policy::profile::{Profile, VariantProfile};

use super::units;

/// Ratio of times per sample below which a later variant seems to be smaller than an earlier one.
const CHEAPER: f64 = 0.5;

/// Share of repeated samples from which a certificate claims too much.
const REPEATED: f64 = 0.05;

/// Number of validation samples below which accuracies are uncertain.
const FEW: usize = 200;

/// Number of samples of a class below which its accuracy is unknown.
const FEW_OF_CLASS: usize = 10;

/// Number of classes up to which each should have at least 1 % of the samples.
const FEW_CLASSES: usize = 50;

/// Number of classes that a remark names.
const SHOWN: usize = 6;

/// Number of standard errors by which a variant must be better than the largest one.
const SURE: f64 = 2.0;

/// Returns a remark if a variant is clearly more accurate than the largest one: losses are bounded against the largest
/// variant, which users expect to be the best.
fn better_than_largest(profile: &Profile) -> Option<String> {
    let largest = profile.variants.last()?;
    let right = |correct: &[bool]| correct.iter().filter(|right| **right).count();
    let earlier = profile.variants.iter().rev().skip(1);
    let best = earlier.max_by_key(|variant| right(&variant.validation.correct))?;
    let (correct, of_largest) = (&best.validation.correct, &largest.validation.correct);
    let paired = Paired::new(correct, of_largest);
    if paired.difference() <= SURE * paired.standard_error() {
        return None;
    }
    let share = |correct: &[bool]| units::percent(right(correct) as f64 / correct.len().max(1) as f64);
    Some(format!(
        "note: `{}` answers {} rightly, and the largest variant, `{}`, {}. A loss is counted against the largest: leave out the variants after \
         `{}`, or make it the last one",
        best.name,
        share(correct),
        largest.name,
        share(of_largest),
        best.name,
    ))
}

/// Returns a remark if a variant takes much less time than an earlier one: variants are listed smallest to largest, and
/// a cascade runs the first ones first. Variants that cost money run elsewhere, so their run times say little.
fn reversed_order(profile: &Profile) -> Option<String> {
    let local = || profile.variants.iter().filter(|variant| variant.money.is_none());
    let pairs = local()
        .enumerate()
        .flat_map(|(place, earlier)| local().skip(place + 1).map(move |later| (earlier, later)));
    let compared = pairs.filter_map(|(earlier, later)| {
        let batch = earlier.costs.last()?.batch.min(later.costs.last()?.batch);
        let seconds = |variant: &VariantProfile| {
            linear_fit::per_request(&variant.costs, batch, |cost| Some(cost.latency_s))
        };
        let joules =
            |variant: &VariantProfile| linear_fit::per_request(&variant.costs, batch, |cost| cost.energy_j);
        let (before, after) = (seconds(earlier)?, seconds(later)?);
        // A large model on a GPU may be faster than a small one on the CPU, and use more energy.
        let takes_more = joules(later)
            .zip(joules(earlier))
            .is_some_and(|(later, earlier)| later > earlier);
        (after < CHEAPER * before && !takes_more).then_some((
            after / before,
            batch,
            (earlier, before),
            (later, after),
        ))
    });
    let (_, batch, (earlier, before), (later, after)) =
        compared.min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "note: `{}` takes {} per sample in batches of {batch}, and `{}`, which is listed before it, {}: the order looks reversed. List the variants \
         smallest to largest and profile again",
        later.name,
        units::seconds(after),
        earlier.name,
        units::seconds(before),
    ))
}

/// Returns the remarks on a profile that apply to any plan, each on its own line after a line break.
pub(crate) fn remarks(profile: &Profile) -> String {
    lines([reversed_order(profile), better_than_largest(profile)])
}

/// Returns the remarks on a profile and on what is certified from it, each on its own line after a line break.
pub(crate) fn remarks_on_plan(profile: &Profile, certified: bool) -> String {
    let repeated = repeated_samples(profile).filter(|_| certified);
    remarks(profile) + &lines([few_samples(profile), classes_of(profile), repeated])
}

/// Returns a remark if there are few samples, with the possible error of an accuracy: half the widest 95 % interval.
fn few_samples(profile: &Profile) -> Option<String> {
    let samples = profile.samples;
    (samples < FEW).then(|| {
        let points = 98.0 / (samples.max(1) as f64).sqrt();
        format!(
            "note: an accuracy that is measured on so few validation samples ({samples}) may be off by {points:.0} points; choose thresholds on \
             about a thousand, and prove a bound on the loss on several thousand"
        )
    })
}

/// Returns a remark if thresholds are unreliable for some classes: there is only one class, or a class has fewer than
/// ten samples or less than 1 % of them. `counts` has the number of samples by class.
pub(crate) fn unequal_classes(counts: &BTreeMap<u64, usize>, name: impl Fn(u64) -> String) -> Option<String> {
    let all: usize = counts.values().sum();
    if let (1, Some(only)) = (counts.len(), counts.keys().next()) {
        return (all > 1).then(|| {
            format!(
                "all {} have {}; thresholds that are chosen on them say nothing of other classes. If the file is sorted by class, shuffle \
                 it before `skip` and `take` choose a part of it",
                units::count(all as u64),
                name(*only)
            )
        });
    }
    let is_rare = |count: usize| count < FEW_OF_CLASS || (counts.len() <= FEW_CLASSES && count * 100 < all);
    let mut rare: Vec<(u64, usize)> = counts.iter().map(|(class, count)| (*class, *count)).collect();
    rare.retain(|(_, count)| is_rare(*count));
    rare.sort_by_key(|(_, count)| *count);
    let shown = rare.iter().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|(class, count)| format!("{} of {}", count, name(*class)))
        .collect();
    let more = if rare.len() > SHOWN {
        format!(" and others, {} of {} classes", rare.len(), counts.len())
    } else {
        String::new()
    };
    (!rare.is_empty()).then(|| {
        format!(
            "there are few samples of some classes: {}{more}; their accuracy is uncertain, and a certified loss holds over all classes together, not \
             for each class",
            shown.join(", ")
        )
    })
}

/// Returns the same remark for a profile. It has no labels, so the class of a sample is a correct answer to it.
fn classes_of(profile: &Profile) -> Option<String> {
    let has_classes = |variant: &VariantProfile| !variant.validation.margins.is_empty();
    if !profile.variants.iter().all(has_classes) {
        return None;
    }
    let mut counts = BTreeMap::new();
    for sample in 0..profile.samples {
        let right = |variant: &VariantProfile| {
            let answers = &variant.validation;
            let is_right = answers.correct.get(sample).is_some_and(|right| *right);
            answers.predictions.get(sample).filter(|_| is_right).copied()
        };
        if let Some(class) = profile.variants.iter().rev().find_map(right) {
            *counts.entry(u64::from(class)).or_default() += 1;
        }
    }
    let said = unequal_classes(&counts, |class| format!("class {class}"))?;
    Some(format!(
        "note: of the validation samples that a variant answers rightly, {said}"
    ))
}

fn lines<const N: usize>(remarks: [Option<String>; N]) -> String {
    remarks
        .into_iter()
        .flatten()
        .fold(String::new(), |lines, remark| lines + "\n" + &remark)
}

/// Returns a remark if many samples are known to repeat others: a certificate counts each as an independent draw.
fn repeated_samples(profile: &Profile) -> Option<String> {
    let repeats = profile.repeats?;
    let share = repeats as f64 / profile.samples.max(1) as f64;
    (share > REPEATED).then(|| {
        format!(
            "warning: {} of {} validation samples have the inputs of an earlier one, and the certificate counts each as a sample of its own. Unless \
             requests repeat as often, it proves less than it says: remove repeats from the validation set and profile again",
            units::count(repeats as u64),
            units::count(profile.samples as u64),
        )
    })
}
