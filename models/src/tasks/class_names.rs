//! Names of classes, compared across checkpoints.

use tokenizers::NormalizedString;

/// Returns a name in the form in which names of classes are compared: those that differ only in Unicode's forms of compatibility, in case,
/// or in spaces, underscores and hyphens are the same (`not_entailment`, `Not entailment `).
pub fn comparable_name(name: &str) -> String {
    let mut normalised = NormalizedString::from(name);
    normalised.nfkc();
    let lower = normalised.get().to_lowercase();
    let words = lower.split(|character: char| character.is_whitespace() || matches!(character, '_' | '-'));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Returns whether the names say nothing about the classes: each is `LABEL_` and its own number, as transformers names classes that have no
/// names.
pub fn are_placeholders(names: &[String]) -> bool {
    let placeholder = |(class, name): (usize, &String)| *name == format!("LABEL_{class}");
    names.iter().enumerate().all(placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_spelling_are_the_same() {
        for (one, other) in [
            ("not_entailment", "Not-Entailment "),
            ("very  negative", "very_negative"),
            ("n\u{e9}gatif", "ne\u{301}gatif"),
            ("5 \u{2605}", "5_\u{2605}"),
            ("\u{ff21}", "a"),
        ] {
            assert_eq!(comparable_name(one), comparable_name(other));
        }
        assert_ne!(
            comparable_name("notentailment"),
            comparable_name("not entailment")
        );
    }

    #[test]
    fn numbers_of_other_classes_are_names() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(are_placeholders(&names(&["LABEL_0", "LABEL_1"])));
        assert!(!are_placeholders(&names(&["LABEL_1", "LABEL_0"])));
    }
}
