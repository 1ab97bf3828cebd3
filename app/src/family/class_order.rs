//! Wraps a classifier so that it answers with the app's classes, whatever their order and names in its checkpoint.

use kaskade_models::class_names::are_placeholders;
use kaskade_models::{Model, ModelError, Outputs, Tensor, best_class};

use crate::changed_answers::ChangedAnswers;

/// Names of outputs with one value per class.
const SCORES: [&str; 2] = ["logits", "probabilities"];

/// Mapping of the model's answers to the app's classes.
struct Answers {
    /// The model's class index of each of the app's classes; `None` if the indices are the same.
    order: Option<Vec<usize>>,
    /// The app's class names.
    names: Vec<String>,
    /// Whether the classes have names.
    has_names: bool,
    /// Whether exactly one class applies.
    one: bool,
}

/// Wraps a model so that its scores are in the order of the app's classes and its answers have the app's class names.
/// `order` is the model's class index of each class, `None` if the indices are the same; `one` states whether exactly
/// one class applies.
pub(super) fn in_class_order(
    model: Box<dyn Model>,
    order: Option<Vec<usize>>,
    names: Vec<String>,
    one: bool,
) -> Box<dyn Model> {
    let has_names = !are_placeholders(&names);
    let answers = Answers {
        order,
        names,
        has_names,
        one,
    };
    Box::new(ChangedAnswers::new(model, move |outputs| {
        answers.changed(outputs)
    }))
}

impl Answers {
    fn changed(&self, mut outputs: Outputs) -> Result<Outputs, ModelError> {
        for output in &mut outputs {
            if let Some(order) = self
                .order
                .as_ref()
                .filter(|_| SCORES.contains(&output.name.as_str()))
            {
                *output = ordered(output, order)?;
            }
        }
        if self.has_names {
            self.name_classes(&mut outputs)?;
        }
        Ok(outputs)
    }

    /// Adds the name of the best class, or the names of those that apply.
    fn name_classes(&self, outputs: &mut Outputs) -> Result<(), ModelError> {
        let [logits, probabilities] = SCORES.map(|name| outputs.iter().find(|output| output.name == name));
        let (name, chosen) = if self.one {
            let Some(scores) = logits.map(Tensor::to_f32).transpose()? else {
                return Ok(());
            };
            let best = best_class(&scores).filter(|_| scores.len() == self.names.len());
            let best = best.and_then(|class| self.names.get(class));
            ("label", best.into_iter().map(String::as_str).collect())
        } else {
            let Some(probabilities) = probabilities.map(Tensor::to_f32).transpose()? else {
                return Ok(());
            };
            let apply = probabilities.iter().zip(&self.names);
            let apply = apply.filter(|(probability, _)| **probability > 0.5);
            ("labels", apply.map(|(_, name)| name.as_str()).collect::<Vec<_>>())
        };
        outputs.retain(|output| output.name != name);
        if !chosen.is_empty() {
            outputs.push(Tensor::from_texts(name, &chosen)?);
        }
        Ok(())
    }
}

/// Returns scores in another order.
fn ordered(output: &Tensor, order: &[usize]) -> Result<Tensor, ModelError> {
    let values = output.to_f32()?;
    let ordered: Option<Vec<f32>> = order.iter().map(|own| values.get(*own).copied()).collect();
    let ordered = ordered.filter(|ordered| ordered.len() == values.len());
    let ordered = ordered.ok_or_else(|| ModelError::BadOutput {
        reason: format!(
            "`{}` has {} values for {} classes, so that they cannot be put into the order of the app's classes",
            output.name,
            values.len(),
            order.len()
        ),
    })?;
    Ok(Tensor::from_f32(output.name.as_str(), &output.shape, &ordered)?)
}

#[cfg(test)]
mod tests {
    use kaskade_models::Inputs;

    use super::*;

    struct Fixed(Outputs);

    impl Model for Fixed {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            batch.iter().map(|_| Ok(self.0.clone())).collect()
        }
    }

    fn floats(name: &str, values: &[f32]) -> Tensor {
        Tensor::from_f32(name, &[values.len()], values).unwrap()
    }

    fn answer(outputs: Outputs, order: Option<Vec<usize>>, one: bool) -> Result<Outputs, ModelError> {
        let names = ["negative", "neutral", "positive"].map(str::to_owned).to_vec();
        let mut model = in_class_order(Box::new(Fixed(outputs)), order, names, one);
        model.run(&[Vec::new()]).remove(0)
    }

    #[test]
    fn scores_and_names_are_those_of_the_app() {
        let label = Tensor::from_texts("label", &["POS"]).unwrap();
        let outputs = vec![floats("logits", &[3.0, 1.0, 2.0]), label];
        let answered = answer(outputs, Some(vec![1, 2, 0]), true).unwrap();
        assert_eq!(answered[0], floats("logits", &[1.0, 2.0, 3.0]));
        assert_eq!(answered[1].to_texts().unwrap(), ["positive"]);
        // The checkpoint has no class names.
        let answered = answer(vec![floats("logits", &[3.0, 3.0, 2.0])], None, true).unwrap();
        assert_eq!(answered[1].to_texts().unwrap(), ["negative"]);
        // Regression: the name was that of class 1, and the number 0.
        let answered = answer(vec![floats("logits", &[-0.0, 0.0, -1.0])], None, true).unwrap();
        assert_eq!(answered[1].to_texts().unwrap(), ["negative"]);
    }

    #[test]
    fn several_labels_are_ordered_and_named() {
        let outputs = vec![
            floats("logits", &[2.0, -1.0, 1.0]),
            floats("probabilities", &[0.9, 0.3, 0.7]),
            floats("confidence", &[0.4]),
            Tensor::from_texts("labels", &["POS", "NEU"]).unwrap(),
        ];
        let answered = answer(outputs, Some(vec![1, 2, 0]), false).unwrap();
        assert_eq!(answered[1], floats("probabilities", &[0.3, 0.7, 0.9]));
        assert_eq!(answered[2], floats("confidence", &[0.4]));
        assert_eq!(answered[3].to_texts().unwrap(), ["neutral", "positive"]);
    }

    #[test]
    fn another_number_of_scores_is_an_error() {
        let error = answer(vec![floats("logits", &[1.0, 2.0])], Some(vec![1, 2, 0]), true).unwrap_err();
        assert!(error.to_string().contains("2 values for 3 classes"), "{error}");
    }
}
