//! Class names, compared across checkpoints.

use tokenizers::NormalizedString;

/// Normalises a class name for comparison: names that differ only in Unicode compatibility forms, case, spaces,
/// underscores or hyphens become equal (`not_entailment`, `Not entailment `). The sign of a number is kept (`-1`), and
/// so are names that consist of such characters only (`-`).
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

/// Returns whether a name is the placeholder of this class: `LABEL_` and the class number.
pub fn is_placeholder(class: usize, name: &str) -> bool {
    name.strip_prefix("LABEL_")
        .is_some_and(|number| *number == class.to_string())
}

/// Returns whether all names are placeholders, `LABEL_` and the class number, as transformers writes for classes
/// without names.
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

    /// Regression: the sentiment classes `-1` and `1` were equal, and so were `+` and `-`.
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
