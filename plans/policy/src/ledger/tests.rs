use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn ledger() -> Ledger<&'static str> {
    Ledger::new(LedgerConfig {
        max_in_flight: 3,
        max_attempts: 3,
        backoff_us: 100,
        max_backoff_us: 150,
        ..LedgerConfig::default()
    })
}

#[test]
fn what_brings_its_replicas_down_is_sent_again_only_so_often() {
    let mut ledger = Ledger::new(LedgerConfig {
        max_attempts: 16,
        max_losses: 2,
        ..LedgerConfig::default()
    });
    let Admitted { id, .. } = ledger.admit(0, 1_000, "deadly").unwrap();
    for attempt in 1..=2 {
        ledger.sent(id, attempt, Some("r"));
        assert_eq!(ledger.replica_lost("r", 1), [(id, attempt + 1)]);
    }
    ledger.sent(id, 3, Some("r"));
    assert_eq!(ledger.replica_lost("r", 3), []);
    assert_eq!(ledger.due(3).exhausted, [(id, "deadly")]);
}

#[test]
fn whatever_was_sent_is_sent_again_when_the_connection_was_lost() {
    let mut ledger = ledger();
    let [here, there, paused] =
        ["here", "there", "paused"].map(|kept| ledger.admit(0, 1_000, kept).unwrap().id);
    ledger.sent(there, 1, Some("r"));
    assert!(matches!(
        ledger.failed(paused, 1, true, 0),
        FailureOutcome::Retry { .. }
    ));
    let remote = |_: &&str, _: &str| false;
    assert_eq!(
        ledger.connection_lost(1, remote),
        [(here, 2), (there, 2)],
        "one that waits is not lost"
    );
    assert_eq!(ledger.connection_lost(2, remote), [(here, 3), (there, 3)]);
    assert_eq!(ledger.connection_lost(3, remote), [], "no attempt is left");
    assert_eq!(
        ledger.answered(here, 1),
        AnswerOutcome::First("here"),
        "and every answer counts"
    );
}

/// It computed twice.
#[test]
fn what_never_used_the_connection_is_not_sent_again() {
    let mut ledger = ledger();
    let [local, other, unknown] =
        ["local", "other", "unknown"].map(|kept| ledger.admit(0, 1_000, kept).unwrap().id);
    ledger.sent(local, 1, Some("r"));
    // A replica of the same name under another plan.
    ledger.sent(other, 1, Some("r"));
    let is_local = |kept: &&str, replica: &str| (*kept, replica) == ("local", "r");
    assert_eq!(ledger.connection_lost(1, is_local), [(other, 2), (unknown, 2)]);
    assert_eq!(ledger.attempt_and_replica(local), Some((1, Some("r"))));
}

#[test]
fn what_a_replica_that_left_did_not_take_is_sent_again_and_counts_as_no_loss() {
    let mut ledger = Ledger::new(LedgerConfig {
        max_attempts: 3,
        max_losses: 1,
        ..LedgerConfig::default()
    });
    let [here, there, unknown] =
        ["here", "there", "unknown"].map(|kept| ledger.admit(0, 1_000, kept).unwrap().id);
    ledger.sent(here, 1, Some("r"));
    ledger.sent(there, 1, Some("s"));
    ledger.sent(unknown, 1, None);
    assert_eq!(ledger.replica_left("r", 1), [(here, 2)]);
    assert_eq!(ledger.replica_left("r", 2), [], "it is elsewhere now");
    ledger.sent(here, 2, Some("s"));
    assert_eq!(ledger.replica_left("s", 3), [(here, 3), (there, 2)]);
    ledger.sent(here, 3, Some("t"));
    assert_eq!(ledger.replica_left("t", 4), []);
    assert_eq!(ledger.due(4).exhausted, [(here, "here")]);
}

#[test]
fn a_request_settles_once_enough_was_tried_but_never_at_first() {
    let ledger: Ledger<()> = Ledger::new(LedgerConfig {
        accept_any_from_attempt: 0,
        ..LedgerConfig::default()
    });
    assert!(!ledger.must_accept_below_threshold(1, 1) && ledger.must_accept_below_threshold(1, 2));
    let mut ledger: Ledger<()> = Ledger::new(LedgerConfig {
        accept_any_from_attempt: 5,
        ..LedgerConfig::default()
    });
    let accepts =
        |ledger: &Ledger<()>| [4, 5, 6, 7].map(|attempt| ledger.must_accept_below_threshold(1, attempt));
    assert_eq!(accepts(&ledger), [false, true, true, true]);
    // Two attempts after lost connections say nothing of the models.
    let id = ledger.admit(0, 1_000, ()).unwrap().id;
    ledger.connection_lost(1, |(), _| false);
    ledger.connection_lost(2, |(), _| false);
    assert_eq!((id, ledger.newest_attempt(id)), (1, 3));
    assert_eq!(accepts(&ledger), [false, false, false, true]);
}

#[test]
fn the_first_answer_wins_and_the_second_is_stale() {
    let mut ledger = ledger();
    let Admitted { id, attempt } = ledger.admit(0, 1_000, "a").unwrap();
    assert_eq!(ledger.get(id), Some(&"a"));
    assert_eq!(ledger.answered(id, attempt), AnswerOutcome::First("a"));
    assert_eq!(ledger.answered(id, attempt), AnswerOutcome::Stale);
    assert_eq!(ledger.failed(id, attempt, true, 7), FailureOutcome::Stale);
    assert!(ledger.is_empty() && ledger.next_wake(8).is_none());
}

#[test]
fn refuses_beyond_its_limits_and_gives_back_what_was_to_be_kept() {
    let mut ledger = ledger();
    assert_eq!(ledger.admit(0, 0, "x"), Err((Refusal::NoBudget, "x")));
    for _ in 0..3 {
        ledger.admit(0, 10, "a").unwrap();
    }
    assert_eq!(ledger.admit(0, 10, "b"), Err((Refusal::Full { limit: 3 }, "b")));
}

#[test]
fn a_failure_is_retried_after_a_growing_capped_pause_until_attempts_end() {
    let mut ledger = ledger();
    let id = ledger.admit(0, 10_000, "a").unwrap().id;
    let FailureOutcome::Retry { attempt: 2, after_us } = ledger.failed(id, 1, true, 0) else {
        panic!("expected a retry");
    };
    assert!((50..=100).contains(&after_us));
    assert_eq!(ledger.next_wake(0), Some(after_us));
    assert_eq!(
        ledger.failed(id, 1, true, 1),
        FailureOutcome::Stale,
        "reported twice"
    );
    assert!(ledger.due(after_us - 1).resend.is_empty());
    assert_eq!(ledger.due(after_us).resend, [(id, 2)]);
    assert!(ledger.due(after_us).resend.is_empty(), "handed out once");
    let FailureOutcome::Retry { attempt: 3, after_us } = ledger.failed(id, 2, true, 500) else {
        panic!("expected a retry");
    };
    assert!((75..=150).contains(&after_us));
    ledger.due(500 + after_us);
    assert_eq!(ledger.failed(id, 3, true, 900), FailureOutcome::Terminal("a"));
}

#[test]
fn a_failure_that_no_retry_helps_or_that_has_no_time_left_is_terminal() {
    let mut ledger = ledger();
    let id = ledger.admit(0, 1_000, "a").unwrap().id;
    assert_eq!(ledger.failed(id, 1, false, 0), FailureOutcome::Terminal("a"));
    let id = ledger.admit(0, 1_000, "b").unwrap().id;
    assert_eq!(ledger.failed(id, 1, true, 990), FailureOutcome::Terminal("b"));
}

/// Regression: a replica was lost; requests that another one was working on were sent again too, and its full queue ended them.
#[test]
fn a_full_queue_does_not_end_a_request_whose_earlier_attempt_may_answer() {
    let mut ledger = ledger();
    let id = ledger.admit(0, 1_000, "a").unwrap().id;
    assert_eq!(ledger.overloaded(id, 1, 0), FailureOutcome::Terminal("a"));
    let id = ledger.admit(0, 10_000, "b").unwrap().id;
    assert_eq!(ledger.replica_lost("r", 10), [(id, 2)]);
    let FailureOutcome::Retry { attempt: 3, after_us } = ledger.overloaded(id, 2, 20) else {
        panic!("expected a retry");
    };
    assert_eq!(
        ledger.overloaded(id, 2, 21),
        FailureOutcome::Stale,
        "reported twice"
    );
    assert_eq!(ledger.due(20 + after_us).resend, [(id, 3)]);
    assert_eq!(ledger.overloaded(id, 3, 300), FailureOutcome::Waiting);
    assert!(ledger.due(9_999).resend.is_empty());
    assert_eq!(ledger.answered(id, 1), AnswerOutcome::First("b"));
    // A request that was at the lost replica has no other attempt that may answer.
    let id = ledger.admit(0, 10_000, "c").unwrap().id;
    ledger.sent(id, 1, Some("r"));
    assert_eq!(ledger.replica_lost("r", 10), [(id, 2)]);
    assert_eq!(ledger.overloaded(id, 2, 20), FailureOutcome::Terminal("c"));
}

#[test]
fn an_old_attempt_may_answer_but_not_fail_the_new_one() {
    let mut ledger = ledger();
    let id = ledger.admit(0, 1_000, "a").unwrap().id;
    assert_eq!(ledger.replica_lost("r", 10), [(id, 2)]);
    assert_eq!(ledger.failed(id, 1, false, 20), FailureOutcome::Stale);
    assert_eq!(
        ledger.answered(id, 9),
        AnswerOutcome::Stale,
        "an attempt that never was"
    );
    assert_eq!(
        ledger.answered(id, 0),
        AnswerOutcome::Stale,
        "an attempt that never was"
    );
    assert_eq!(ledger.answered(id, 1), AnswerOutcome::First("a"));
}

#[test]
fn a_lost_replica_has_its_requests_and_the_unplaced_sent_again() {
    let mut ledger = ledger();
    let ids: Vec<u64> = (0..3).map(|_| ledger.admit(0, 1_000, "a").unwrap().id).collect();
    ledger.sent(ids[0], 1, Some("r1"));
    ledger.sent(ids[1], 1, Some("r2"));
    ledger.sent(ids[2], 1, None);
    assert_eq!(ledger.replica_lost("r1", 10), [(ids[0], 2), (ids[2], 2)]);
    ledger.sent(ids[0], 1, Some("r2"));
    ledger.sent(ids[0], 2, Some("r3"));
    ledger.sent(ids[2], 2, Some("r3"));
    assert_eq!(ledger.replica_lost("r2", 20), [(ids[1], 2)]);
}

#[test]
fn a_request_that_outlives_no_replica_ends_as_exhausted() {
    let mut ledger = ledger();
    let id = ledger.admit(0, 1_000_000, "poison").unwrap().id;
    for attempt in 1..=3 {
        ledger.sent(id, attempt, Some("r"));
        let again = ledger.replica_lost("r", 1);
        assert_eq!(again.is_empty(), attempt == 3);
    }
    assert_eq!(ledger.next_wake(7), Some(7));
    assert_eq!(ledger.due(7).exhausted, [(id, "poison")]);
    assert!(ledger.is_empty());
}

#[test]
fn a_budget_that_ends_is_due_then_and_drained_requests_are_gone() {
    let mut ledger = ledger();
    let first = ledger.admit(0, 500, "a").unwrap().id;
    let second = ledger.admit(0, 900, "b").unwrap().id;
    assert_eq!(ledger.next_wake(0), Some(500));
    assert_eq!(ledger.remaining_us(first, 100), Some(400));
    assert!(ledger.due(499).expired.is_empty());
    assert_eq!(ledger.due(500).expired, [(first, "a")]);
    assert_eq!(ledger.drain_all(), [(second, "b")]);
    assert_eq!(
        ledger.due(10_000),
        TimerEvents {
            expired: vec![],
            exhausted: vec![],
            resend: vec![]
        }
    );
}

#[derive(Debug, Clone)]
enum Step {
    Admit {
        budget: u64,
    },
    Sent {
        pick: usize,
        older: u32,
        to: Option<u8>,
    },
    Answered {
        pick: usize,
        older: u32,
    },
    Failed {
        pick: usize,
        older: u32,
        retryable: bool,
    },
    Left {
        replica: u8,
    },
    Lost {
        replica: u8,
    },
    Due,
}

fn step() -> impl Strategy<Value = Step> {
    let pick = 0..1_000_usize;
    let older = 0..3_u32;
    prop_oneof![
        3 => (0..3_000_u64).prop_map(|budget| Step::Admit { budget }),
        3 => (pick.clone(), older.clone(), prop::option::of(0..3_u8))
            .prop_map(|(pick, older, to)| Step::Sent { pick, older, to }),
        2 => (pick.clone(), older.clone()).prop_map(|(pick, older)| Step::Answered { pick, older }),
        2 => (pick, older, prop::bool::ANY)
            .prop_map(|(pick, older, retryable)| Step::Failed { pick, older, retryable }),
        1 => (0..3_u8).prop_map(|replica| Step::Lost { replica }),
        1 => (0..3_u8).prop_map(|replica| Step::Left { replica }),
        2 => Just(Step::Due),
    ]
}

/// The reference model of one request: its deadline, its current attempt, and how often it came to an end.
struct Known {
    deadline: u64,
    attempt: u32,
    ends: u32,
}

fn end(known: &mut HashMap<u64, Known>, id: u64, kept: u64) {
    let entry = known.get_mut(&id).unwrap();
    assert_eq!(kept, entry.deadline, "another request's keepsake came out");
    entry.ends += 1;
}

fn settle(ledger: &mut Ledger<u64>, known: &mut HashMap<u64, Known>, now: u64) {
    let due = ledger.due(now);
    for (id, kept) in due.expired {
        assert!(known[&id].deadline <= now, "expired early");
        end(known, id, kept);
    }
    for (id, kept) in due.exhausted {
        end(known, id, kept);
    }
    for (id, attempt) in due.resend {
        assert_eq!((known[&id].attempt, known[&id].ends), (attempt, 0));
    }
    assert!(
        known
            .values()
            .all(|known| known.ends == 1 || known.deadline > now),
        "overdue"
    );
    assert!(
        ledger.next_wake(now).is_none_or(|at| at > now),
        "nothing is due any more"
    );
}

#[test]
fn a_request_that_brings_its_replicas_down_is_found_after_six_and_one_that_was_near_goes_on() {
    let config = LedgerConfig {
        max_attempts: 16,
        ..LedgerConfig::default()
    };
    let mut ledger = Ledger::new(config);
    let [deadly, near] = ["deadly", "near"].map(|name| ledger.admit(0, 1_000_000, name).unwrap().id);
    assert!(!ledger.is_suspect(deadly));
    // Where they were is unknown.
    assert_eq!(ledger.replica_lost("r0", 0), [(deadly, 2), (near, 2)]);
    assert!(ledger.is_suspect(deadly) && ledger.is_suspect(near));
    ledger.sent(near, 2, Some("another"));
    for loss in 1..=5 {
        let replica = format!("r{loss}");
        ledger.sent(deadly, loss + 1, Some(&replica));
        let expected: &[_] = if loss < 5 { &[(deadly, loss + 2)] } else { &[] };
        assert_eq!(ledger.replica_lost(&replica, 0), expected, "{loss}");
    }
    let due = ledger.due(0);
    assert_eq!(due.exhausted, [(deadly, "deadly")]);
    assert_eq!(ledger.attempt_and_replica(near), Some((2, Some("another"))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever is lost, doubled or reordered, every admitted request comes to exactly one end, by its deadline.
    #[test]
    fn every_request_ends_exactly_once(steps in prop::collection::vec((0..400_u64, step()), 1..150)) {
        let config = LedgerConfig { max_in_flight: 20, max_attempts: 3, max_losses: 2, accept_any_from_attempt: 3, backoff_us: 50, max_backoff_us: 300, ..LedgerConfig::default() };
        let mut ledger: Ledger<u64> = Ledger::new(config);
        let mut known: HashMap<u64, Known> = HashMap::new();
        let mut now = 0;
        for (elapsed, step) in steps {
            now += elapsed;
            let target = |pick: usize, known: &HashMap<u64, Known>| {
                let id = FIRST_ID + (pick % known.len().max(1)) as u64;
                (id, known.get(&id).map_or(1, |known| known.attempt))
            };
            match step {
                Step::Admit { budget } => {
                    if let Ok(admitted) = ledger.admit(now, budget, now + budget) {
                        let fresh = Known { deadline: now + budget, attempt: 1, ends: 0 };
                        prop_assert!(known.insert(admitted.id, fresh).is_none());
                    }
                }
                Step::Sent { pick, older, to } => {
                    let (id, attempt) = target(pick, &known);
                    let to = to.map(|to| format!("r{to}"));
                    ledger.sent(id, attempt.saturating_sub(older), to.as_deref());
                }
                Step::Answered { pick, older } => {
                    let (id, attempt) = target(pick, &known);
                    if let AnswerOutcome::First(kept) = ledger.answered(id, attempt.saturating_sub(older)) {
                        end(&mut known, id, kept);
                    }
                }
                Step::Failed { pick, older, retryable } => {
                    let (id, attempt) = target(pick, &known);
                    match ledger.failed(id, attempt.saturating_sub(older), retryable, now) {
                        FailureOutcome::Retry { attempt: next, after_us } => {
                            prop_assert!(older == 0 && retryable && next == attempt + 1 && next <= 3);
                            prop_assert!(now + after_us < known[&id].deadline);
                            known.get_mut(&id).unwrap().attempt = next;
                        }
                        FailureOutcome::Waiting => prop_assert!(false, "no queue was full"),
                        FailureOutcome::Terminal(kept) => {
                            prop_assert_eq!(older, 0);
                            end(&mut known, id, kept);
                        }
                        FailureOutcome::Stale => {}
                    }
                }
                Step::Lost { replica } => {
                    for (id, attempt) in ledger.replica_lost(&format!("r{replica}"), now) {
                        let entry = known.get_mut(&id).unwrap();
                        prop_assert!(attempt == entry.attempt + 1 && attempt <= 3 && entry.ends == 0);
                        entry.attempt = attempt;
                    }
                }
                Step::Left { replica } => {
                    for (id, attempt) in ledger.replica_left(&format!("r{replica}"), now) {
                        let entry = known.get_mut(&id).unwrap();
                        prop_assert!(attempt == entry.attempt + 1 && attempt <= 3 && entry.ends == 0);
                        entry.attempt = attempt;
                    }
                }
                Step::Due => settle(&mut ledger, &mut known, now),
            }
            prop_assert!(known.values().all(|known| known.ends <= 1));
            prop_assert_eq!(ledger.len(), known.values().filter(|known| known.ends == 0).count());
            ledger.check_indices();
        }
        settle(&mut ledger, &mut known, now + 10_000);
        prop_assert!(ledger.is_empty());
    }
}

impl<T> Ledger<T> {
    /// Each entry is in the index of its state and in no other.
    fn check_indices(&self) {
        let listed = self.unplaced.len()
            + self.pauses.len()
            + self.exhausted.len()
            + self.placed.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(listed, self.entries.len());
        assert_eq!(self.deadlines.len(), self.entries.len());
        for (id, entry) in &self.entries {
            assert!(self.deadlines.contains(&(entry.deadline, *id)));
            assert!(match &entry.state {
                State::Unplaced => self.unplaced.contains(id),
                State::At(replica) => self.placed[replica].contains(id),
                State::Paused(at) => self.pauses.contains(&(*at, *id)),
                State::Exhausted => self.exhausted.contains(id),
            });
        }
    }
}

/// A ledger with this many requests at the replica `a`, and a budget of `floor` resends and a fifth of the admissions.
fn at_one_replica(requests: u64, floor: u32) -> Ledger<u64> {
    let retries = crate::retry_budget::RetryBudgetConfig {
        floor,
        ..crate::retry_budget::RetryBudgetConfig::default()
    };
    let mut ledger = Ledger::new(LedgerConfig {
        retries,
        max_attempts: 16,
        ..LedgerConfig::default()
    });
    for number in 0..requests {
        let Admitted { id, attempt } = ledger.admit(0, 10_000_000, number).unwrap();
        ledger.sent(id, attempt, Some("a"));
    }
    ledger
}

#[test]
fn resends_beyond_the_budget_wait_and_none_is_forgotten() {
    let mut ledger = at_one_replica(100, 10);
    assert_eq!(
        ledger.replica_lost("a", 1_000).len(),
        30,
        "the floor and a fifth of 100"
    );
    let (mut now, mut resent, mut windows) = (1_000, 30, 0);
    while resent < 100 {
        let wake = ledger.next_wake(now).unwrap();
        assert!(wake > now, "waiting does not spin");
        now = wake;
        let due = ledger.due(now);
        assert!(due.expired.is_empty() && due.resend.len() <= 30);
        resent += due.resend.len();
        windows += usize::from(!due.resend.is_empty());
    }
    assert!(windows >= 3, "{windows}");
}

#[test]
fn after_a_lost_connection_everything_is_sent_again_at_once() {
    let mut ledger = at_one_replica(100, 10);
    assert_eq!(ledger.connection_lost(1_000, |_, _| false).len(), 100);
}

#[test]
fn replicas_that_are_lost_together_count_as_one_loss() {
    let mut ledger = at_one_replica(1, 100);
    let names = ["a", "b", "c", "d", "e", "f"];
    assert_eq!(ledger.replicas_lost(&names, 1), [(1, 2)]);
    for (number, name) in (0..).zip(names) {
        // It may be at any replica: each loss sends it again, and none exhausts it.
        assert_eq!(ledger.replica_lost(name, 2 + number).len(), 1, "{name}");
    }
    assert!(ledger.due(100).exhausted.is_empty());
}
