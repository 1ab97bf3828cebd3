//! Names of classes, compared across checkpoints.

use tokenizers::NormalizedString;

/// Returns a name in the form in which names of classes are compared: those that differ only in Unicode's forms of compatibility, in case,
/// or in spaces, underscores and hyphens are the same (`not_entailment`, `Not entailment `). The sign of a number counts (`-1`), and so do
/// names of nothing else (`-`).
pub fn comparable_name(name: &str) -> String {
    let mut normalised = NormalizedString::from(name);
    normalised.nfkc();
    let lower = normalised.get().trim().to_lowercase();
    let has_sign = lower
        .strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let words = lower.split(|character: char| character.is_whitespace() || matches!(character, '_' | '-'));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    match words.join(" ") {
        name if name.is_empty() => lower,
        number if has_sign => format!("-{number}"),
        name => name,
    }
}

/// Returns whether a name says nothing about the class of this number: `LABEL_` and the number.
pub fn is_placeholder(class: usize, name: &str) -> bool {
    name.strip_prefix("LABEL_")
        .is_some_and(|number| *number == class.to_string())
}

/// Returns whether the names say nothing about the classes: each is `LABEL_` and its own number, as transformers names classes that have no
/// names.
pub fn are_placeholders(names: &[String]) -> bool {
    let mut numbered = names.iter().enumerate();
    numbered.all(|(class, name)| is_placeholder(class, name))
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

    /// The classes `-1` and `1` of a sentiment were one, and so were those of `+` and `-`.
    #[test]
    fn signs_are_names() {
        let names = ["-1", "0", "1", "+1", "+", "-", "_"].map(comparable_name);
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(comparable_name(" -1 Star"), comparable_name("-1_star"));
        assert_eq!(comparable_name("covid-19"), comparable_name("Covid 19"));
        assert_eq!(comparable_name("- other"), comparable_name("other"));
    }

    #[test]
    fn numbers_of_other_classes_are_names() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(are_placeholders(&names(&["LABEL_0", "LABEL_1"])));
        assert!(!are_placeholders(&names(&["LABEL_1", "LABEL_0"])));
    }
}
