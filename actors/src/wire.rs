//! Messages between actors, and their encoding.
//!
//! Messages are MessagePack maps with field names; unknown fields are ignored, so that peers of different versions
//! and languages interoperate. [`Message`] encodes and decodes; [`client_codec`] adds JSON for clients.

mod certificates;
pub mod chunks;
mod client;
pub mod client_codec;
mod codec;
mod codec_error;
mod control;
mod energy;
pub mod headers;
mod heartbeat;
mod lists;
mod model_interface;
mod options;
mod scan;
mod stage;
mod stage_reply;
mod tensors;
#[cfg(test)]
mod tests;
mod token;

pub use certificates::{
    AuditReport, CascadeStatus, CertificateFinding, CertificateNotice, CertificateReport, Feedback,
    FeedbackLabel, FeedbackReply,
};
pub use client::{BranchReply, InferReply, InferRequest};
pub use client_codec::{ContentType, decode_infer, decode_reply, encode_fault, encode_reply};
pub use codec::Message;
pub use codec_error::{CodecError, Limits};
pub use control::{
    GearShift, LoadCount, LoadDriftNotice, Observation, PlanNotice, PlanReport, PlanRequest, ShiftReport,
};
pub use energy::{EnergyReport, ModelEnergy, Spent, Tokens};
pub use heartbeat::{FanOuts, Heartbeat, IngressState, ReplicaBeat, Runs, describes_models};
pub use lists::MAX_PARAMETERS;
pub use model_interface::{ModelInterface, TensorInterface};
pub use options::RequestOptions;
pub(crate) use options::STREAM;
pub use stage::{Hop, HopAnswer, StageCancel, StageRequest};
pub use stage_reply::{StageOutcome, StageReply};
pub use tensors::{Data as TensorData, MAX_RANK, MAX_TENSORS, WrittenData as TensorElements};
pub use token::{NotAToken, Token, TokenKey};

/// Largest number of hops in one message.
pub const MAX_HOPS: usize = 64;

/// Largest number of replicas in one heartbeat.
pub const MAX_REPLICAS: usize = 1024;

/// Largest number of labels of one model in a heartbeat.
pub const MAX_LABELS: usize = 65_536;

/// Largest number of requests in one [`StageCancel`].
pub const MAX_CANCELLED: usize = 4096;

/// Largest number of gears in one message.
pub const MAX_GEARS: usize = 4096;
