//! Wire messages of any sender.

use bytes::Bytes;
use kaskade_actors::wire::{
    AuditReport, CertificateNotice, CertificateReport, EnergyReport, Feedback, FeedbackReply, GearShift,
    Heartbeat, InferReply, InferRequest, IngressState, LoadCount, LoadDriftNotice, PlanNotice, PlanReport,
    PlanRequest, ShiftReport, StageCancel, StageReply, StageRequest,
};

use crate::receivers;
use crate::round_trip::round;

/// Bytes as every message there is: refused with a reason, or the same after a round.
pub fn wire(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    round::<InferRequest>(&bytes);
    round::<InferReply>(&bytes);
    round::<StageRequest>(&bytes);
    round::<StageReply>(&bytes);
    receivers::done(&bytes);
    round::<Heartbeat>(&bytes);
    round::<StageCancel>(&bytes);
    round::<IngressState>(&bytes);
    round::<GearShift>(&bytes);
    round::<LoadCount>(&bytes);
    round::<ShiftReport>(&bytes);
    round::<LoadDriftNotice>(&bytes);
    round::<Feedback>(&bytes);
    round::<FeedbackReply>(&bytes);
    round::<AuditReport>(&bytes);
    round::<CertificateReport>(&bytes);
    round::<CertificateNotice>(&bytes);
    round::<PlanRequest>(&bytes);
    round::<PlanReport>(&bytes);
    round::<PlanNotice>(&bytes);
    round::<EnergyReport>(&bytes);
}
