//! From log probabilities of tokens to class scores and confidences.

use std::collections::BTreeMap;

use kaskade_policy::confidence::{Calibration, Estimator, Scores};
use serde::Deserialize;

use super::{malformed, or_default};
use crate::error::CallError;

/// The log probabilities of an answer: `content` of chat completions, or the three lists of completions.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Logprobs {
    #[serde(default)]
    content: Option<Vec<StatedPlace>>,
    #[serde(default)]
    tokens: Option<Vec<String>>,
    #[serde(default, rename = "token_logprobs")]
    of_tokens: Option<Vec<Option<f64>>>,
    #[serde(default, rename = "top_logprobs")]
    most_probable: Option<Vec<Option<StatedTop>>>,
}

/// The most probable tokens of a place; a log probability that is null is unknown.
type StatedTop = BTreeMap<String, Option<f64>>;

/// One token as the endpoint states it. A log probability that is null is unknown.
#[derive(Debug, Clone, Deserialize)]
struct StatedPlace {
    #[serde(default, deserialize_with = "or_default")]
    token: String,
    logprob: Option<f64>,
    #[serde(default, deserialize_with = "or_default")]
    top_logprobs: Vec<StatedCandidate>,
}

#[derive(Debug, Clone, Deserialize)]
struct StatedCandidate {
    token: String,
    logprob: Option<f64>,
}

impl Logprobs {
    /// Returns them by token, without those that are unknown.
    ///
    /// # Errors
    /// [`CallError::Malformed`] if the lists have different lengths.
    pub(super) fn places(self) -> Result<Vec<Place>, CallError> {
        let (Some(tokens), Some(logprobs)) = (self.tokens, self.of_tokens) else {
            let stated = self.content.unwrap_or_default().into_iter();
            return Ok(stated.filter_map(StatedPlace::known).collect());
        };
        if tokens.len() != logprobs.len() {
            return Err(malformed(format!(
                "it has {} log probabilities for {} tokens",
                logprobs.len(),
                tokens.len()
            )));
        }
        let mut tops = self.most_probable.unwrap_or_default().into_iter();
        let places = tokens.into_iter().zip(logprobs).filter_map(|(token, logprob)| {
            let top = tops.next().flatten().unwrap_or_default().into_iter();
            let top_logprobs = top.map(|(token, logprob)| StatedCandidate { token, logprob });
            let stated = StatedPlace {
                token,
                logprob,
                top_logprobs: top_logprobs.collect(),
            };
            stated.known()
        });
        Ok(places.collect())
    }
}

impl StatedPlace {
    /// Returns what is known of the token; `None` if its log probability is not.
    fn known(self) -> Option<Place> {
        let known = |StatedCandidate { token, logprob }| {
            Some(Candidate {
                token,
                logprob: logprob?,
            })
        };
        Some(Place {
            token: self.token,
            logprob: self.logprob?,
            top_logprobs: self.top_logprobs.into_iter().filter_map(known).collect(),
        })
    }
}

/// A token of an answer.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub token: String,
    pub logprob: f64,
    /// The most probable tokens here.
    pub top_logprobs: Vec<Candidate>,
}

/// A token that was probable at some place.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub token: String,
    pub logprob: f64,
}

/// Rounding lets a certain token have slightly more than probability 1.
const TOLERANCE: f64 = 1e-3;

/// Log probability of a class none of whose tokens is among the most probable, below the least of those.
const BELOW: f64 = 1.0;

/// Least probability of all labels together in an answer that is one of them.
const LABELLED: f64 = 0.5;

/// Lowest score: servers write -9999 for "impossible", which no temperature could bring back.
const LOWEST: f64 = -30.0;

impl Place {
    /// Checks that every log probability is one.
    ///
    /// # Errors
    /// [`CallError::Malformed`].
    pub(super) fn check(&self) -> Result<(), CallError> {
        let all = self.top_logprobs.iter().map(|candidate| candidate.logprob);
        match all
            .chain([self.logprob])
            .find(|logprob| logprob.is_nan() || *logprob > TOLERANCE)
        {
            None => Ok(()),
            Some(bad) => Err(malformed(format!("{bad} is not a log probability"))),
        }
    }

    /// Probability of the token.
    pub(super) fn probability(&self) -> f32 {
        self.logprob.exp().min(1.0) as f32
    }

    /// Confidence in the token: as of a local language model, the square of the largest probability among the most
    /// probable tokens (HybridServe Edinburgh §IV-A). Of these the `most` most probable count: a request that wants to see more
    /// tokens has no other confidence.
    pub(super) fn confidence(&self, most: usize) -> f32 {
        let logprobs: Vec<f32> = self
            .most_probable(most)
            .into_iter()
            .map(|one| one.logprob.max(LOWEST) as f32)
            .collect();
        let calibration = Calibration {
            estimator: Estimator::TopK { k: 10 },
            temperature: 1.0,
        };
        let of_top = calibration.confidence(&Scores::Logits(&logprobs)).ok();
        of_top.map_or_else(|| self.probability().powi(2), |confidence| confidence as f32)
    }

    /// Returns the `most` most probable tokens, the most probable one first.
    pub(super) fn most_probable(&self, most: usize) -> Vec<&Candidate> {
        let mut candidates: Vec<&Candidate> = self.top_logprobs.iter().collect();
        candidates.sort_by(|one, other| other.logprob.total_cmp(&one.logprob));
        candidates.truncate(most);
        candidates
    }

    /// Log probabilities of labels, by their first token: the sum over the tokens that begin one label and no other.
    /// `None` if they have less than half of the probability: the model says something else.
    pub(super) fn scores(&self, labels: &[String]) -> Option<Vec<f32>> {
        let own = Candidate {
            token: self.token.clone(),
            logprob: self.logprob,
        };
        let mut candidates: Vec<&Candidate> = self.top_logprobs.iter().collect();
        if !candidates.iter().any(|candidate| candidate.token == own.token) {
            candidates.push(&own);
        }
        let mut masses = vec![0.0_f64; labels.len()];
        for candidate in &candidates {
            let begins = |label: &String| begins(label, &candidate.token);
            let mut begun = labels.iter().zip(&mut masses).filter(|(label, _)| begins(label));
            if let (Some((_, mass)), None) = (begun.next(), begun.next()) {
                *mass += candidate.logprob.exp();
            }
        }
        if masses.iter().sum::<f64>() < LABELLED {
            return None;
        }
        let least = candidates
            .iter()
            .map(|one| one.logprob)
            .fold(0.0, f64::min)
            .max(LOWEST);
        let score = |mass: f64| if mass > 0.0 { mass.ln() } else { least - BELOW };
        Some(
            masses
                .into_iter()
                .map(|mass| score(mass).max(LOWEST - BELOW) as f32)
                .collect(),
        )
    }
}

/// Returns whether a token is the beginning of a label, or the label with something behind it.
fn begins(label: &str, token: &str) -> bool {
    let token = token
        .trim()
        .trim_matches(|c: char| c.is_ascii_punctuation())
        .to_lowercase();
    let label = label.to_lowercase();
    !token.is_empty() && (label.starts_with(&token) || token.starts_with(&label))
}

/// The label that a text begins with, if it is one alone.
pub(super) fn label_of(text: &str, labels: &[String]) -> Option<usize> {
    let word = text.split_whitespace().next()?;
    let mut fitting = labels.iter().enumerate().filter(|(_, label)| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        word.eq_ignore_ascii_case(label)
    });
    match (fitting.next(), fitting.next()) {
        (Some((class, _)), None) => Some(class),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<String> {
        ["negative", "positive", "neutral"].map(str::to_owned).to_vec()
    }

    fn place(token: &str, top: &[(&str, f64)]) -> Place {
        let candidates = top.iter().map(|(token, probability)| Candidate {
            token: (*token).to_owned(),
            logprob: probability.ln(),
        });
        let own = top
            .iter()
            .find(|(other, _)| *other == token)
            .map_or(0.5, |(_, probability)| *probability);
        Place {
            token: token.to_owned(),
            logprob: own.ln(),
            top_logprobs: candidates.collect(),
        }
    }

    #[test]
    fn tokens_that_begin_one_label_count_for_it() {
        let place = place(
            "pos",
            &[
                ("pos", 0.5),
                (" Positive", 0.2),
                ("neg", 0.15),
                ("ne", 0.1),
                ("the", 0.05),
            ],
        );
        let scores = place.scores(&labels()).unwrap();
        let probabilities: Vec<f32> = scores.iter().map(|score| score.exp()).collect();
        assert!(
            (probabilities[0] - 0.15).abs() < 1e-6 && (probabilities[1] - 0.7).abs() < 1e-6,
            "{probabilities:?}"
        );
        // `ne` begins two labels, and nothing else begins the third.
        assert!(probabilities[2] < 0.05);
        assert_eq!(place.scores(&["yes".to_owned(), "no".to_owned()]), None);
    }

    #[test]
    fn what_is_no_log_probability_is_refused() {
        let fine = place("a", &[("a", 0.9), ("b", 0.1)]);
        assert!(fine.check().is_ok());
        assert!((fine.confidence(5) - 0.81).abs() < 0.02, "{}", fine.confidence(5));
        for bad in [f64::NAN, 0.5, f64::INFINITY] {
            assert!(
                Place {
                    logprob: bad,
                    ..fine.clone()
                }
                .check()
                .is_err()
            );
            let mut among = fine.clone();
            among.top_logprobs[1].logprob = bad;
            assert!(among.check().is_err());
        }
        let impossible = Place {
            logprob: -9999.0,
            top_logprobs: Vec::new(),
            ..fine
        };
        assert!(impossible.check().is_ok() && impossible.confidence(5) < 1e-6);
        assert!(
            impossible
                .scores(&["a".to_owned()])
                .is_none_or(|scores| scores.iter().all(|score| score.is_finite()))
        );
    }

    #[test]
    fn tokens_of_unknown_probability_are_left_out() {
        for stated in [
            r#"{"content": [{"token": "a", "logprob": null}, {"token": "b", "logprob": -0.5,
                "top_logprobs": [{"token": "b", "logprob": -0.5}, {"token": "c", "logprob": null}]}]}"#,
            r#"{"tokens": ["a", "b"], "token_logprobs": [null, -0.5], "top_logprobs": [null, {"b": -0.5, "c": null}]}"#,
        ] {
            let stated: Logprobs = serde_json::from_str(stated).unwrap();
            let [place] = <[Place; 1]>::try_from(stated.places().unwrap()).unwrap();
            assert_eq!((place.token.as_str(), place.logprob), ("b", -0.5));
            let [candidate] = <[Candidate; 1]>::try_from(place.top_logprobs).unwrap();
            assert_eq!(candidate.token, "b");
        }
    }

    #[test]
    fn labels_are_read_from_texts() {
        assert_eq!(label_of(" Positive.", &labels()), Some(1));
        assert_eq!(label_of("neutral, I think", &labels()), Some(2));
        assert_eq!(label_of("I think", &labels()), None);
        assert_eq!(label_of("", &labels()), None);
    }
}
