//! Messages about live accuracy: delayed labels, the counts of ingresses, the state of the plan's certificates.

use bytes::Bytes;
use kaskade_policy::certificate_monitor::{self, Counts};
use kaskade_policy::plan::MAX_CERTIFIED;
use serde::{Deserialize, Serialize};

use super::client_codec::{ContentType, from_body};
use super::codec::Message;
use super::codec_error::{CodecError, Limits};
use super::lists::at_most;

/// Longest request id in a label, bytes.
const MAX_ID: usize = 1024;

/// Longest part of a label that is compared, bytes; the same as for an answer
/// ([`certificate_monitor::ComparedAnswer`]).
const MAX_LABEL: usize = 16 << 10;

/// A delayed label: the correct answer to an answered request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feedback {
    /// The id that the client gave the request.
    pub id: String,
    /// The correct answer.
    pub label: FeedbackLabel,
}

/// A correct answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FeedbackLabel {
    /// The index of a class, from 0, or a text that is a number.
    Class(u64),
    /// A text, or a class name.
    Text(String),
}

impl Message for Feedback {
    const NAME: &'static str = "Feedback";
}

impl Feedback {
    /// Decodes the body of a client's message; a text is truncated to 16 KiB.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Unwritable`.
    pub fn read(content_type: ContentType, body: &Bytes) -> Result<Self, CodecError> {
        let mut feedback: Self = from_body(content_type, body)?;
        if feedback.id.is_empty() || feedback.id.len() > MAX_ID {
            return Err(CodecError::Schema {
                message: Self::NAME,
                reason: format!(
                    "the id has {} bytes; it must have 1 to {MAX_ID}",
                    feedback.id.len()
                ),
            });
        }
        if let FeedbackLabel::Text(text) = &mut feedback.label {
            text.truncate(text.floor_char_boundary(MAX_LABEL));
        }
        Ok(feedback)
    }
}

/// Reply to a label. No ingress remembers the request if no reply comes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FeedbackReply {
    /// The id of the request.
    pub id: String,
    /// Whether the answer was right.
    pub right: bool,
    /// The variant that answered.
    #[serde(default)]
    pub variant: String,
    /// Whether the request was audited, so that the label also tells whether accuracy was lost against the largest variant.
    #[serde(default)]
    pub audited: bool,
    /// Whether the label is a class name that could not be checked, because no worker announces the class names. If it
    /// is misspelt, it was counted as another class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// Why the label cannot be compared with the answer. It was then not counted, and another one may follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Message for FeedbackReply {
    const NAME: &'static str = "FeedbackReply";
}

impl FeedbackReply {
    /// Encodes the reply as a body for a client. `None` does not occur, because it contains only texts and flags.
    pub fn encoded(&self, content_type: ContentType) -> Option<Bytes> {
        match content_type {
            ContentType::MessagePack => self.encode().ok(),
            ContentType::Json => serde_json::to_vec(self).ok().map(Bytes::from),
        }
    }

    /// Decodes the body of a reply.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Unwritable`.
    pub fn read(content_type: ContentType, body: &Bytes) -> Result<Self, CodecError> {
        from_body(content_type, body)
    }
}

/// Counts of audits and stage results of an ingress process since its last report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AuditReport {
    /// Id of the first ingress of the process.
    pub ingress: String,
    /// The epoch whose cascades are counted.
    pub epoch: u64,
    /// Counts by index in the certified list.
    #[serde(default)]
    pub counts: Counts,
    /// From the leading shifter: the last index of the certified list that may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// From the leading shifter: the indices beyond the limit that were refuted by labels, not by audits.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_CERTIFIED>"
    )]
    pub refuted_by_labels: Vec<u32>,
}

impl AuditReport {
    /// Decoding limits of a report: certified lists and their cascades are short.
    pub const LIMITS: Limits = Limits {
        bytes: 256 << 10,
        depth: 8,
        items: 16 << 10,
    };
}

impl Message for AuditReport {
    const NAME: &'static str = "AuditReport";
}

/// State of the certificates of the running plan, published every second by the leading shifter.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The running plan.
    pub epoch: u64,
    /// The last index of the certified list that may run.
    pub limit: u32,
    /// The cascades of the list, from the largest variant alone to the cheapest.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_CERTIFIED>")]
    pub cascades: Vec<CascadeStatus>,
}

impl Message for CertificateReport {
    const NAME: &'static str = "CertificateReport";
}

/// Results of audits and labels for one cascade since its tests last began. Intervals have 95 % confidence at every moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CascadeStatus {
    /// Audits that ended.
    pub audited: u64,
    /// Bounds of the interval for the share of requests answered differently from the largest variant, failed audits
    /// excluded.
    pub differs: [f64; 2],
    /// Largest share for which the certificate holds; absent if the plan does not state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_differ: Option<f64>,
    /// Number of labels counted.
    pub labelled: u64,
    /// Bounds of the interval for the loss of accuracy by labels, or for the share of wrong answers.
    pub loss: [f64; 2],
    /// Largest permitted value of that loss or share.
    pub may_lose: f64,
    /// Whether the inputs of the cascade have drifted.
    pub inputs_drifted: bool,
}

impl From<certificate_monitor::CascadeStatus> for CascadeStatus {
    fn from(status: certificate_monitor::CascadeStatus) -> Self {
        let certificate_monitor::CascadeStatus {
            audited,
            differs,
            may_differ,
            labelled,
            loss,
            may_lose,
            inputs_drifted,
        } = status;
        Self {
            audited,
            differs,
            may_differ,
            labelled,
            loss,
            may_lose,
            inputs_drifted,
        }
    }
}

/// A certificate no longer holds or holds again, or the inputs of a stage have drifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateNotice {
    /// The running plan.
    pub epoch: u64,
    /// The finding.
    #[serde(flatten)]
    pub found: CertificateFinding,
}

/// Finding of the certificate monitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum CertificateFinding {
    /// The certificate of the cascade at index `from` no longer holds: only cascades up to index `to` run.
    Refuted {
        /// Index of the cascade.
        from: u32,
        /// The new limit.
        to: u32,
        /// `audits` or `labels`.
        by: String,
    },
    /// The certificate of the cascade at index `to` holds again.
    Restored {
        /// The previous limit.
        from: u32,
        /// The new limit.
        to: u32,
    },
    /// A stage defers more or less, or is more or less confident, than on the certification samples.
    InputsDrifted {
        /// The index of the cascade.
        cascade: u32,
        /// The stage.
        stage: String,
    },
    /// No further drift was found for as long as detecting one takes.
    Settled {
        /// The index of the cascade.
        cascade: u32,
    },
}

impl Message for CertificateNotice {
    const NAME: &'static str = "CertificateNotice";
}

#[cfg(test)]
mod tests {
    use kaskade_policy::certificate_monitor::CascadeCounts;
    use proptest::prelude::*;

    use super::*;

    fn same<M: Message + PartialEq + std::fmt::Debug>(message: &M) {
        assert_eq!(&M::decode(&message.encode().unwrap()).unwrap(), message);
    }

    #[test]
    fn messages_survive_the_wire() {
        let counts = Counts {
            cascades: vec![CascadeCounts {
                stages: vec![vec![1, 2], Vec::new()],
                ..CascadeCounts::default()
            }],
        };
        same(&AuditReport {
            ingress: "a".to_owned(),
            epoch: 3,
            counts,
            limit: Some(2),
            refuted_by_labels: vec![3],
        });
        same(&CertificateReport {
            epoch: 3,
            limit: 1,
            cascades: vec![CascadeStatus {
                audited: 3,
                differs: [0.0, 0.5],
                ..CascadeStatus::default()
            }],
        });
        same(&CertificateNotice {
            epoch: 3,
            found: CertificateFinding::Refuted {
                from: 2,
                to: 1,
                by: "audits".to_owned(),
            },
        });
        let reply = FeedbackReply {
            id: "a".to_owned(),
            right: true,
            variant: "small".to_owned(),
            audited: false,
            unchecked: true,
            refused: Some("3 is none of the 3 classes".to_owned()),
        };
        for content_type in [ContentType::MessagePack, ContentType::Json] {
            let body = reply.encoded(content_type).unwrap();
            assert_eq!(FeedbackReply::read(content_type, &body).unwrap(), reply);
        }
    }

    #[test]
    fn a_label_is_a_class_or_a_text_and_has_an_id() {
        let read =
            |body: &'static str| Feedback::read(ContentType::Json, &Bytes::from_static(body.as_bytes()));
        assert_eq!(
            read(r#"{"id": "r1", "label": 7}"#).unwrap().label,
            FeedbackLabel::Class(7)
        );
        assert_eq!(
            read(r#"{"id": "r1", "label": "yes"}"#).unwrap().label,
            FeedbackLabel::Text("yes".to_owned())
        );
        for bad in [
            r#"{"id": "", "label": 7}"#,
            r#"{"id": "r1"}"#,
            r#"{"id": "r1", "label": -1}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let feedback = Feedback {
            id: "r1".to_owned(),
            label: FeedbackLabel::Text("ä".repeat(MAX_LABEL)),
        };
        let body = feedback.encode().unwrap();
        let long = Feedback::read(ContentType::MessagePack, &body).unwrap();
        assert_eq!(long.label, FeedbackLabel::Text("ä".repeat(MAX_LABEL / 2)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            let _ = Feedback::decode(&bytes);
            let _ = AuditReport::decode_within(&bytes, &AuditReport::LIMITS);
            let _ = CertificateReport::decode(&bytes);
            let _ = CertificateNotice::decode(&bytes);
        }

        #[test]
        fn feedback_holds(id in "[a-z]{1,20}", class in any::<u64>()) {
            same(&Feedback { id, label: FeedbackLabel::Class(class) });
        }
    }
}
