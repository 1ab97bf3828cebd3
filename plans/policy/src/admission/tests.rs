use std::collections::VecDeque;

use super::*;

/// A service of `servers` batches at a time, each `base + per_request * size` microseconds, fed at a constant rate.
struct Simulation {
    servers: usize,
    max_batch: usize,
    base_us: u64,
    per_request_us: u64,
    budget_us: u64,
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

    /// Runs `seconds` at `load` times the capacity, in steps of 100 us. What is admitted is served in order, so that
    /// everything the service does for a request too late is wasted. Counts after `skip` seconds.
    fn run(&self, admission: &mut Admission, load: f64, seconds: u64, skip: u64) -> Outcome {
        const STEP: u64 = 100;
        let mut queue: VecDeque<u64> = VecDeque::new();
        let mut running: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut outcome = Outcome::default();
        let mut owed = 0.0;
        let mut in_flight = 0;
        for now in (0..seconds * 1_000_000).step_by(STEP as usize) {
            let counts = u64::from(now >= skip * 1_000_000);
            let (done, still): (Vec<_>, Vec<_>) = running.into_iter().partition(|(end, _)| *end <= now);
            running = still;
            for arrival in done.into_iter().flat_map(|(_, batch)| batch) {
                admission.completed(now);
                in_flight -= 1;
                if now - arrival <= self.budget_us {
                    outcome.in_time += counts;
                } else {
                    outcome.too_late += counts;
                }
            }
            owed += self.capacity() * load * STEP as f64 / 1e6;
            while owed >= 1.0 {
                owed -= 1.0;
                outcome.offered += counts;
                if admission.admit(now, in_flight, self.budget_us) {
                    in_flight += 1;
                    queue.push_back(now);
                } else {
                    outcome.shed += counts;
                }
            }
            while running.len() < self.servers && !queue.is_empty() {
                let batch: Vec<u64> = queue.drain(..queue.len().min(self.max_batch)).collect();
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
};
const SLOW: Simulation = Simulation {
    servers: 1,
    max_batch: 8,
    base_us: 50_000,
    per_request_us: 10_000,
    budget_us: 2_000_000,
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
            admission.completed(now);
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
                        admission.completed(now);
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
