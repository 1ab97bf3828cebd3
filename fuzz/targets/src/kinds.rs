//! One target for each message: its decoder, and what its receiver does with it.

use std::sync::LazyLock;

use bytes::Bytes;
use kaskade_actors::wire::{
    AuditReport, CertificateNotice, CertificateReport, EnergyReport, Feedback, FeedbackReply, GearShift,
    Heartbeat, InferReply, InferRequest, IngressState, LoadCount, LoadDriftNotice, Message, PlanNotice,
    PlanReport, PlanRequest, ShiftReport, StageCancel, StageReply, StageRequest,
};

use crate::edit::edited;
use crate::messages::examples;
use crate::receivers;
use crate::round_trip::round;
use crate::script::Script;
use crate::target::{Target, target};

/// The first byte of an input whose other bytes are a message.
pub const AS_BYTES: u8 = 0;
/// The first byte of an input whose other bytes are a script of edits, as any byte but [`AS_BYTES`] is.
pub const AS_EDITS: u8 = 1;

/// Defines, for each message, its target and the JSON that its edits begin with.
macro_rules! kinds {
    ($($name:literal: $message:ty => $receive:path;)*) => {
        /// The target of each message.
        pub const KINDS: &[Target] = &[$(target(
            $name,
            |input| {
                static TEMPLATES: LazyLock<Vec<String>> = LazyLock::new(templates::<$message>);
                message::<$message>(&TEMPLATES, $receive, input);
            },
            1_000,
            4 << 10,
        )),*];

        /// Returns the name of the target of a message.
        pub fn target_of(message: &str) -> Option<&'static str> {
            [$((<$message as Message>::NAME, $name)),*]
                .into_iter()
                .find_map(|(name, target)| (name == message).then_some(target))
        }
    };
}

kinds! {
    "wire_audit_report": AuditReport => receivers::audit_report;
    "wire_beat": Heartbeat => receivers::beat;
    "wire_certificate_notice": CertificateNotice => receivers::none;
    "wire_certificate_report": CertificateReport => receivers::none;
    "wire_done": StageReply => receivers::done;
    "wire_energy_report": EnergyReport => receivers::none;
    "wire_feedback": Feedback => receivers::feedback;
    "wire_feedback_reply": FeedbackReply => receivers::feedback_reply;
    "wire_gear_shift": GearShift => receivers::gear_shift;
    "wire_infer_reply": InferReply => receivers::body;
    "wire_infer_request": InferRequest => receivers::body;
    "wire_ingress_state": IngressState => receivers::ingress_state;
    "wire_load_count": LoadCount => receivers::load_count;
    "wire_load_drift_notice": LoadDriftNotice => receivers::none;
    "wire_plan_notice": PlanNotice => receivers::none;
    "wire_plan_report": PlanReport => receivers::none;
    "wire_plan_request": PlanRequest => receivers::none;
    "wire_shift_report": ShiftReport => receivers::none;
    "wire_stage_cancel": StageCancel => receivers::none;
    "wire_stage_request": StageRequest => receivers::stage_request;
}

/// Returns the examples of a message as JSON.
fn templates<M: Message>() -> Vec<String> {
    let examples = examples().into_iter();
    examples
        .filter(|example| example.message == M::NAME)
        .filter_map(|example| example.json)
        .collect()
}

/// Decodes a message of one kind: refused with a reason, or the same after a round. Its receiver gets the bytes either way.
fn message<M: Message>(templates: &[String], receive: fn(&Bytes), input: &[u8]) {
    let bytes = match input.split_first() {
        None => Bytes::new(),
        Some((&AS_BYTES, message)) => Bytes::copy_from_slice(message),
        Some((_, script)) => {
            let templates: Vec<&str> = templates.iter().map(String::as_str).collect();
            let tree = edited(&templates, &mut Script::new(script));
            let bytes = rmp_serde::to_vec_named(&tree).expect("JSON has a form in MessagePack");
            receivers::json(M::NAME, tree.to_string().as_bytes());
            Bytes::from(bytes)
        }
    };
    round::<M>(&bytes);
    receive(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_with_an_example_has_a_target_of_its_own() {
        let mut named: Vec<&str> = examples()
            .iter()
            .map(|example| {
                assert!(
                    example.json.is_some() || example.name == "infer-half",
                    "{example:?}"
                );
                target_of(example.message).unwrap_or_else(|| panic!("{example:?} has no target"))
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        let all: Vec<&str> = KINDS.iter().map(|target| target.name).collect();
        assert_eq!(named, all);
    }
}
