//! The state of a request until its terminal reply.

use std::{collections::BTreeSet, sync::Arc};

use kaskade_policy::fan_in::{Branch, Gather};
use kaskade_policy::stream_offset::{OptimisticOffset, StreamOffset};

use super::client_ids::IdGuard;
use super::inputs::RetainedInputs;
use super::reply_target::ReplyTarget;
use super::votes::Tally;
use crate::{plan::versions::PlanVersion, wire::StageReply, wire::headers::Trace};

/// State of a request until its terminal reply.
pub(super) struct InFlight {
    pub(super) target: ReplyTarget,
    /// Its place in the index of client ids.
    pub(super) id_guard: Option<IdGuard>,
    pub(super) inputs: RetainedInputs,
    /// Its span at this ingress, below that of the client, `parent`.
    pub(super) trace: Trace,
    pub(super) parent: u64,
    pub(super) accepted: u64,
    pub(super) deadline: u64,
    pub(super) version: Arc<PlanVersion>,
    pub(super) gear: u32,
    /// The stage to which each dispatch by this ingress went; of several at once, the last.
    pub(super) dispatched: Vec<String>,
    /// The attempts, branches and stages whose results this ingress has forwarded: each is forwarded once.
    pub(super) forwarded: BTreeSet<(u32, Branch, String)>,
    /// The stages for whose models it was too long.
    pub(super) refused_by: Vec<String>,
    /// The votes of an ensemble.
    pub(super) tally: Tally,
    /// The results of a pipeline's branches.
    pub(super) gather: Gather<StageReply>,
    /// Progress of a streamed answer, if the client asked for streaming.
    pub(super) progress: Option<StreamProgress>,
    /// The stage whose parts another attempt would not repeat, if the client has one of them.
    pub(super) once: Option<String>,
}

/// Progress of a streamed answer.
pub(super) enum StreamProgress {
    /// The stage that sends parts gives the answer.
    Certain(StreamOffset),
    /// A later stage may replace what an earlier one has sent.
    Optimistic(OptimisticOffset),
}

impl StreamProgress {
    /// Returns whether the client has a part of the answer of a stage.
    pub(super) fn has_begun(&self, stage: &str) -> bool {
        match self {
            Self::Certain(offset) => offset.has_begun(),
            Self::Optimistic(offset) => offset.has_begun(stage),
        }
    }

    /// Returns whether to send a part of a stage to the client.
    pub(super) fn take(&mut self, stage: &str, newest: bool, from: u32, until: u32) -> bool {
        match self {
            Self::Certain(offset) => offset.take(newest, from, until),
            Self::Optimistic(offset) => offset.take(stage, newest, from, until),
        }
    }
}

impl InFlight {
    /// Returns whether the client has a part of an answer that another attempt would not repeat.
    pub(super) fn is_begun_once(&self) -> bool {
        let stage = self.once.as_deref().zip(self.progress.as_ref());
        stage.is_some_and(|(stage, progress)| progress.has_begun(stage))
    }

    /// Returns how often this ingress has sent it.
    pub(super) fn dispatches(&self) -> u32 {
        u32::try_from(self.dispatched.len()).unwrap_or(u32::MAX)
    }

    /// Begins another dispatch, and returns its number, from 1.
    pub(super) fn next_dispatch(&mut self) -> u32 {
        self.dispatched.push(String::new());
        self.dispatches()
    }

    /// Notes the stage to which the newest dispatch goes.
    pub(super) fn dispatch_to(&mut self, stage: &str) {
        if let Some(newest) = self.dispatched.last_mut() {
            stage.clone_into(newest);
        }
    }

    /// Returns the stage to which a dispatch went; for an unknown one, that of the newest.
    pub(super) fn stage_of(&self, dispatch: u32) -> &str {
        let place = (dispatch as usize).checked_sub(1);
        let stage = place.and_then(|place| self.dispatched.get(place));
        stage.or(self.dispatched.last()).map_or("", String::as_str)
    }

    /// Notes that the result of a stage is forwarded. Returns false if it was before: a stage that repeats its answer
    /// must not multiply the work of the next one.
    pub(super) fn forward_once(&mut self, done: &StageReply) -> bool {
        let key = (done.attempt, done.branch.clone(), done.stage.clone());
        self.forwarded.insert(key)
    }
}
