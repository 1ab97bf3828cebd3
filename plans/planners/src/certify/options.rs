//! What is certified, and with which confidence.

use kaskade_policy::plan::{Certificate, Guarantee};

/// Target of a certification: a [`Guarantee`] before the variant to compare with is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AccuracyTarget {
    /// Maximum loss of accuracy against the largest variant, as a share in (0, 1).
    MaxLoss {
        /// The loss.
        loss: f64,
    },
    /// Minimum accuracy, as a share in (0, 1).
    MinAccuracy {
        /// The accuracy.
        accuracy: f64,
    },
}

/// Target and confidence of a certificate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CertifyOptions {
    /// Bound that is certified.
    pub target: AccuracyTarget,
    /// The probability with which a certificate is right, in (0, 1).
    pub confidence: f64,
}

impl CertifyOptions {
    /// Certifies a target with a confidence of 95 %.
    pub fn new(target: AccuracyTarget) -> Self {
        Self {
            target,
            confidence: 0.95,
        }
    }

    /// Returns what was certified to give a certificate; `None` for a guarantee that this planner does not prove.
    pub fn from_certificate(certificate: &Certificate) -> Option<Self> {
        let target = match certificate.guarantee {
            Guarantee::MaxLoss { loss, .. } => AccuracyTarget::MaxLoss { loss },
            Guarantee::MinAccuracy { accuracy } => AccuracyTarget::MinAccuracy { accuracy },
            _ => return None,
        };
        Some(Self {
            target,
            confidence: certificate.confidence,
        })
    }

    pub(super) fn level(&self) -> f64 {
        1.0 - self.confidence
    }
}
