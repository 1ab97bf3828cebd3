//! What a monitor reports: findings as they are made, and the status of each cascade.

/// Observations that refuted or restored a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Audits: how often the answer differs from the largest variant's.
    Audits,
    /// Labels: the paired loss, or the share of wrong answers.
    Labels,
}

/// Finding of a monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A certificate no longer holds: only cascades up to `to` may run.
    Safer {
        /// The index in the certified list of the cascade that was refuted.
        from: usize,
        /// The new limit.
        to: usize,
        /// Test that refuted it.
        evidence: Evidence,
    },
    /// A certificate holds again.
    Cheaper {
        /// The previous limit.
        from: usize,
        /// The new limit.
        to: usize,
    },
    /// A stage defers more or less, or is more or less confident, than on the certification samples.
    InputsDrifted {
        /// The index of the cascade.
        cascade: usize,
        /// The index of the stage in its wiring.
        stage: usize,
    },
    /// For as long as it takes to find a change, no further one was found.
    Settled {
        /// The index of the cascade.
        cascade: usize,
    },
}

/// Results of audits and labels for a cascade since its tests last began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CascadeStatus {
    /// Audits that ended.
    pub audited: u64,
    /// Interval of the share of requests that it answers differently from the largest variant, without the audits that failed.
    pub differs: [f64; 2],
    /// The share up to which its certificate stands; `None` if the plan does not say.
    pub may_differ: Option<f64>,
    /// Labels that count.
    pub labelled: u64,
    /// Interval of the loss of accuracy (or, for a least accuracy, of the share of wrong answers) by labels.
    pub loss: [f64; 2],
    /// What it may be.
    pub may_lose: f64,
    /// Whether its inputs have drifted.
    pub inputs_drifted: bool,
}
