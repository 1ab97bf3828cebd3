//! Converts labels to the form in which answers are compared.

use kaskade_policy::certificate_monitor::{Class, ComparedAnswer, RecentReply};
use kaskade_policy::confidence::deferral::number_of_text;

use super::class_names::{self, ClassNames};
use crate::wire::FeedbackLabel;

/// Number of class names that an error lists.
const SHOWN: usize = 8;

/// Longest part of a name that an error repeats, characters.
const MAX_ECHO: usize = 64;

/// A label in the form in which answers are compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ParsedLabel {
    pub(super) answer: ComparedAnswer,
    /// Whether the label is a class name that could not be checked because the class names are unknown.
    pub(super) is_unchecked: bool,
}

impl From<ComparedAnswer> for ParsedLabel {
    fn from(answer: ComparedAnswer) -> Self {
        Self {
            answer,
            is_unchecked: false,
        }
    }
}

/// Converts a label to the form in which answers are compared.
///
/// # Errors
/// The reason why the label cannot be compared with the answer.
pub(super) fn parse_label(
    label: &FeedbackLabel,
    reply: &RecentReply,
    names: &ClassNames,
) -> Result<ParsedLabel, String> {
    match (label, &reply.answer) {
        (FeedbackLabel::Class(number), ComparedAnswer::Class(class)) => {
            Ok(numbered(*number, class.of)?.into())
        }
        (FeedbackLabel::Text(text), ComparedAnswer::Class(class)) => named(text.trim(), class, reply, names),
        (FeedbackLabel::Text(text), answer) => Ok(of_text(text, answer).into()),
        // For instance the answer `42` of a language model.
        (FeedbackLabel::Class(number), answer) => Ok(of_text(&number.to_string(), answer).into()),
    }
}

fn of_text(text: &str, answer: &ComparedAnswer) -> ComparedAnswer {
    match answer {
        ComparedAnswer::Text { by, .. } => ComparedAnswer::text(text, *by),
        ComparedAnswer::Class(_) | ComparedAnswer::Number(_) => {
            ComparedAnswer::Number(number_of_text(text.trim()).into())
        }
    }
}

fn numbered(number: u64, of: u64) -> Result<ComparedAnswer, String> {
    if number < of {
        return Ok(ComparedAnswer::class(number, of, None));
    }
    let last = of.saturating_sub(1);
    Err(format!(
        "{number} is none of the {of} classes, which are 0 to {last}"
    ))
}

/// Returns the class with a name. Letter case is ignored unless classes differ by it only. A text that is not a class
/// name may be a class number.
fn named(name: &str, class: &Class, reply: &RecentReply, names: &ClassNames) -> Result<ParsedLabel, String> {
    let known = names.of(&reply.variant, class);
    let find = |is: &dyn Fn(&str) -> bool| {
        let answers = [Some(&reply.answer), reply.largest.as_ref()];
        let answer = answers.into_iter().flatten().find(
            |answer| matches!(answer, ComparedAnswer::Class(class) if class.name.as_deref().is_some_and(is)),
        );
        let announced = || {
            let mut announced = (0_u64..).zip(known.iter().flat_map(|names| names.iter()));
            let (number, name) = announced.find(|(_, name)| is(name))?;
            Some(ComparedAnswer::class(number, class.of, Some(name)))
        };
        answer.cloned().or_else(announced)
    };
    let alike = || find(&|known| known.eq_ignore_ascii_case(name));
    if let Some(answer) = find(&|known| known == name).or_else(alike) {
        return Ok(answer.into());
    }
    if let Ok(number) = name.parse() {
        return Ok(numbered(number, class.of)?.into());
    }
    if let Some(names) = known {
        return Err(unknown_name(name, &names));
    }
    if class.name.is_none() {
        return Err(format!(
            "{} is not the number of a class, and the answer's class has no name; send a number from 0",
            quoted(name)
        ));
    }
    // Only the class names of the answers are known: the label is another class, or misspelt.
    Ok(ParsedLabel {
        answer: ComparedAnswer::Number(number_of_text(name).into()),
        is_unchecked: true,
    })
}

/// Returns the message that a name is not a class name, with the most similar class name.
fn unknown_name(name: &str, names: &[String]) -> String {
    let (said, count) = (quoted(name), names.len());
    if let Some(nearest) = class_names::nearest(name, names) {
        return format!(
            "{said} is none of the {count} classes; is it {}?",
            quoted(nearest)
        );
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| quoted(name)).collect();
    let more = if count > SHOWN { ", ..." } else { "" };
    format!(
        "{said} is none of the {count} classes, which are {}{more}",
        shown.join(", ")
    )
}

/// Returns the beginning of a name, so that the message with it stays small.
fn quoted(name: &str) -> String {
    match name.char_indices().nth(MAX_ECHO) {
        None => format!("`{name}`"),
        Some((end, _)) => format!("`{}...`", name.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ContentType, Feedback, Heartbeat, Message as _, ModelInterface};

    fn reply(answer: ComparedAnswer, largest: Option<ComparedAnswer>) -> RecentReply {
        RecentReply {
            epoch: 1,
            index: 1,
            variant: "small".to_owned(),
            answer,
            largest,
            audit: None,
        }
    }

    fn text(text: &str) -> FeedbackLabel {
        FeedbackLabel::Text(text.to_owned())
    }

    /// Returns whether the answer and the largest variant's answer are correct.
    fn compared(label: &FeedbackLabel, reply: &RecentReply) -> Result<[bool; 2], String> {
        let right = parse_label(label, reply, &ClassNames::default())?.answer;
        let largest = reply.largest.as_ref();
        Ok([
            right.accepts(&reply.answer),
            largest.is_some_and(|answer| right.accepts(answer)),
        ])
    }

    /// Names of three classes, as a worker announces them.
    fn announced() -> ClassNames {
        announced_as(["land", "sea", "air"].map(str::to_owned).to_vec())
    }

    fn announced_as(labels: Vec<String>) -> ClassNames {
        let model = ModelInterface {
            labels,
            ..ModelInterface::default()
        };
        let names = ClassNames::default();
        let beat = Heartbeat {
            models: [("large".to_owned(), model)].into(),
            ..Heartbeat::default()
        };
        names.record(&beat, |_| true);
        names
    }

    /// Regression: a misspelt name counted as a wrong answer, which refutes certificates.
    #[test]
    fn a_name_that_no_class_has_is_refused_if_the_names_are_known() {
        let named = reply(ComparedAnswer::class(1, 3, Some("sea")), None);
        let unnamed = reply(ComparedAnswer::class(1, 3, None), None);
        for reply in [&named, &unnamed] {
            let right = |label: &str| parse_label(&text(label), reply, &announced());
            assert!(right(" SEA").unwrap().answer.accepts(&reply.answer));
            let other = right("air").unwrap();
            assert!(!other.is_unchecked && !other.answer.accepts(&reply.answer));
            assert_eq!(other.answer, ComparedAnswer::class(2, 3, Some("air")));
            assert!(right("1").unwrap().answer.accepts(&reply.answer));
            let misspelt = right("laand").unwrap_err();
            assert_eq!(misspelt, "`laand` is none of the 3 classes; is it `land`?");
            let strange = right("forest").unwrap_err();
            assert!(strange.contains("which are `land`, `sea`, `air`"), "{strange}");
        }
        let unknown = parse_label(&text("laand"), &named, &ClassNames::default()).unwrap();
        assert!(unknown.is_unchecked && !unknown.answer.accepts(&named.answer));
        let more = reply(ComparedAnswer::class(1, 4, Some("sea")), None);
        assert!(
            parse_label(&text("laand"), &more, &announced())
                .unwrap()
                .is_unchecked,
            "the names of another number of classes"
        );
    }

    /// Regression: names of any app with the same number of classes were used, so correct labels were refused.
    #[test]
    fn a_name_is_not_refused_by_names_that_are_not_those_of_the_answer() {
        let spam = reply(ComparedAnswer::class(1, 3, Some("spam")), None);
        let right = parse_label(&text("ham"), &spam, &announced()).unwrap();
        assert!(right.is_unchecked && !right.answer.accepts(&spam.answer));
    }

    /// Regression: comparing the label with each name took seconds of the actor, and the refusal did not fit into a
    /// message.
    #[test]
    fn a_long_label_is_refused_with_a_short_message() {
        let names = (0..1_000).map(|number| format!("{number}{}", "n".repeat(300)));
        let names = announced_as(names.collect());
        let feedback = Feedback {
            id: "r1".to_owned(),
            label: text(&"ä".repeat(256 << 10)),
        };
        let body = feedback.encode().unwrap();
        let label = Feedback::read(ContentType::MessagePack, &body).unwrap().label;
        for label in [label, text("ä"), text(&"1nnnnnnnn".repeat(4))] {
            let unnamed = reply(ComparedAnswer::class(1, 1_000, None), None);
            let reason = parse_label(&label, &unnamed, &names).unwrap_err();
            assert!(reason.len() < 1_024, "{} bytes", reason.len());
        }
        let unnamed = reply(ComparedAnswer::class(1, 7, None), None);
        let reason = parse_label(&text(&"x".repeat(16 << 10)), &unnamed, &names).unwrap_err();
        assert!(
            reason.len() < 1_024 && reason.contains("not the number"),
            "{reason}"
        );
    }

    /// Regression: every answer counted as wrong if the label was a name, although data sets and replies use names.
    #[test]
    fn a_class_is_labelled_by_its_name_or_its_number() {
        let class = |number, name: &str| ComparedAnswer::class(number, 3, Some(name));
        let audited = reply(class(1, "sea"), Some(class(2, "7")));
        assert_eq!(compared(&text(" Sea "), &audited), Ok([true, false]));
        assert_eq!(compared(&text("1"), &audited), Ok([true, false]));
        assert_eq!(compared(&FeedbackLabel::Class(1), &audited), Ok([true, false]));
        // A text that is both a name and a number is a name.
        assert_eq!(compared(&text("7"), &audited), Ok([false, true]));
        assert_eq!(compared(&text("land"), &audited), Ok([false, false]));
    }

    #[test]
    fn a_label_that_cannot_be_a_class_is_refused() {
        let unnamed = reply(ComparedAnswer::class(1, 3, None), None);
        assert_eq!(compared(&FeedbackLabel::Class(2), &unnamed), Ok([false, false]));
        for (label, said) in [
            (text("sea"), "not the number of a class"),
            (text("3"), "none of the 3 classes"),
            (FeedbackLabel::Class(3), "which are 0 to 2"),
        ] {
            let reason = compared(&label, &unnamed).unwrap_err();
            assert!(reason.contains(said), "{reason}");
        }
    }

    /// Regression: `--label 42` is read as a number, and was compared with the hash of the answer.
    #[test]
    fn a_number_may_be_the_text_of_an_answer() {
        let number = |text| ComparedAnswer::Number(number_of_text(text).into());
        let answered = reply(number("42"), None);
        assert_eq!(compared(&FeedbackLabel::Class(42), &answered), Ok([true, false]));
        assert_eq!(compared(&FeedbackLabel::Class(41), &answered), Ok([false, false]));
    }
}
