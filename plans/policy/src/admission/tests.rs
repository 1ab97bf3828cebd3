use std::collections::{BTreeSet, VecDeque};

use super::*;

/// A service of `servers` batches at a time, each `base + per_request * size` microseconds, fed at a constant rate.
struct Simulation {
    servers: usize,
    max_batch: usize,
    base_us: u64,
    per_request_us: u64,
    budget_us: u64,
    /// Whether the queue drops what has expired, as queues of replicas do.
    drops_expired: bool,
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    offered: u64,
    in_time: u64,
    too_late: u64,
    shed: u64,
}

impl Simulation {
    /// Answers per second with full batches.
    fn capacity(&self) -> f64 {
        let batch_us = self.base_us + self.per_request_us * self.max_batch as u64;
        (self.servers * self.max_batch) as f64 * 1e6 / batch_us as f64
    }

    /// Runs `seconds` at `load` times the capacity, What is admitted is served in order, so that
    /// everything the service does for a request too late is wasted. Counts after `skip` seconds.
    fn run(&self, admission: &mut Admission, load: f64, seconds: u64, skip: u64) -> Outcome {
        self.run_from(0, admission, load, seconds, skip)
    }

    /// The same, after this many seconds.
    fn run_from(&self, start: u64, admission: &mut Admission, load: f64, seconds: u64, skip: u64) -> Outcome {
        // A thousandth of the budget, which keeps a slow service from taking minutes.
        let step = (self.budget_us / 1_000).max(100);
        let mut queue: VecDeque<(u64, u64)> = VecDeque::new();
        let mut running: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
        let mut outcome = Outcome::default();
        let (mut owed, mut number) = (0.0, 0);
        // The requests without a reply, by number; they arrive in order.
        let mut open: BTreeSet<(u64, u64)> = BTreeSet::new();
        for now in (start * 1_000_000..(start + seconds) * 1_000_000).step_by(step as usize) {
            let counts = u64::from(now >= (start + skip) * 1_000_000);
            let (done, still): (Vec<_>, Vec<_>) = running.into_iter().partition(|(end, _)| *end <= now);
            running = still;
            for request in done.into_iter().flat_map(|(_, batch)| batch) {
                if open.remove(&request) {
                    admission.completed(now, now - request.0);
                    outcome.in_time += counts;
                }
            }
            while let Some(first) = open
                .first()
                .copied()
                .filter(|(arrival, _)| arrival + self.budget_us < now)
            {
                open.remove(&first);
                if self.drops_expired {
                    queue.retain(|request| *request != first);
                }
                admission.expired(now, self.budget_us);
                outcome.too_late += counts;
            }
            owed += self.capacity() * load * step as f64 / 1e6;
            while owed >= 1.0 {
                owed -= 1.0;
                number += 1;
                outcome.offered += counts;
                if admission.admit(now, open.len(), self.budget_us) {
                    let request = (now, number);
                    open.insert(request);
                    queue.push_back(request);
                } else {
                    outcome.shed += counts;
                }
            }
            while running.len() < self.servers && !queue.is_empty() {
                let batch: Vec<(u64, u64)> = queue.drain(..queue.len().min(self.max_batch)).collect();
                let run_us = self.base_us + self.per_request_us * batch.len() as u64;
                running.push((now + run_us, batch));
            }
        }
        outcome
    }

    fn goodput(&self, outcome: &Outcome, seconds: u64) -> f64 {
        outcome.in_time as f64 / seconds as f64 / self.capacity()
    }
}

const FAST: Simulation = Simulation {
    servers: 2,
    max_batch: 32,
    base_us: 2_000,
    per_request_us: 100,
    budget_us: 100_000,
    drops_expired: false,
};
const SLOW: Simulation = Simulation {
    servers: 1,
    max_batch: 8,
    base_us: 50_000,
    per_request_us: 10_000,
    budget_us: 2_000_000,
    drops_expired: false,
};

fn admission(simulation: &Simulation) -> Admission {
    Admission::new(AdmissionConfig {
        always: simulation.servers * simulation.max_batch,
        ..AdmissionConfig::default()
    })
}

#[test]
fn goodput_stays_level_at_four_times_the_capacity() {
    for simulation in [&FAST, &SLOW] {
        for load in [1.2, 2.0, 4.0, 10.0] {
            let mut admission = admission(simulation);
            let outcome = simulation.run(&mut admission, load, 20, 5);
            let goodput = simulation.goodput(&outcome, 15);
            println!(
                "load {load}: goodput {goodput:.3} {outcome:?} rate {:?}",
                admission.rate_per_s()
            );
            assert!(goodput >= 0.9, "load {load}: goodput {goodput}, {outcome:?}");
        }
    }
}

/// A language model: 2.3 answers/s, so that 18 in flight keep their budgets. Up to 64 were accepted at any load, and all expired.
const VERY_SLOW: Simulation = Simulation {
    servers: 1,
    max_batch: 8,
    base_us: 1_500_000,
    per_request_us: 250_000,
    budget_us: 10_000_000,
    drops_expired: true,
};

#[test]
fn a_service_that_misses_budgets_with_few_in_flight_sheds_too() {
    for load in [1.5, 3.0, 10.0] {
        let mut admission = Admission::new(AdmissionConfig::default());
        let outcome = VERY_SLOW.run(&mut admission, load, 600, 60);
        let goodput = VERY_SLOW.goodput(&outcome, 540);
        assert!(goodput >= 0.8, "load {load}: goodput {goodput}, {outcome:?}");
        let answered = outcome.in_time as f64;
        assert!(
            (outcome.too_late as f64) < 0.2 * answered,
            "load {load}: {outcome:?}"
        );
    }
}

#[test]
fn a_service_that_was_too_slow_once_takes_bursts_again() {
    let mut admission = Admission::new(AdmissionConfig::default());
    VERY_SLOW.run(&mut admission, 3.0, 120, 0);
    let budget = VERY_SLOW.budget_us;
    assert!(!admission.admit(120_000_000, 40, budget), "it is overloaded");
    let later = 120_000_000 + MEMORY_BUDGETS * budget;
    assert!(admission.admit(later, 40, budget), "nothing was refused for long");
}

/// A client whose budgets no load could keep must not close the service for the others.
#[test]
fn requests_with_too_short_a_budget_lower_no_bound() {
    let mut admission = Admission::new(AdmissionConfig::default());
    for number in 0..10_000_u64 {
        let now = number * 1_000;
        assert!(admission.admit(now, 4, 1_000_000));
        assert!(admission.admit(now, 5, 100));
        admission.expired(now + 100, 100);
        admission.completed(now + 900, 900);
    }
    assert!(admission.admit(10_000_000, 63, 1_000_000));
}

/// Regression: outcomes counted since the start of the process, so that after 20,000 answers an overload had to last for 5,000 expiries.
#[test]
fn a_long_good_time_does_not_hide_an_overload() {
    let mut admission = Admission::new(AdmissionConfig::default());
    for second in 0..20_000 {
        assert!(admission.admit(second * 1_000_000, 0, VERY_SLOW.budget_us));
        admission.completed(second * 1_000_000 + 500_000, 2_000_000);
    }
    let outcome = VERY_SLOW.run_from(20_000, &mut admission, 3.0, 600, 60);
    let goodput = VERY_SLOW.goodput(&outcome, 540);
    assert!(goodput >= 0.75, "goodput {goodput}, {outcome:?}");
}

/// Regression: with 40 requests in flight that keep their budgets of a minute, a client that gives up after a second, where answers take
/// ten, closed the service for them.
#[test]
fn budgets_that_no_answer_keeps_lower_no_bound() {
    const SECOND: u64 = 1_000_000;
    let mut admission = Admission::new(AdmissionConfig::default());
    let mut refused = 0;
    // Four good requests per second, each answered after ten; two hopeless ones per second from the first minute on.
    let mut open: VecDeque<(u64, u64)> = VecDeque::new();
    for tick in 0..4 * 3_600_u64 {
        let now = tick * SECOND / 4;
        while open.front().is_some_and(|(arrival, life)| arrival + life <= now) {
            let (arrival, life) = open.pop_front().unwrap();
            if life == SECOND {
                admission.expired(now, SECOND);
            } else {
                admission.completed(now, now - arrival);
            }
        }
        if admission.admit(now, open.len(), 60 * SECOND) {
            open.push_back((now, 10 * SECOND));
        } else {
            refused += 1;
        }
        if now > 60 * SECOND && tick % 2 == 0 && admission.admit(now, open.len(), SECOND) {
            open.push_back((now, SECOND));
        }
        open.make_contiguous()
            .sort_by_key(|(arrival, life)| arrival + life);
    }
    assert_eq!(refused, 0);
}

/// A replica became ten: what was learned about one must not hold the service down.
#[test]
fn a_slow_service_that_becomes_faster_is_measured_again() {
    let mut admission = Admission::new(AdmissionConfig::default());
    VERY_SLOW.run(&mut admission, 3.0, 120, 0);
    let faster = Simulation {
        servers: 10,
        ..VERY_SLOW
    };
    let outcome = faster.run_from(120, &mut admission, 1.2, 300, 120);
    let goodput = faster.goodput(&outcome, 180);
    assert!(goodput >= 0.8, "goodput {goodput}, {outcome:?}");
}

/// A burst at a service of many replicas was refused while most of them were idle: 40 requests in flight tell the rate of arrivals.
#[test]
fn replicas_of_the_plan_raise_what_is_always_accepted() {
    let takes_a_burst = |replicas: usize| {
        let mut admission = Admission::new(AdmissionConfig::default());
        admission.set_replicas(replicas);
        for number in 0..4_000 {
            admission.admit(number * 2_500, 40, 10_000_000);
            admission.completed(number * 2_500, 100_000);
        }
        admission.admit(10_000_000, 100, 100_000)
    };
    assert!(takes_a_burst(640));
    assert!(!takes_a_burst(32));
}

#[test]
fn without_admission_the_same_overload_leaves_no_goodput() {
    let mut never = Admission::new(AdmissionConfig {
        always: usize::MAX,
        ..AdmissionConfig::default()
    });
    let outcome = FAST.run(&mut never, 4.0, 20, 5);
    assert_eq!(outcome.shed, 0);
    assert!(FAST.goodput(&outcome, 15) < 0.1, "{outcome:?}");
}

#[test]
fn nothing_is_shed_below_capacity_nor_from_the_first_burst() {
    for load in [0.1, 0.5, 0.9] {
        let mut admission = admission(&FAST);
        assert_eq!(FAST.run(&mut admission, load, 10, 0).shed, 0);
    }
    let mut admission = admission(&FAST);
    let quiet = FAST.run(&mut admission, 0.05, 10, 0);
    assert_eq!((quiet.shed, admission.rate_per_s()), (0, None));
    assert!((0..1_000).all(|in_flight| admission.admit(10_000_000, in_flight, 100_000)));
}

#[test]
fn it_recovers_when_the_service_becomes_faster() {
    let slow = Simulation {
        base_us: 20_000,
        ..FAST
    };
    let mut admission = admission(&FAST);
    slow.run(&mut admission, 4.0, 10, 5);
    let outcome = FAST.run(&mut admission, 0.9, 10, 2);
    assert_eq!(outcome.shed + outcome.too_late, 0, "{outcome:?}");
}

#[test]
fn shorter_budgets_are_shed_first() {
    let mut admission = admission(&FAST);
    FAST.run(&mut admission, 4.0, 5, 0);
    let in_flight = (admission.rate_per_s().unwrap() * 0.1) as usize;
    assert!(!admission.admit(5_000_000, in_flight, 50_000));
    assert!(admission.admit(5_000_000, in_flight, 1_000_000));
}

/// A service of 100 requests/s that is offered 400/s, of which a full queue refuses 300.
#[test]
fn refusals_are_not_taken_for_service() {
    let mut admission = Admission::new(AdmissionConfig {
        always: 8,
        ..AdmissionConfig::default()
    });
    let mut now = 0;
    for number in 0_u32..4_000 {
        now += 2_500;
        admission.admit(now, 16, u64::MAX);
        if number % 4 == 0 {
            admission.completed(now, 10_000);
        } else {
            admission.ended();
        }
    }
    let rate = admission.rate_per_s().unwrap();
    assert!((90.0..110.0).contains(&rate), "{rate}");
}

/// While the replicas of a later stage are away, requests wait for the pauses between attempts.
#[test]
fn waiting_for_lost_replicas_is_no_slow_service() {
    let refused = |after_resend: bool| {
        let mut admission = Admission::new(AdmissionConfig::default());
        let (mut in_flight, mut refused) = (0, 0);
        // Requests come every 10 ms. Those of the first second are answered together at the end of it, all after a resend.
        for now in (0..2_000_000_u64).step_by(10_000) {
            if now == 1_000_000 {
                for _ in 0..64 {
                    if after_resend {
                        admission.completed_after_resend();
                    } else {
                        admission.completed(now, 1_000_000);
                    }
                    in_flight -= 1;
                }
            }
            if admission.admit(now, in_flight, 1_000_000) {
                in_flight += 1;
            } else {
                refused += 1;
            }
        }
        refused
    };
    assert_eq!(refused(true), 0);
    assert!(
        refused(false) > 0,
        "the same answers without a resend show a slow service"
    );
}
