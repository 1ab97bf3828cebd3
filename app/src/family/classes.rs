//! Whether the variants of a family answer with the same classes in the same order.

use std::collections::BTreeSet;

use kaskade_models::{ModelInfo, Task};
use thiserror::Error;

/// Names shown in an error.
const SHOWN: usize = 6;

/// A variant's classes are others than those of the first variant: one number stands for two answers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "its classes are {}, and those of `{first}` {}: the variants of a family have the same classes in the same order; correct its \
     `id2label`, or leave it out",
    listed(found),
    listed(expected)
)]
pub struct OtherClasses {
    /// Name of the first variant.
    pub first: String,
    /// Names of its classes.
    pub expected: Vec<String>,
    /// Names of the variant's classes.
    pub found: Vec<String>,
}

/// The classes of the first variant of a family, with which those of the others are compared.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    first: Option<(String, Vec<String>)>,
}

impl Classes {
    /// Compares the classes of the next variant with the first one's. Names that are no names (`LABEL_0`) and names that have none in common
    /// tell nothing about the order; the letter case does not count.
    ///
    /// # Errors
    /// [`OtherClasses`] if there are more or fewer, or the same in another order.
    pub fn check(&mut self, variant: &str, info: &ModelInfo) -> Result<(), OtherClasses> {
        if !matches!(info.task, Task::Classification | Task::MultiLabel) || info.labels.is_empty() {
            return Ok(());
        }
        self.check_names(variant, &info.labels)
    }

    /// The same, of a classifier whose classes have these names.
    ///
    /// # Errors
    /// As [`Classes::check`].
    pub fn check_names(&mut self, variant: &str, names: &[String]) -> Result<(), OtherClasses> {
        let Some((first, expected)) = &self.first else {
            self.first = Some((variant.to_owned(), names.to_vec()));
            return Ok(());
        };
        if are_alike(expected, names) {
            return Ok(());
        }
        Err(OtherClasses {
            first: first.clone(),
            expected: expected.clone(),
            found: names.to_vec(),
        })
    }
}

fn are_alike(expected: &[String], found: &[String]) -> bool {
    if expected.len() != found.len() {
        return false;
    }
    let lower = |names: &[String]| -> Vec<String> { names.iter().map(|name| name.to_lowercase()).collect() };
    let (expected, found) = (lower(expected), lower(found));
    let known: BTreeSet<&String> = expected.iter().collect();
    let mut pairs = expected.iter().zip(&found);
    pairs.all(|(expected, found)| expected == found || !known.contains(found))
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len() {
        all if all > SHOWN => format!("{shown}, ... ({all} in all)"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(task: Task, first: &[&str], second: &[&str]) -> Result<(), OtherClasses> {
        let info = |labels: &[&str]| ModelInfo {
            name: String::new(),
            architecture: String::new(),
            parameters: 1,
            weight_bytes: 4,
            task,
            labels: labels.iter().map(ToString::to_string).collect(),
            prompts: Vec::new(),
            similarity: kaskade_models::Similarity::default(),
        };
        let mut classes = Classes::default();
        classes.check("small", &info(first))?;
        classes.check("large", &info(second))
    }

    #[test]
    fn another_order_or_number_of_classes_is_refused() {
        let classes = |first: &[&str], other: &[&str]| second(Task::Classification, first, other);
        let names = ["negative", "positive"];
        let swapped = classes(&names, &["POSITIVE", "NEGATIVE"])
            .unwrap_err()
            .to_string();
        assert!(
            swapped.contains("`POSITIVE`, `NEGATIVE`")
                && swapped.contains("those of `small` `negative`, `positive`"),
            "{swapped}"
        );
        assert!(classes(&names, &["negative", "neutral", "positive"]).is_err());
        assert!(
            classes(&["a", "b"], &["b", "c"]).is_err(),
            "one is the same at another place"
        );
        let many: Vec<String> = (0..1_000).map(|class| format!("c{class}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let error = classes(&many, &names).unwrap_err().to_string();
        assert!(error.contains("1000 in all") && error.len() < 400, "{error}");
    }

    #[test]
    fn names_that_tell_nothing_are_accepted() {
        let classes = |first: &[&str], other: &[&str]| second(Task::Classification, first, other);
        let names = ["negative", "positive"];
        assert!(
            classes(&["crane", "owl", "crane"], &["crane", "eule", "crane"]).is_ok(),
            "one is known at its place"
        );
        for other in [
            &["Negative", "Positive"][..],
            &["LABEL_0", "LABEL_1"],
            &["bad", "good"],
            &[],
        ] {
            assert_eq!(classes(&names, other), Ok(()), "{other:?}");
            assert_eq!(classes(other, &names), Ok(()), "{other:?}");
        }
        assert!(second(Task::TokenClassification, &["O", "B-PER"], &["B-PER", "O"]).is_ok());
    }
}
