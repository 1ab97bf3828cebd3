//! The time that the ledger of an ingress takes for one request, from admission to its answer, at 100,000 requests in flight:
//! `cargo bench -p kaskade-policy --bench ledger`.

#![expect(clippy::print_stdout, reason = "it prints its result")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures time; the policy does not read it"
)]
#![expect(clippy::unwrap_used, reason = "it stops at what is unexpected")]

use std::collections::VecDeque;
use std::time::Instant;

use kaskade_policy::ledger::{AnswerOutcome, Ledger, LedgerConfig};

/// Requests in flight.
const IN_FLIGHT: u64 = 100_000;
const ROUNDS: u32 = 1_000_000;
/// Microseconds.
const BUDGET: u64 = 10_000_000;

fn main() {
    let mut ledger = Ledger::new(LedgerConfig {
        max_in_flight: 200_000,
        ..LedgerConfig::default()
    });
    let mut ids = VecDeque::new();
    for now in 0..IN_FLIGHT {
        ids.push_back(ledger.admit(now, BUDGET, [0_u8; 64]).unwrap().id);
    }
    let start = Instant::now();
    for now in IN_FLIGHT..IN_FLIGHT + u64::from(ROUNDS) {
        let admitted = ledger.admit(now, BUDGET, [0_u8; 64]).unwrap();
        ledger.sent(admitted.id, admitted.attempt, Some("replica-1"));
        ids.push_back(admitted.id);
        let id = ids.pop_front().unwrap();
        assert!(matches!(ledger.answered(id, 1), AnswerOutcome::First(_)));
        assert!(ledger.due(now).expired.is_empty());
    }
    let each = start.elapsed() / ROUNDS;
    println!("{each:?} per request at {IN_FLIGHT} in flight");
}
