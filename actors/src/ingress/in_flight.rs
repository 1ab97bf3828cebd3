//! The state of a request until its terminal reply.

use std::{collections::BTreeSet, sync::Arc};

use kaskade_policy::fan_in::{Branch, FanIn};
use kaskade_policy::stream_offset::{OptimisticOffset, StreamOffset};

use super::client_ids::IdGuard;
use super::inputs::RetainedInputs;
use super::reply_target::ReplyTarget;
use super::votes::Tally;
use crate::{plan::versions::PlanVersion, wire::StageReply, wire::headers::Trace};

/// State of a request in flight, until its terminal reply.
pub(super) struct InFlight {
    pub(super) target: ReplyTarget,
    /// Entry in the index of client ids.
    pub(super) id_guard: Option<IdGuard>,
    pub(super) inputs: RetainedInputs,
    /// Span of the request at this ingress, a child of the client's span `parent`.
    pub(super) trace: Trace,
    pub(super) parent: u64,
    pub(super) accepted: u64,
    pub(super) deadline: u64,
    pub(super) version: Arc<PlanVersion>,
    pub(super) gear: u32,
    /// Stage of each dispatch by this ingress; if one dispatch goes to several stages, the last.
    pub(super) dispatched: Vec<String>,
    /// Attempts, branches and stages whose results this ingress has forwarded, to forward each only once.
    pub(super) forwarded: BTreeSet<(u32, Branch, String)>,
    /// Stages whose models cannot take a request of this length.
    pub(super) refused_by: Vec<String>,
    /// The votes of an ensemble.
    pub(super) tally: Tally,
    /// The results of a pipeline's branches.
    pub(super) fan_in: FanIn<StageReply>,
    /// Progress of a streamed answer, if the client asked for streaming.
    pub(super) progress: Option<StreamProgress>,
    /// Whether a part may have been lost on its way to the client. No more are sent: they would continue a text with a hole, and the
    /// whole answer comes at the end.
    pub(super) parts_lost: bool,
    /// Stage that has sent parts which another attempt would not repeat.
    pub(super) once: Option<String>,
}

/// Progress of a streamed answer.
pub(super) enum StreamProgress {
    /// Only the answering stage sends parts.
    Certain(StreamOffset),
    /// Any stage sends parts; those of a later stage replace them.
    Optimistic(OptimisticOffset),
}

impl StreamProgress {
    /// Returns whether the client has received a part of the stage's answer.
    pub(super) fn has_begun(&self, stage: &str) -> bool {
        match self {
            Self::Certain(offset) => offset.has_begun(),
            Self::Optimistic(offset) => offset.has_begun(stage),
        }
    }

    /// Returns whether to send a part to the client, and records it if so.
    pub(super) fn take(&mut self, stage: &str, newest: bool, from: u32, until: u32) -> bool {
        match self {
            Self::Certain(offset) => offset.take(newest, from, until),
            Self::Optimistic(offset) => offset.take(stage, newest, from, until),
        }
    }
}

impl InFlight {
    /// Returns whether the client has received a part that another attempt would not repeat.
    pub(super) fn is_begun_once(&self) -> bool {
        let stage = self.once.as_deref().zip(self.progress.as_ref());
        stage.is_some_and(|(stage, progress)| progress.has_begun(stage))
    }

    /// Returns the number of dispatches by this ingress.
    pub(super) fn dispatches(&self) -> u32 {
        u32::try_from(self.dispatched.len()).unwrap_or(u32::MAX)
    }

    /// Registers another dispatch and returns its number, from 1.
    pub(super) fn next_dispatch(&mut self) -> u32 {
        self.dispatched.push(String::new());
        self.dispatches()
    }

    /// Sets the stage of the newest dispatch.
    pub(super) fn dispatch_to(&mut self, stage: &str) {
        if let Some(newest) = self.dispatched.last_mut() {
            stage.clone_into(newest);
        }
    }

    /// Returns the stage of a dispatch; for an unknown dispatch, that of the newest.
    pub(super) fn stage_of(&self, dispatch: u32) -> &str {
        let place = (dispatch as usize).checked_sub(1);
        let stage = place.and_then(|place| self.dispatched.get(place));
        stage.or(self.dispatched.last()).map_or("", String::as_str)
    }

    /// Registers that the result of a stage is forwarded. Returns false if it was forwarded before: a stage that
    /// repeats its answer must not multiply the work of the next one.
    pub(super) fn forward_once(&mut self, done: &StageReply) -> bool {
        let key = (done.attempt, done.branch.clone(), done.stage.clone());
        self.forwarded.insert(key)
    }
}
