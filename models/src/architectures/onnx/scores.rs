//! Finds the output with the class scores of a graph, and whether they are logits or probabilities.
//!
//! Exports of transformers and PyTorch end in logits, those of TensorFlow often in a softmax, and those of
//! scikit-learn, `XGBoost` and `LightGBM` (skl2onnx, onnxmltools) in a label and `probabilities`. Confidences are
//! computed from logits, so probabilities are returned as their logarithms, of which they are the softmax.

use super::session::Port;
use crate::checkpoint::{Config, LoadError};
use crate::runtime::loaded::Task;
use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Datatype, Tensor};
use crate::tasks::classification::Classifier;
use crate::tasks::embedding::EMBEDDING_OUTPUTS;

/// Name under which class scores are returned.
pub(super) const LOGITS: &str = "logits";

/// Names of the probabilities output in files of skl2onnx and onnxmltools.
const PROBABILITIES: [&str; 2] = ["probabilities", "output_probability"];

/// Maximum deviation of a sum of probabilities from 1: rounding, including that of f16 and quantised graphs.
const TOLERANCE: f32 = 0.02;

/// Form of a graph's class scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scores {
    /// Logits, or no class scores.
    AsTheyAre,
    /// Probabilities, in the output at this index.
    Probabilities(usize),
}

/// Returns a graph's outputs under the names that they are served with, and the form of its class scores. `softmax`
/// lists the values that softmax nodes compute.
///
/// The scores are the only output if it is FP32 `[batch, classes]` and not named like an embedding; otherwise, in a
/// graph without an output `logits`, the output with the probabilities name of skl2onnx and onnxmltools.
pub(super) fn find(outputs: &[Port], softmax: &[String]) -> (Vec<Port>, Scores) {
    let is_table = |port: &Port| {
        let is_vector = EMBEDDING_OUTPUTS.contains(&port.name.as_str());
        port.datatype == Datatype::F32 && port.shape.len() == 2 && !is_vector
    };
    let named = |port: &Port| PROBABILITIES.contains(&port.name.as_str());
    let place = match outputs {
        [only] if is_table(only) => Some(0),
        [_] => None,
        several if several.iter().any(|port| port.name == LOGITS) => None,
        several => several.iter().position(|port| is_table(port) && named(port)),
    };
    let mut served = outputs.to_vec();
    let Some((place, scores)) = place.and_then(|place| Some((place, served.get_mut(place)?))) else {
        return (served, Scores::AsTheyAre);
    };
    let are_probabilities = named(scores) || softmax.contains(&scores.name);
    LOGITS.clone_into(&mut scores.name);
    let scores = if are_probabilities {
        Scores::Probabilities(place)
    } else {
        Scores::AsTheyAre
    };
    (served, scores)
}

/// Returns the interpretation of a single logit, if `config.json` states one label, or states none and the graph has
/// one logit (`count`). `settings` is `config_sentence_transformers.json`.
///
/// # Errors
/// The [`LoadError::BadKey`] of [`Classifier::read_with`].
pub(super) fn of_one(
    config: Option<&Config>,
    settings: Option<&Config>,
    count: Option<usize>,
) -> Result<Option<Classifier>, LoadError> {
    let mut config = match config {
        Some(config) => config.clone(),
        None => Config::parse("config.json", b"{}")?,
    };
    let has = |key| config.keys().get(key).is_some_and(|value| !value.is_null());
    let is_stated = has("id2label") || has("num_labels");
    let stated = is_stated
        .then(|| config.labels())
        .transpose()?
        .map(|labels| labels.len());
    if stated.or(count) != Some(1) || count.is_some_and(|count| count != 1) {
        return Ok(None);
    }
    config.set("num_labels", 1.into());
    let classifier = Classifier::read_with(&config, settings)?;
    Ok(Some(classifier).filter(|classifier| classifier.task() == Task::Reranking))
}

impl Scores {
    /// Replaces probabilities by their logarithms in the outputs of a run.
    ///
    /// # Errors
    /// [`ModelError::BadOutput`] for a row that is not a distribution.
    pub(super) fn to_logits(self, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>, ModelError> {
        let Self::Probabilities(place) = self else {
            return Ok(outputs);
        };
        if let Some(output) = outputs.get_mut(place) {
            let mut values = output.to_f32()?;
            let classes = output.shape.last().copied().unwrap_or_default().max(1);
            for row in values.chunks_mut(classes) {
                let (sum, least) = (row.iter().sum::<f32>(), row.iter().copied().fold(0.0, f32::min));
                // Non-finite values are detected by the check of all outputs.
                if least < 0.0 || (sum - 1.0).abs() > TOLERANCE {
                    return Err(ModelError::BadOutput {
                        reason: format!(
                            "output `{}` holds probabilities that sum to {sum}, with the least at {least}",
                            output.name
                        ),
                    });
                }
                for value in row {
                    // The logarithm of a probability that was rounded to 0 must be finite; NaN stays NaN.
                    let inside = if *value < f32::MIN_POSITIVE {
                        f32::MIN_POSITIVE
                    } else {
                        *value
                    };
                    *value = inside.ln();
                }
            }
            *output = Tensor::from_f32(&output.name, &output.shape, &values)?;
        }
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Dimension;
    use super::*;

    fn port(name: &str, datatype: Datatype, extents: &[usize]) -> Port {
        Port {
            name: name.to_owned(),
            datatype,
            shape: std::iter::once(Dimension::Any("n".to_owned()))
                .chain(extents.iter().map(|extent| Dimension::Exactly(*extent)))
                .collect(),
        }
    }

    #[test]
    fn scores_are_found_by_node_and_by_name() {
        let softmax = ["p".to_owned()];
        let names = |(ports, scores): (Vec<Port>, Scores)| {
            let names: Vec<String> = ports.into_iter().map(|port| port.name).collect();
            (names, scores)
        };
        let table = |name: &str| port(name, Datatype::F32, &[3]);
        assert_eq!(
            names(find(&[table("x")], &softmax)),
            (vec!["logits".to_owned()], Scores::AsTheyAre)
        );
        assert_eq!(
            names(find(&[table("p")], &softmax)),
            (vec!["logits".to_owned()], Scores::Probabilities(0))
        );
        let label = port("output_label", Datatype::I64, &[]);
        assert_eq!(
            names(find(&[label.clone(), table("probabilities")], &[])).1,
            Scores::Probabilities(1)
        );
        // Two outputs with other names are returned unchanged, even if a softmax computes one.
        assert_eq!(
            names(find(&[label, table("p")], &softmax)).0,
            ["output_label", "p"]
        );
        assert_eq!(
            names(find(&[table("logits"), table("probabilities")], &[])).1,
            Scores::AsTheyAre
        );
    }

    #[test]
    fn one_logit_of_texts_is_a_score() {
        let of = |json: Option<&str>, count| {
            let config = json.map(|json| Config::parse("config.json", json.as_bytes()).unwrap());
            of_one(config.as_ref(), None, count).unwrap().is_some()
        };
        let one = Some(r#"{"id2label": {"0": "LABEL_0"}}"#);
        assert!(of(None, Some(1)) && of(Some("{}"), Some(1)) && of(one, Some(1)) && of(one, None));
        assert!(of(
            Some(r#"{"num_labels": 1, "problem_type": "regression"}"#),
            None
        ));
        let two = Some(r#"{"id2label": {"0": "a", "1": "b"}}"#);
        assert!(!of(None, Some(2)) && !of(Some("{}"), None) && !of(two, Some(1)) && !of(one, Some(2)));
        let several = Some(r#"{"num_labels": 1, "problem_type": "multi_label_classification"}"#);
        assert!(!of(several, Some(1)));
    }

    #[test]
    fn probabilities_become_logits_with_the_same_softmax() {
        let rows = [0.25, 0.75, 1.0, 0.0];
        let outputs = vec![Tensor::from_f32("p", &[2, 2], &rows).unwrap()];
        let logits = Scores::Probabilities(0).to_logits(outputs).unwrap();
        let values = logits[0].to_f32().unwrap();
        assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
        for (logit, p) in values.iter().zip(rows) {
            assert!((logit.exp() - p).abs() < 1e-6);
        }
    }

    #[test]
    fn rows_that_are_no_distribution_are_refused() {
        for row in [[0.6, 0.6], [1.5, -0.5]] {
            let outputs = vec![Tensor::from_f32("p", &[1, 2], &row).unwrap()];
            let error = Scores::Probabilities(0).to_logits(outputs).unwrap_err();
            assert!(matches!(error, ModelError::BadOutput { .. }), "{error}");
        }
        // The check of all outputs rejects these.
        let outputs = vec![Tensor::from_f32("p", &[1, 2], &[f32::NAN, 0.5]).unwrap()];
        let logits = Scores::Probabilities(0).to_logits(outputs).unwrap();
        assert!(logits[0].to_f32().unwrap()[0].is_nan());
    }
}
