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
const MIN_LOGPROB: f64 = -30.0;

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
            .map(|one| one.logprob.max(MIN_LOGPROB) as f32)
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

    /// Log probabilities of labels, by their first token: the sum over the tokens that begin one label and no other. The token of the
    /// answer counts for the label that the answer's text says, `said`, if it begins that one.
    /// `None` if they have less than half of the probability: the model says something else.
    pub(super) fn scores(&self, labels: &[String], said: Option<usize>) -> Option<Vec<f32>> {
        let own = Candidate {
            token: self.token.clone(),
            logprob: self.logprob,
        };
        let mut candidates: Vec<&Candidate> = self.top_logprobs.iter().collect();
        if !candidates.iter().any(|candidate| candidate.token == own.token) {
            candidates.push(&own);
        }
        let labels: Vec<String> = labels.iter().map(|label| label.to_lowercase()).collect();
        let mut masses = vec![0.0_f64; labels.len()];
        for candidate in &candidates {
            let known = said.filter(|class| {
                let label = labels.get(*class);
                candidate.token == own.token && label.is_some_and(|label| begins(label, &own.token))
            });
            let class = known.or_else(|| class_of_token(&candidate.token, &labels));
            if let Some(mass) = class.and_then(|class| masses.get_mut(class)) {
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
            .max(MIN_LOGPROB);
        let score = |mass: f64| if mass > 0.0 { mass.ln() } else { least - BELOW };
        Some(
            masses
                .into_iter()
                .map(|mass| score(mass).max(MIN_LOGPROB - BELOW) as f32)
                .collect(),
        )
    }
}

/// Returns whether a token is the beginning of a label in lower case.
fn begins(label: &str, token: &str) -> bool {
    let token = bare(token);
    !token.is_empty() && label.starts_with(&token)
}

/// A token or text in lower case, without white space and punctuation around it.
fn bare(text: &str) -> String {
    let text = text.trim().trim_matches(|c: char| c.is_ascii_punctuation());
    text.to_lowercase()
}

/// Returns the label, of some in lower case, that a token stands for: the label itself, the only label that it begins, or the longest
/// label that it has with something behind it.
fn class_of_token(token: &str, labels: &[String]) -> Option<usize> {
    let token_alone = bare(token);
    let whole = token.trim().to_lowercase();
    let is = |text: &str| only(labels.iter().map(|label| label == text));
    if token_alone.is_empty() {
        return is(&whole);
    }
    if let Some(class) = is(&whole).or_else(|| is(&token_alone)) {
        return Some(class);
    }
    if labels.iter().any(|label| label.starts_with(&token_alone)) {
        return only(labels.iter().map(|label| label.starts_with(&token_alone)));
    }
    let begun = labels.iter().enumerate();
    let begun = begun.filter(|(_, label)| token_alone.starts_with(label.as_str()));
    begun.max_by_key(|(_, label)| label.len()).map(|(class, _)| class)
}

/// Returns the place of the only true value.
fn only(values: impl Iterator<Item = bool>) -> Option<usize> {
    let mut fitting = values.enumerate().filter(|(_, fits)| *fits);
    match (fitting.next(), fitting.next()) {
        (Some((place, _)), None) => Some(place),
        _ => None,
    }
}

/// Returns the label that a text begins with: the longest one, as it is written or else without the punctuation around it. `None` if
/// there is none, or two fit equally.
pub(super) fn label_of(text: &str, labels: &[String]) -> Option<usize> {
    let text = one_spaced(text);
    let text = text.trim_start();
    let texts = [text, text.trim_start_matches(|c: char| c.is_ascii_punctuation())];
    let fit = |label: &String| {
        let written = one_spaced(label);
        let alone = bare(&written);
        let fits = |label: &str| !label.is_empty() && texts.iter().any(|text| begins_with_words(text, label));
        if fits(&written) {
            Some((written.len(), true))
        } else {
            fits(&alone).then_some((alone.len(), false))
        }
    };
    let fits: Vec<Option<(usize, bool)>> = labels.iter().map(fit).collect();
    let best = fits.iter().max().copied().flatten()?;
    only(fits.iter().map(|fit| *fit == Some(best)))
}

/// A text in lower case with single spaces.
fn one_spaced(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

/// Returns whether a text begins with a label that ends at the end of a word.
fn begins_with_words(text: &str, label: &str) -> bool {
    let Some(rest) = text.strip_prefix(label) else {
        return false;
    };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_punctuation());
    rest.is_empty() || rest.starts_with(' ')
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
        let scores = place.scores(&labels(), None).unwrap();
        let probabilities: Vec<f32> = scores.iter().map(|score| score.exp()).collect();
        assert!(
            (probabilities[0] - 0.15).abs() < 1e-6 && (probabilities[1] - 0.7).abs() < 1e-6,
            "{probabilities:?}"
        );
        // `ne` begins two labels, and nothing else begins the third.
        assert!(probabilities[2] < 0.05);
        assert_eq!(place.scores(&["yes".to_owned(), "no".to_owned()], None), None);
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
                .scores(&["a".to_owned()], None)
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
        for (text, labels, class) in [
            ("not spam.", &["spam", "not spam"][..], Some(1)),
            ("**Not  spam**, because", &["spam", "not spam"], Some(1)),
            ("spam", &["spam", "not spam"], Some(0)),
            ("Very negative", &["negative", "very negative"], Some(1)),
            ("C++", &["C", "C++"], Some(1)),
            ("C", &["C", "C++"], Some(0)),
            ("\"C#\".", &["C", "C++", "C#"], Some(2)),
            ("10", &["1", "2", "10"], Some(2)),
            ("1.", &["1", "2", "10"], Some(0)),
            ("spammy", &["spam", "not spam"], None),
            ("left-leaning", &["left", "right"], None),
            ("left-leaning", &["left", "left-leaning"], Some(1)),
            ("C", &["C++", "C#"], None),
        ] {
            let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
            assert_eq!(label_of(text, &labels), class, "{text} of {labels:?}");
        }
    }
}
