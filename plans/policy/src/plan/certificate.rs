//! Certificate of a plan's cascade: the proven bound, and the samples that prove it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Path};

/// The statement that a certificate proves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Guarantee {
    /// The cascade's accuracy is at most this much below that of one variant alone.
    MaxLoss {
        /// The largest loss of accuracy, as a share in (0, 1): 0.01 is one point.
        loss: f64,
        /// The variant that it is compared with.
        against: String,
    },
    /// The cascade's accuracy is at least this.
    MinAccuracy {
        /// The accuracy, as a share in (0, 1).
        accuracy: f64,
    },
}

/// Proof of a [`Guarantee`] on samples that the cascade was not chosen on.
///
/// Over repeated draws of validation samples, a planner that certifies is wrong in at most a share of `1 - confidence` of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// The proven statement.
    pub guarantee: Guarantee,
    /// Confidence of the proof, in (0, 1).
    pub confidence: f64,
    /// Certification samples.
    pub samples: u64,
    /// Certification samples that the cascade answered rightly.
    pub right: u64,
    /// What decided which answers are right: the variant whose answers count as right, or the command of a program; absent for labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Certification samples that only the compared variant answered rightly; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Certification samples that only the cascade answered rightly; absent without a compared variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gained: Option<u64>,
    /// The p-value of the test; at most `1 - confidence`.
    pub p_value: f64,
}

impl Certificate {
    /// Checks that its shares are shares and its counts fit its samples.
    pub(super) fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        let guarantee = path.field("guarantee");
        match &self.guarantee {
            Guarantee::MaxLoss { loss, against } => {
                guarantee.field("loss").unit_interval(*loss)?;
                guarantee.field("against").name(against)?;
            }
            Guarantee::MinAccuracy { accuracy } => guarantee.field("accuracy").unit_interval(*accuracy)?,
        }
        path.field("confidence").unit_interval(self.confidence)?;
        path.field("p_value").unit_interval(self.p_value)?;
        let counts = [
            ("right", Some(self.right)),
            ("lost", self.lost),
            ("gained", self.gained),
        ];
        for (name, count) in counts {
            let count = count.unwrap_or(0);
            path.field(name)
                .within(count as f64, count <= self.samples, "at most `samples`")?;
        }
        Ok(())
    }
}
