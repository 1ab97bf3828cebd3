//! Detects a classifier whose `id2label` is probably wrong, because another assignment of its classes would be correct
//! much more often.

#![expect(
    clippy::indexing_slicing,
    reason = "classes are numbers up to the largest one, by which the lists are sized"
)]

use crate::data::Label;
use crate::report::units;

/// Largest number of classes to assign: the time grows with their cube.
const MAX_CLASSES: usize = 256;

/// Number of classes that a remark names.
const SHOWN: usize = 6;

/// Number of standard errors by which the other assignment must be better.
const SURE: f64 = 4.0;

/// Share of the samples by which the other assignment must be better.
const CLEARLY: f64 = 0.02;

/// Number of samples by label and predicted class.
struct Confusion {
    classes: usize,
    counts: Vec<i64>,
}

impl Confusion {
    fn new(classes: usize, pairs: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut counts = vec![0; classes * classes];
        for (predicted, label) in pairs {
            counts[predicted * classes + label] += 1;
        }
        Self { classes, counts }
    }

    fn count(&self, predicted: usize, label: usize) -> i64 {
        self.counts[predicted * self.classes + label]
    }

    /// Returns the number of correct samples with the assignment and without it, counting only reassigned classes.
    fn moved(&self, assigned: &[usize]) -> (i64, i64) {
        let moved = assigned.iter().enumerate().filter(|(own, other)| own != *other);
        moved.fold((0, 0), |(better, now), (own, other)| {
            (better + self.count(own, *other), now + self.count(own, own))
        })
    }

    /// Returns the assignment of predicted classes to distinct classes with the most correct samples. In a tie a class
    /// keeps its own.
    fn assigned(&self) -> Vec<usize> {
        let scale = i64::try_from(self.classes).unwrap_or(i64::MAX - 1) + 1;
        let cost = |own: usize, other: usize| -(self.count(own, other) * scale + i64::from(own == other));
        assignment(self.classes, cost)
    }
}

/// Returns the column of each row with the lowest sum of costs (the Hungarian method with potentials, O(n^3)).
fn assignment(count: usize, cost: impl Fn(usize, usize) -> i64) -> Vec<usize> {
    // Row 0 and column 0 are sentinels.
    let (mut of_row, mut of_column) = (vec![0_i64; count + 1], vec![0_i64; count + 1]);
    let mut row_of = vec![0_usize; count + 1];
    for row in 1..=count {
        let mut before = vec![0_usize; count + 1];
        let mut least = vec![i64::MAX; count + 1];
        let mut used = vec![false; count + 1];
        let mut column = 0;
        row_of[0] = row;
        while row_of[column] != 0 {
            used[column] = true;
            let current = row_of[column];
            let mut next = (i64::MAX, 0);
            for other in (1..=count).filter(|other| !used[*other]) {
                let reduced = cost(current - 1, other - 1) - of_row[current] - of_column[other];
                if reduced < least[other] {
                    (least[other], before[other]) = (reduced, column);
                }
                next = next.min((least[other], other));
            }
            let (delta, chosen) = next;
            let columns = used.iter().zip(&row_of);
            for ((used, row), (potential, least)) in columns.zip(of_column.iter_mut().zip(&mut least)) {
                if *used {
                    of_row[*row] += delta;
                    *potential -= delta;
                } else {
                    *least = least.saturating_sub(delta);
                }
            }
            column = chosen;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut columns = vec![0; count];
    for (column, row) in row_of.iter().enumerate().skip(1) {
        columns[row - 1] = column - 1;
    }
    columns
}

/// Returns a remark if another assignment of a variant's classes would be correct clearly more often. The assignment is
/// chosen on every second sample of each label, since samples may be sorted by label, and compared on the rest. `names`
/// are the class names.
pub(super) fn remark(
    variant: &str,
    names: &[String],
    labels: &[Label],
    predictions: &[u32],
) -> Option<String> {
    let pairs = labels
        .iter()
        .zip(predictions)
        .filter_map(|(label, predicted)| match label {
            Label::Class(label) => Some((usize::try_from(*predicted).ok()?, *label)),
            _ => None,
        });
    // Samples that are too long for the variant have no answer.
    let pairs: Vec<(usize, usize)> = pairs
        .filter(|(predicted, _)| *predicted < u32::MAX as usize)
        .collect();
    let most = pairs
        .iter()
        .map(|(predicted, label)| (*predicted).max(*label))
        .max()?;
    if most >= MAX_CLASSES {
        return None;
    }
    let mut seen = vec![false; most + 1];
    let (chosen, compared): (Vec<_>, Vec<_>) = pairs.iter().copied().partition(|(_, label)| {
        seen[*label] = !seen[*label];
        seen[*label]
    });
    let assigned = Confusion::new(most + 1, chosen.into_iter()).assigned();
    let (better, now) = Confusion::new(most + 1, compared.into_iter()).moved(&assigned);
    let gained = (better - now) as f64;
    let is_sure = gained > SURE * ((better + now) as f64).sqrt();
    if !is_sure || gained < CLEARLY * pairs.len() as f64 / 2.0 || better < 2 * now {
        return None;
    }
    let share = |right: usize| units::percent(right as f64 / pairs.len() as f64);
    let right = |is_right: &dyn Fn(usize, usize) -> bool| {
        pairs
            .iter()
            .filter(|(predicted, label)| is_right(*predicted, *label))
            .count()
    };
    let name = |class: usize| {
        names
            .get(class)
            .map_or_else(|| format!("class {class}"), |name| format!("`{name}`"))
    };
    let moved = assigned.iter().enumerate().filter(|(own, other)| own != *other);
    let moved: Vec<String> = moved
        .map(|(own, other)| format!("what it calls {} were {}", name(own), name(*other)))
        .collect();
    let more = if moved.len() > SHOWN { ", ..." } else { "" };
    Some(format!(
        "profile: `{variant}` would be right in {} of the samples (now {}) if {}{more}: is its `id2label` \
         right?",
        share(right(&|predicted, label| assigned.get(predicted) == Some(&label))),
        share(right(&|predicted, label| predicted == label)),
        moved.get(..SHOWN).unwrap_or(&moved).join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|class| format!("c{class}")).collect()
    }

    fn said(count: usize, samples: usize, answer: impl Fn(usize, usize) -> usize) -> Option<String> {
        // Labels in an order without a pattern.
        let labels = (0..samples).map(|sample| (sample * 7_919 / 13) % count);
        said_of(count, labels.collect(), answer)
    }

    fn said_of(count: usize, labels: Vec<usize>, answer: impl Fn(usize, usize) -> usize) -> Option<String> {
        let predictions = labels.iter().enumerate();
        let predictions: Vec<u32> = predictions
            .map(|(sample, label)| answer(sample, *label) as u32)
            .collect();
        let labels: Vec<Label> = labels.into_iter().map(Label::Class).collect();
        remark("v1", &names(count), &labels, &predictions)
    }

    /// Regression: only a variant that was never correct was reported.
    #[test]
    fn swapped_classes_are_named() {
        let swapped = said(3, 400, |_, label| [0, 2, 1][label]).unwrap();
        assert!(
            swapped.contains("`v1` would be right in 100.00 % of the samples (now 3")
                && swapped.contains("if what it calls `c1` were `c2`, what it calls `c2` were `c1`: is"),
            "{swapped}"
        );
        let turned = said(4, 200, |_, label| (label + 1) % 4).unwrap();
        assert!(turned.contains("(now 0.00 %)"), "{turned}");
    }

    /// Regression: each half of the samples had half of the classes.
    #[test]
    fn labels_in_turn_are_halved_each() {
        let labels: Vec<usize> = (0..400).map(|sample| sample % 4).collect();
        let turned = said_of(4, labels, |_, label| (label + 1) % 4).unwrap();
        assert!(turned.contains("right in 100.00 % of the samples"), "{turned}");
        let sorted: Vec<usize> = (0..400).map(|sample| sample / 100).collect();
        assert!(said_of(4, sorted, |_, label| (label + 2) % 4).is_some());
    }

    #[test]
    fn a_poor_model_is_not_named() {
        // Random wrong answers, few samples per class, and a mostly correct model.
        let random = |count: usize| move |sample: usize, _: usize| (sample * 104_729 / 31) % count;
        for (count, samples) in [(2, 100), (3, 400), (10, 1_000), (200, 600)] {
            assert_eq!(said(count, samples, random(count)), None, "{count}");
        }
        let mostly = |sample: usize, label: usize| {
            if sample.is_multiple_of(3) {
                (label + 1) % 5
            } else {
                label
            }
        };
        assert_eq!(said(5, 1_000, mostly), None);
        assert_eq!(said(2, 0, |_, label| label), None);
    }

    #[test]
    fn an_assignment_is_the_best_one() {
        let costs = [[4, 1, 3], [2, 0, 5], [3, 2, 2]];
        assert_eq!(assignment(3, |row, column| costs[row][column]), [1, 0, 2]);
    }
}
