//! The accuracy guarantee that plans made from this file carry.

use std::fmt;
use std::str::FromStr;

use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Accuracy guarantee of plans made from this file. Exactly one of `max_loss` and `min_accuracy` is given.
///
/// `kaskade plan cascade`, `kaskade plan gears` and the gear planner of `kaskade serve` certify what they plan, or refuse for want of
/// samples. Flags of the command line win over it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GuaranteeConfig {
    /// Largest loss of accuracy against the largest variant, such as `"1%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loss: Option<Share>,
    /// Least share of right answers, such as `"95%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_accuracy: Option<Share>,
    /// Confidence of the certificate.
    #[serde(default = "ninety_five")]
    pub confidence: Share,
    /// Share of live requests that the largest variant answers too, after the reply, to see whether the certificate still holds. 0 audits
    /// none [default: `"0.5%"`].
    #[serde(default)]
    pub audit: AuditShare,
}

impl GuaranteeConfig {
    /// Returns the certification options; `None` if neither or both targets are stated, which
    /// [`App::problems`](super::App::problems) reports.
    pub fn certify(&self) -> Option<CertifyOptions> {
        let target = match (self.max_loss, self.min_accuracy) {
            (Some(loss), None) => AccuracyTarget::MaxLoss { loss: loss.get() },
            (None, Some(accuracy)) => AccuracyTarget::MinAccuracy {
                accuracy: accuracy.get(),
            },
            _ => return None,
        };
        Some(CertifyOptions {
            target,
            confidence: self.confidence.get(),
        })
    }

    /// Returns the problems of the guarantee; `pipeline` states whether the app has a pipeline.
    pub(super) fn problems(&self, pipeline: bool) -> Vec<String> {
        let mut problems = Vec::new();
        match (self.max_loss, self.min_accuracy) {
            (None, None) => problems.push(
                "guarantee: names no target; give `max_loss = \"1%\"` or `min_accuracy = \"95%\"`".to_owned(),
            ),
            (Some(_), Some(_)) => {
                problems.push(
                    "guarantee: names two targets; keep one of `max_loss` and `min_accuracy`".to_owned(),
                );
            }
            _ => {}
        }
        if pipeline {
            problems.push("guarantee: the plans of a pipeline carry none; leave it out".to_owned());
        }
        problems
    }
}

/// The share of requests that is audited, from 0 to 1, written as a percentage such as `0.5%` or as a number such as `0.005`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "String")]
#[schemars(extend("examples" = ["0.5%", 0]))]
pub struct AuditShare(f64);

impl AuditShare {
    /// Returns the share.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Default for AuditShare {
    /// Returns one request in two hundred.
    fn default() -> Self {
        Self(0.005)
    }
}

impl TryFrom<Written> for AuditShare {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let (share, text) = match &written {
            Written::Number(share) => (Some(*share), share.to_string()),
            Written::Text(text) => (read(text), text.clone()),
        };
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| {
            format!("`{text}` is not a valid share of the requests; write a percentage from 0 % to 100 %, such as `0.5%`, or a number such as 0.005")
        })
    }
}

impl From<AuditShare> for String {
    fn from(AuditShare(share): AuditShare) -> Self {
        share.to_string()
    }
}

/// A share above 0 and below 1, written as a percentage such as `1%` or as a number such as `0.01`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "String")]
#[schemars(extend("examples" = ["1%", "95%"]))]
pub struct Share(f64);

impl Share {
    /// Returns the share.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// The two ways to write a share.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

impl TryFrom<f64> for Share {
    type Error = String;

    fn try_from(share: f64) -> Result<Self, String> {
        if share > 0.0 && share < 1.0 {
            return Ok(Self(share));
        }
        Err(format!(
            "{share} is not a share; write a percentage above 0 % and below 100 %, such as `1%`, or a number such as 0.01"
        ))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).and_then(|share| Self::try_from(share).ok()).ok_or_else(|| {
            format!(
                "`{text}` is not a share; write a percentage above 0 % and below 100 %, such as `1%`, or a number such as 0.01"
            )
        })
    }
}

impl TryFrom<Written> for Share {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(share) => share.try_into(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.to_string()
    }
}

impl fmt::Display for Share {
    /// Writes the share as a percentage if that is exact, otherwise as a number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = format!("{}%", (self.0 * 100.0 * 1e9).round() / 1e9);
        if percent.parse() == Ok(*self) {
            return f.write_str(&percent);
        }
        write!(f, "{}", self.0)
    }
}

/// Reads a number, or a percentage.
fn read(text: &str) -> Option<f64> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    number.trim().parse::<f64>().ok().map(|number| number / unit)
}

fn ninety_five() -> Share {
    Share(0.95)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::App;

    fn app(rule: &str) -> Result<App, (usize, String)> {
        App::parse(&format!("name = \"a\"\n[guarantee]\n{rule}\n"))
    }

    fn about_it(rule: &str) -> Vec<String> {
        let problems = app(rule).unwrap().problems();
        problems
            .into_iter()
            .filter(|problem| problem.starts_with("guarantee"))
            .collect()
    }

    #[test]
    fn a_share_is_read_from_a_percentage_or_a_number() {
        let read = |text: &str| {
            app(&format!("max_loss = {text}")).map(|app| app.guarantee.unwrap().max_loss.unwrap().get())
        };
        assert_eq!(read("\"1%\""), Ok(0.01));
        assert_eq!(read("\"0.5 %\""), Ok(0.005));
        assert_eq!(read("0.01"), Ok(0.01));
        for bad in ["0", "1", "\"100%\"", "\"0%\"", "\"much\"", "-0.1", "nan"] {
            let (line, _) = read(bad).unwrap_err();
            assert_eq!(line, 3, "{bad}");
        }
        assert_eq!("95%".parse::<Share>().unwrap().to_string(), "95%");
        assert_eq!(
            Share(1.0 / 3.0).to_string().parse::<Share>(),
            Ok(Share(1.0 / 3.0))
        );
    }

    #[test]
    fn a_share_of_audits_may_be_none_or_all() {
        let read = |text: &str| {
            app(&format!("max_loss = 0.01\naudit = {text}")).map(|app| app.guarantee.unwrap().audit.get())
        };
        assert_eq!(read("0"), Ok(0.0));
        assert_eq!(read("\"0.5%\""), Ok(0.005));
        assert_eq!(read("1"), Ok(1.0));
        for bad in ["1.1", "-0.1", "\"101%\"", "\"some\"", "nan"] {
            let (line, reason) = read(bad).unwrap_err();
            assert_eq!(line, 4, "{bad}: {reason}");
        }
        let rule = app("max_loss = 0.01").unwrap().guarantee.unwrap();
        assert!((rule.audit.get() - 0.005).abs() < 1e-12);
    }

    #[test]
    fn a_rule_names_one_target() {
        let rule = app("min_accuracy = \"95%\"\nconfidence = 0.9")
            .unwrap()
            .guarantee
            .unwrap();
        assert_eq!(
            rule.certify(),
            Some(CertifyOptions {
                target: AccuracyTarget::MinAccuracy { accuracy: 0.95 },
                confidence: 0.9
            })
        );
        assert!(about_it("max_loss = \"1%\"").is_empty());
        assert!(about_it("").concat().contains("names no target"));
        let both = about_it("max_loss = \"1%\"\nmin_accuracy = \"95%\"");
        assert!(both.concat().contains("names two targets"), "{both:?}");
    }
}
