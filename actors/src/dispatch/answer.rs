//! Converts model answers into comparable forms.

use std::borrow::Cow;

use kaskade_models::{Tensor, best_class, entities};
use kaskade_policy::certificate_monitor::ComparedAnswer;
use kaskade_policy::confidence::deferral::number_of_text;
use kaskade_policy::text_metrics::TextComparison;

/// Returns a number that identifies an answer in profiles, stage scores and audits; equal answers have equal numbers. A
/// class is its own number. A text, a span (its text, or its ends without one), entities and sets of classes are
/// hashed. `None` if answers of this kind cannot be compared, such as embeddings.
pub fn answer_number(outputs: &[Tensor]) -> Option<u32> {
    other_than_class(outputs).or_else(|| largest(outputs, "logits"))
}

/// Returns the number of an answer that is not a single class.
fn other_than_class(outputs: &[Tensor]) -> Option<u32> {
    if let Some(text) = text(outputs, "text") {
        return Some(number_of_text(text.trim()));
    }
    if let Some(entities) = entities::answer(outputs) {
        return Some(number_of_text(entities.trim()));
    }
    if let (Some(start), Some(end)) = (largest(outputs, "start_logits"), largest(outputs, "end_logits")) {
        // Tokenizers differ in the positions of the same text.
        return Some(match text(outputs, "answer") {
            Some(answer) => number_of_text(answer.trim()),
            None => number_of_text(&format!("{start} {end}")),
        });
    }
    several(outputs).map(|classes| number_of_text(&classes))
}

/// Returns the class of an answer, with the class name if the model outputs one.
fn class(outputs: &[Tensor]) -> Option<ComparedAnswer> {
    let logits = outputs.iter().find(|output| output.name == "logits")?;
    let of: usize = logits.shape.iter().product();
    let number = largest(outputs, "logits")?;
    Some(ComparedAnswer::class(
        number.into(),
        of as u64,
        text(outputs, "label"),
    ))
}

/// Returns an answer as audits and labels compare it. With `texts`, answers of language models, spans and entities are
/// compared as texts; other answers are compared by their numbers.
pub(crate) fn comparable(outputs: &[Tensor], texts: Option<TextComparison>) -> Option<ComparedAnswer> {
    let found = || {
        let text = text(outputs, "text").or_else(|| text(outputs, "answer"));
        text.map(Cow::from)
            .or_else(|| entities::answer(outputs).map(Cow::from))
    };
    match texts.and_then(|by| Some((by, found()?))) {
        Some((by, text)) => Some(ComparedAnswer::text(&text, by)),
        None => match other_than_class(outputs) {
            Some(number) => Some(ComparedAnswer::Number(number.into())),
            None => class(outputs),
        },
    }
}

/// Returns the classes of a multi-label answer as one text; `None` for other answers.
fn several(outputs: &[Tensor]) -> Option<String> {
    let find = |name: &str| outputs.iter().find(|output| output.name == name);
    // Softmax probabilities come without a confidence output.
    if let (Some(probabilities), Some(_)) = (find("probabilities"), find("confidence")) {
        let probabilities = probabilities.to_f32().ok()?;
        let applies = (0_u32..)
            .zip(probabilities)
            .filter(|(_, probability)| *probability > 0.5);
        let applies: Vec<String> = applies.map(|(class, _)| class.to_string()).collect();
        return Some(applies.join(" "));
    }
    Some(find("labels")?.to_texts().ok()?.join("\n"))
}

fn text<'a>(outputs: &'a [Tensor], name: &str) -> Option<&'a str> {
    let output = outputs.iter().find(|output| output.name == name)?;
    output.to_texts().ok()?.first().copied()
}

/// Returns the index of the largest value of an output; the first of equal values.
fn largest(outputs: &[Tensor], name: &str) -> Option<u32> {
    let output = outputs.iter().find(|output| output.name == name)?;
    let best = best_class(&output.to_f32().ok()?)?;
    u32::try_from(best).ok()
}

#[cfg(test)]
mod tests {
    use kaskade_policy::text_metrics::Metric;

    use super::*;

    fn floats(name: &str, values: &[f32]) -> Tensor {
        Tensor::from_f32(name, &[values.len()], values).unwrap()
    }

    #[test]
    fn the_same_answer_has_the_same_number() {
        assert_eq!(answer_number(&[floats("logits", &[0.1, 3.0, 3.0])]), Some(1));
        assert_eq!(answer_number(&[floats("embedding", &[0.1])]), None);
        let span = |start: &[f32], end: &[f32]| {
            answer_number(&[floats("start_logits", start), floats("end_logits", end)])
        };
        assert_eq!(span(&[0.0, 1.0], &[0.0, 2.0]), span(&[0.5, 0.7], &[-1.0, 0.0]));
        assert_ne!(span(&[0.0, 1.0], &[0.0, 2.0]), span(&[0.0, 1.0], &[2.0, 0.0]));
        // Positions of a text differ between tokenizers.
        let answer = |text: &str, at: &[f32]| {
            let text = Tensor::from_texts("answer", &[text]).unwrap();
            answer_number(&[text, floats("start_logits", at), floats("end_logits", at)])
        };
        assert_eq!(answer("the sea", &[0.0, 1.0]), answer(" the sea", &[1.0, 0.0]));
        assert_ne!(answer("the sea", &[1.0]), answer("sea", &[1.0]));
        let text = |text: &str| answer_number(&[Tensor::from_texts("text", &[text]).unwrap()]);
        assert_eq!(text(" yes\n"), text("yes"));
        assert_ne!(text("yes"), text("no"));
    }

    #[test]
    fn texts_and_spans_are_compared_by_a_metric_if_there_is_one() {
        let by = TextComparison {
            metric: Metric::F1,
            min_score: 0.5,
        };
        let of = |name: &str, text: &str| {
            let outputs = [
                Tensor::from_texts(name, &[text]).unwrap(),
                floats("start_logits", &[1.0]),
                floats("end_logits", &[1.0]),
            ];
            [Some(by), None].map(|by| comparable(&outputs, by).unwrap())
        };
        for name in ["text", "answer"] {
            let ([one, _], [other, _]) = (of(name, "a whale"), of(name, "The whale."));
            assert!(one.accepts(&other) && !one.accepts(&of(name, "a ship")[0]));
        }
        let ([_, one], [_, other]) = (of("text", "a whale"), of("text", "The whale."));
        assert!(!one.accepts(&other));
        // A class has no text.
        let class = comparable(&[floats("logits", &[0.1, 3.0])], Some(by)).unwrap();
        assert_eq!(class, ComparedAnswer::class(1, 2, None));
        let named = [
            floats("logits", &[0.1, 3.0]),
            Tensor::from_texts("label", &["sea"]).unwrap(),
        ];
        assert_eq!(
            comparable(&named, None),
            Some(ComparedAnswer::class(1, 2, Some("sea")))
        );
    }

    #[test]
    fn entities_are_compared_by_their_characters_and_labels() {
        let of = |spans: &[i64], labels: &[&str]| {
            vec![
                Tensor::from_f32("logits", &[1, 2], &[1.0, 0.0]).unwrap(),
                floats("confidence", &[0.5]),
                Tensor::from_texts("entities", labels).unwrap(),
                Tensor::from_i64("entity_spans", &[labels.len(), 2], spans).unwrap(),
            ]
        };
        let (two, reordered) = (
            of(&[0, 5, 8, 9], &["PER", "LOC"]),
            of(&[8, 9, 0, 5], &["LOC", "PER"]),
        );
        let one = of(&[0, 5], &["PER"]);
        assert_eq!(answer_number(&two), answer_number(&reordered));
        assert_ne!(answer_number(&two), answer_number(&one));
        let by = |min_score| TextComparison {
            metric: Metric::EntityF1,
            min_score,
        };
        let accepts = |by| {
            comparable(&two, Some(by))
                .unwrap()
                .accepts(&comparable(&one, Some(by)).unwrap())
        };
        assert!(accepts(by(0.6)) && !accepts(by(0.7)));
    }

    #[test]
    fn several_labels_are_compared_as_a_set() {
        let of = |probabilities: &[f32]| {
            // The strongest is the same.
            answer_number(&[
                floats("logits", &[5.0, 0.1, -1.0]),
                floats("probabilities", probabilities),
                floats("confidence", &[0.5]),
            ])
        };
        assert_eq!(of(&[0.99, 0.6, 0.1]), of(&[0.9, 0.51, 0.5]));
        assert_ne!(of(&[0.99, 0.6, 0.1]), of(&[0.99, 0.4, 0.1]));
        let none = of(&[0.1, 0.2, 0.3]);
        assert_ne!(none, of(&[0.9, 0.2, 0.3]));
    }
}
