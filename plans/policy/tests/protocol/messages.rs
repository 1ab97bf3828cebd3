//! Messages and events of the simulation.

use std::collections::BTreeSet;
use std::rc::Rc;

use kaskade_policy::plan::{Plan, Replica};

use super::oracle::{Fault, Owner};
use super::scenario::Strike;

pub(crate) type Name = Rc<str>;

/// A request for one stage.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) owner: Owner,
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    /// The question; the answer has to match.
    pub(crate) token: usize,
    pub(crate) epoch: u64,
    pub(crate) gear: u32,
    pub(crate) stage: Name,
    /// Whether the next result that can be an answer is one, whatever its confidence.
    pub(crate) accept_below_threshold: bool,
}

/// A request in the hands of a replica.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// Unique in the run, copies included.
    pub(crate) serial: u64,
    pub(crate) request: Request,
    /// Deadline on the replica's clock: the budget is counted from the arrival.
    pub(crate) deadline: u64,
}

/// Answer of a stage to the ingress that owns the request.
#[derive(Debug, Clone)]
pub(crate) struct StageReply {
    pub(crate) owner: Owner,
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    pub(crate) token: usize,
    pub(crate) stage: Name,
    /// Whether the stage has decided that this is the end; otherwise the ingress decides.
    pub(crate) routed: bool,
    /// The epoch and the gear by which it was decided that this is the end.
    pub(crate) decided_by: (u64, u32),
    /// [`Request::accept_below_threshold`].
    pub(crate) accept_below_threshold: bool,
    pub(crate) confidence: f64,
    pub(crate) result: Result<(), Fault>,
}

/// A worker's heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct Beat {
    pub(crate) worker: Name,
    /// The life of its process, and of the connection of that.
    pub(crate) life: (u32, u32),
    pub(crate) leaving: bool,
    /// Replica, variant, requests that wait.
    pub(crate) replicas: Rc<[(Name, Name, usize)]>,
    pub(crate) in_place: u64,
    pub(crate) failed: Rc<[String]>,
}

/// A message that the broker carries.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Stage {
        /// The replica that received it, by its key.
        replica: Name,
        /// Whether it was sent to the replica's own subject.
        addressed: bool,
        request: Request,
        budget_us: u64,
    },
    StageReply(StageReply),
    /// No listener where the request was sent. The notice contains the request, not the attempt.
    NobodyListens {
        owner: Owner,
        id: u64,
        attempt: u32,
    },
    Beat(Beat),
    /// The state of an ingress: the replicas to avoid, the epoch under which it admits, and the oldest of its requests.
    State {
        ingress: Name,
        sequence: u64,
        admits: u64,
        oldest: u64,
        unavailable: Rc<BTreeSet<String>>,
    },
    Load {
        ingress: Name,
        total: u64,
    },
    Gear {
        epoch: u64,
        gear: u32,
    },
}

/// A message between actors of one process: never lost, in order.
#[derive(Debug, Clone)]
pub(crate) enum Mail {
    Inbound { token: usize, budget_us: u64 },
    Delivery { replica: Name, delivery: Delivery },
    Finished(StageReply),
}

/// A process's own clock rings.
#[derive(Debug, Clone)]
pub(crate) enum Timer {
    Sweep,
    Tick,
    Observation,
    Beat,
    State,
    Expire,
    /// A process reads the plan store.
    Read,
    /// A leaving worker ends its subscriptions.
    Unsubscribe,
    /// A leaving worker checks whether it has answered what it took.
    Empty,
    Wake {
        replica: Name,
        number: u64,
    },
    BatchEnds {
        replica: Name,
    },
    /// A model is loaded, or cannot be.
    Loaded {
        replica: Rc<Replica>,
    },
}

/// An event at some time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A client sends a request.
    Arrival,
    Mail {
        to: usize,
        life: u32,
        mail: Mail,
    },
    Timer {
        of: usize,
        life: u32,
        timer: Timer,
    },
    Bus {
        to: usize,
        message: Message,
    },
    /// Word of a plan from the store.
    Notice {
        to: usize,
        epoch: u64,
    },
    /// The plan store is deleted and created again.
    StoreRecreated,
    /// A planner reads the running plan and begins to plan.
    Planner {
        number: usize,
    },
    /// The planner's result reaches the store.
    Write {
        number: usize,
        expected: u64,
        plan: Rc<Plan>,
    },
    Strike(Strike),
    Return {
        process: usize,
        life: u32,
    },
    /// A connection that broke is up again.
    Reconnected {
        process: usize,
        life: u32,
    },
}
