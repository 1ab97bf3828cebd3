//! Outputs of classifiers: one class, several labels, or the score of a pair of texts.

use crate::checkpoint::sentence::SentenceLayer;
use crate::checkpoint::{Config, LoadError, SentenceModules};
use crate::runtime::loaded::Task;
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor::Tensor;

/// Interpretation of a classifier's logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Classifier {
    kind: Kind,
    /// Class names in the order of the logits.
    labels: Vec<String>,
    /// Whether the configuration names the classes, so that outputs include the class name.
    named: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Single-label: exactly one class applies.
    One,
    /// Multi-label: each label applies or not.
    Several,
    /// A single score; `sigmoid` maps it to [0, 1].
    Score { sigmoid: bool },
}

impl Classifier {
    /// Reads labels and `problem_type`. A model with one label is a cross-encoder, whose score is the sigmoid of its
    /// logit unless the sentence-transformers configuration states another activation; for a regression, the score is
    /// the logit.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for labels with gaps, a regression of several values, and an unknown problem type or
    /// activation.
    pub(crate) fn read(config: &Config) -> Result<Self, LoadError> {
        Self::read_with(config, None)
    }

    /// Reads a classifier like [`Classifier::read`]. The activation in `config_sentence_transformers.json`, passed as
    /// `settings`, takes precedence over `config.json`.
    ///
    /// # Errors
    /// Same as [`Classifier::read`].
    pub(crate) fn read_with(config: &Config, settings: Option<&Config>) -> Result<Self, LoadError> {
        let labels = config.labels()?;
        let problem = config.optional::<String>("problem_type")?;
        let kind = match problem.as_deref() {
            Some("regression") if labels.len() == 1 => Kind::Score {
                sigmoid: activation(config, settings)?.unwrap_or(false),
            },
            Some("regression") => {
                return Err(config.invalid_value(
                    "problem_type",
                    "a regression of several values has no classes and no score; one with one label is supported",
                ));
            }
            Some("multi_label_classification") => Kind::Several,
            None | Some("single_label_classification") if labels.len() == 1 => Kind::Score {
                sigmoid: activation(config, settings)?.unwrap_or(true),
            },
            None | Some("single_label_classification") => Kind::One,
            Some(_) => {
                return Err(config.invalid_value(
                    "problem_type",
                    "single_label_classification and multi_label_classification are supported",
                ));
            }
        };
        let unnamed = |(class, label): (usize, &String)| *label == format!("LABEL_{class}");
        Ok(Self {
            kind,
            named: !labels.iter().enumerate().all(unnamed),
            labels,
        })
    }

    /// Returns the interpretation of the scores of a cross-encoder that consists of an encoder and modules; `None` if
    /// the modules return a vector.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an activation that is not supported.
    pub(crate) fn of_modules(modules: &SentenceModules) -> Result<Option<Self>, LoadError> {
        let Some(SentenceLayer::Dense(last)) = modules.layers.last().filter(|_| modules.is_scored) else {
            return Ok(None);
        };
        let settings = modules.settings.as_ref();
        let kind = match last.outputs {
            1 => Kind::Score {
                sigmoid: settings
                    .map(stated_activation)
                    .transpose()?
                    .flatten()
                    .unwrap_or(true),
            },
            _ => Kind::One,
        };
        Ok(Some(Self {
            kind,
            labels: (0..last.outputs).map(|class| format!("LABEL_{class}")).collect(),
            named: false,
        }))
    }

    /// Returns the number of logits.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns the class names.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.labels.clone()
    }

    /// Returns the task, which states the meaning of the outputs.
    pub(crate) fn task(&self) -> Task {
        match self.kind {
            Kind::One => Task::Classification,
            Kind::Several => Task::MultiLabel,
            Kind::Score { .. } => Task::Reranking,
        }
    }

    /// Returns the outputs of one request.
    ///
    /// - One class: `logits` FP32 `[labels]`, and `label` BYTES `[1]` if the configuration names the classes.
    /// - Several labels: `logits`, `probabilities` FP32 `[labels]`, `confidence` FP32 `[1]` (the probability that
    ///   every decision is right, if labels are independent), and `labels` BYTES `[n]` with those above one half, if
    ///   any.
    /// - Score: `logits` FP32 `[1]` and `score` FP32 `[1]`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor cannot be built.
    pub(crate) fn outputs(&self, logits: &[f32]) -> Result<Outputs, ModelError> {
        let mut outputs = vec![Tensor::from_f32("logits", &[logits.len()], logits)?];
        match self.kind {
            Kind::One => {
                if let Some(label) = best_class(logits)
                    .and_then(|class| self.labels.get(class))
                    .filter(|_| self.named)
                {
                    outputs.push(Tensor::from_texts("label", &[label])?);
                }
            }
            Kind::Several => {
                let probabilities: Vec<f32> = logits.iter().map(|logit| sigmoid_of(*logit)).collect();
                let sure = |probability: &f32| {
                    if *probability < 0.5 {
                        1.0 - probability
                    } else {
                        *probability
                    }
                };
                let confidence: f32 = probabilities.iter().map(sure).product();
                outputs.push(Tensor::from_f32(
                    "probabilities",
                    &[logits.len()],
                    &probabilities,
                )?);
                outputs.push(Tensor::from_f32("confidence", &[1], &[confidence])?);
                let chosen = self
                    .labels
                    .iter()
                    .zip(&probabilities)
                    .filter(|(_, probability)| **probability > 0.5);
                let chosen: Vec<&str> = chosen.map(|(label, _)| label.as_str()).collect();
                if !chosen.is_empty() {
                    outputs.push(Tensor::from_texts("labels", &chosen)?);
                }
            }
            Kind::Score { sigmoid } => {
                let score = logits.first().copied().unwrap_or(f32::NAN);
                let score = if sigmoid { sigmoid_of(score) } else { score };
                outputs.push(Tensor::from_f32("score", &[1], &[score])?);
            }
        }
        Ok(outputs)
    }
}

/// Returns whether the score of a cross-encoder is a sigmoid, by the activation that sentence-transformers saved;
/// `None` without one.
fn activation(config: &Config, settings: Option<&Config>) -> Result<Option<bool>, LoadError> {
    if let Some(stated) = settings.map(stated_activation).transpose()?.flatten() {
        return Ok(Some(stated));
    }
    let old = "sbert_ce_default_activation_function";
    if let Some(name) = config.optional::<String>(old)? {
        return is_sigmoid(config, old, &name).map(Some);
    }
    let key = "sentence_transformers";
    let saved = config.optional::<serde_json::Value>(key)?;
    let name = saved
        .as_ref()
        .and_then(|saved| saved.get("activation_fn")?.as_str());
    name.map(|name| is_sigmoid(config, key, name)).transpose()
}

/// Returns whether the activation in `config_sentence_transformers.json` is a sigmoid; `None` without one.
fn stated_activation(settings: &Config) -> Result<Option<bool>, LoadError> {
    let key = "activation_fn";
    let name = settings.optional::<String>(key)?;
    name.map(|name| is_sigmoid(settings, key, &name)).transpose()
}

fn is_sigmoid(config: &Config, key: &str, name: &str) -> Result<bool, LoadError> {
    match name.rsplit('.').next() {
        Some("Sigmoid") => Ok(true),
        Some("Identity") => Ok(false),
        _ => Err(config.invalid_value(key, "the activations Sigmoid and Identity are supported")),
    }
}

/// Returns the class with the maximum score, the first on ties (-0 equals 0); `None` without classes.
pub fn best_class(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (class, score) in scores.iter().copied().enumerate() {
        if best.is_none_or(|(_, largest)| score > largest) {
            best = Some((class, score));
        }
    }
    best.map(|(class, _)| class)
}

fn sigmoid_of(logit: f32) -> f32 {
    crate::ops::elementwise::sigmoid_of(logit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classifier(json: &str) -> Result<Classifier, LoadError> {
        Classifier::read(&Config::parse("config.json", json.as_bytes()).unwrap())
    }

    fn names(outputs: &Outputs) -> Vec<&str> {
        outputs.iter().map(|output| output.name.as_str()).collect()
    }

    #[test]
    fn the_problem_decides_the_outputs() {
        let named = classifier(r#"{"id2label": {"0": "cat", "1": "dog"}}"#).unwrap();
        let outputs = named.outputs(&[-1.0, 2.0]).unwrap();
        assert_eq!(
            (named.task(), names(&outputs)),
            (Task::Classification, vec!["logits", "label"])
        );
        assert_eq!(outputs[1].to_texts().unwrap(), ["dog"]);
        let unnamed = classifier(r#"{"num_labels": 3}"#).unwrap();
        assert_eq!(names(&unnamed.outputs(&[0.0; 3]).unwrap()), ["logits"]);

        let several =
            r#"{"id2label": {"0": "a", "1": "b", "2": "c"}, "problem_type": "multi_label_classification"}"#;
        let several = classifier(several).unwrap();
        let outputs = several.outputs(&[3.0, -2.0, 0.5]).unwrap();
        assert_eq!(several.task(), Task::MultiLabel);
        assert_eq!(
            names(&outputs),
            ["logits", "probabilities", "confidence", "labels"]
        );
        assert_eq!(outputs[3].to_texts().unwrap(), ["a", "c"]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let expected = sigmoid(3.0) * (1.0 - sigmoid(-2.0)) * sigmoid(0.5);
        assert!((outputs[2].to_f32().unwrap()[0] - expected).abs() < 1e-6);
        assert_eq!(names(&several.outputs(&[-3.0; 3]).unwrap()).len(), 3);
    }

    #[test]
    fn one_label_gives_a_score() {
        let score = |json: &str| {
            let classifier = classifier(json).unwrap();
            assert_eq!(classifier.task(), Task::Reranking);
            classifier.outputs(&[2.0]).unwrap()[1].to_f32().unwrap()[0]
        };
        assert!((score(r#"{"num_labels": 1}"#) - 0.880_797).abs() < 1e-6);
        let identity = "torch.nn.modules.linear.Identity";
        let json =
            format!(r#"{{"num_labels": 1, "sentence_transformers": {{"activation_fn": "{identity}"}}}}"#);
        assert!((score(&json) - 2.0).abs() < 1e-6);
        // Trained with transformers alone, a score is saved as a regression.
        assert!((score(r#"{"num_labels": 1, "problem_type": "regression"}"#) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn the_activation_of_sentence_transformers_comes_first() {
        let config = |json: &str| Config::parse("config.json", json.as_bytes()).unwrap();
        let score = |own: &str, settings: &str| {
            let classifier = Classifier::read_with(&config(own), Some(&config(settings)))?;
            Ok::<_, LoadError>(classifier.outputs(&[2.0]).unwrap()[1].to_f32().unwrap()[0])
        };
        let identity = r#"{"activation_fn": "torch.nn.modules.linear.Identity"}"#;
        let sigmoid = r#"{"activation_fn": "torch.nn.modules.activation.Sigmoid"}"#;
        let inside = format!(r#"{{"num_labels": 1, "sentence_transformers": {sigmoid}}}"#);
        assert!((score(&inside, identity).unwrap() - 2.0).abs() < 1e-6);
        let regression = r#"{"num_labels": 1, "problem_type": "regression"}"#;
        assert!((score(regression, sigmoid).unwrap() - 0.880_797).abs() < 1e-6);
        assert!((score(&inside, "{}").unwrap() - 0.880_797).abs() < 1e-6);
        let other = score(
            &inside,
            r#"{"activation_fn": "torch.nn.modules.activation.Tanh"}"#,
        );
        assert!(other.unwrap_err().to_string().contains("activation_fn"));
    }

    #[test]
    fn problems_without_classes_are_refused() {
        for (problem, reason) in [("regression", "no classes"), ("ranking", "are supported")] {
            let error = classifier(&format!(r#"{{"problem_type": "{problem}"}}"#))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("problem_type") && error.contains(reason),
                "{error}"
            );
        }
        let json = r#"{"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.Softmax"}"#;
        assert!(classifier(json).is_err());
    }

    #[test]
    fn not_a_number_stays_in_the_outputs() {
        for json in [
            r#"{"num_labels": 1}"#,
            r#"{"num_labels": 1, "problem_type": "multi_label_classification"}"#,
        ] {
            let outputs = classifier(json).unwrap().outputs(&[f32::NAN]).unwrap();
            assert!(outputs[1].to_f32().unwrap()[0].is_nan());
        }
    }
}
