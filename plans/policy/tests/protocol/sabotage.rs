//! Injected defects: an oracle that never fails a test proves nothing by passing.

/// A defect that is built into the model of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The ingress replies to answers that the ledger calls stale.
    AnswersStale,
    /// The ingress throws away what expired.
    ForgetsExpired,
    /// The ingress hardly ever sweeps.
    SweepsRarely,
    /// The ledger allows any number of attempts.
    EndlessAttempts,
    /// The ingress takes requests that it never sends, nor sweeps.
    NeverSweeps,
    /// The ingress sweeps and sweeps.
    Spins,
    /// The router follows the running plan instead of the request's.
    RoutesByNewest,
    /// The router answers below the threshold at the first attempt.
    SettlesEarly,
    /// The replica returns the answers of a batch in the wrong order.
    MixesAnswers,
    /// The queue forgets a request now and then.
    DropsFromQueue,
    /// The queue takes more than it should.
    OverfillsQueue,
    /// Batches are twice as large as the plan's.
    OversizedBatches,
    /// The last notice of the store is adopted, whatever its epoch.
    AdoptsStale,
    /// The store writes without comparing.
    WritesBlindly,
    /// Arrivals that other ingresses report are counted again.
    CountsTwice,
    /// One process does not hear of gears.
    DeafToGears,
    /// One process does not hear of plans.
    DeafToPlans,
    /// Every ingress believes that it leads.
    EveryoneLeads,
    /// The healthy network loses a message now and then.
    LosesSecretly,
    /// Every request is sent to its first stage twice, as two attempts.
    SendsTwice,
    /// One replica sends heartbeats, takes requests and never ends a batch, also after the faults.
    Hangs,
    /// A leaving worker drops what is on its way to it when it unsubscribes.
    DropsOnLeave,
    /// A leaving worker unsubscribes without an announcement, and nothing is sent again when it is gone.
    LeavesSilently,
    /// The ingress gets no notice of silent processes.
    IgnoresLosses,
    /// The ingress takes a request that it has forwarded for at the replica that got it, although that may send it on.
    PlacesWhatMovesOn,
    /// Ingresses admit under a plan as soon as they know it.
    AdmitsAtOnce,
    /// Workers unload what the newest plan does not need as soon as they have loaded it.
    RetiresAtOnce,
    /// No process writes the running plan to a store that has lost it.
    RestoresNothing,
    /// Ingresses do not note which replicas of the admitted plan could not be loaded.
    SendsToUnloadable,
    /// Workers are told only of the replicas that the admitted plan places.
    ForgetsPastEpochs,
    /// Replicas run whatever reaches them.
    ChecksNoEpoch,
    /// The ingresses do not tell workers which replicas to avoid.
    SilentIngresses,
    /// The ingresses tell it once per second, not at every change.
    LateIngresses,
    /// Workers do not follow the ingresses.
    DeafToIngresses,
}
