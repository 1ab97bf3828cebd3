use proptest::prelude::*;

use super::*;

const FAR: u64 = 1_000_000_000;

fn queue(min_queue: u32, max_batch: u32, max_wait_us: u64) -> BatchQueue<u32> {
    BatchQueue::new(
        Batching {
            min_queue,
            max_batch,
            max_wait_us,
        },
        1000,
    )
}

fn run(next: Next<u32>) -> Vec<u32> {
    match next {
        Next::Run(batch) => batch,
        other => panic!("expected a batch, got {other:?}"),
    }
}

#[test]
fn starts_at_min_queue() {
    let mut queue = queue(3, 8, 2_000);
    assert_eq!(queue.poll(0, true).next, Next::Wait);
    queue.push(0, 0, FAR).unwrap();
    queue.push(1, 10, FAR).unwrap();
    assert_eq!(queue.poll(10, true).next, Next::WaitUntil(2_000));
    queue.push(2, 20, FAR).unwrap();
    assert_eq!(run(queue.poll(20, true).next), [0, 1, 2]);
    assert_eq!(queue.poll(20, true).next, Next::Wait);
}

#[test]
fn starts_when_the_oldest_has_waited() {
    let mut queue = queue(3, 8, 2_000);
    queue.push(0, 100, FAR).unwrap();
    queue.push(1, 1_000, FAR).unwrap();
    assert_eq!(queue.poll(2_099, true).next, Next::WaitUntil(2_100));
    assert_eq!(run(queue.poll(2_100, true).next), [0, 1]);
}

#[test]
fn never_runs_more_than_max_batch_or_while_busy() {
    let mut queue = queue(1, 2, 0);
    for i in 0..5 {
        queue.push(i, 0, FAR).unwrap();
    }
    assert_eq!(queue.poll(0, false).next, Next::WaitUntil(FAR));
    assert_eq!(run(queue.poll(0, true).next), [0, 1]);
    assert_eq!(run(queue.poll(0, true).next), [2, 3]);
    assert_eq!(run(queue.poll(0, true).next), [4]);
}

#[test]
fn a_min_queue_above_max_batch_still_starts() {
    let mut queue = queue(100, 2, FAR);
    queue.push(0, 0, FAR).unwrap();
    queue.push(1, 0, FAR).unwrap();
    assert_eq!(run(queue.poll(0, true).next), [0, 1]);
}

#[test]
fn gives_the_item_back_when_full() {
    let mut queue = BatchQueue::new(Batching::default(), 1);
    queue.push(7, 0, FAR).unwrap();
    assert_eq!(queue.push(8, 0, FAR), Err(8));
    assert_eq!(queue.drain(), [7]);
    assert!(queue.is_empty());
}

#[test]
fn a_request_that_cannot_be_met_comes_out_late_even_while_busy() {
    let mut queue = queue(1, 8, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 10,
    });
    queue.push(0, 0, 150).unwrap();
    queue.push(1, 0, FAR).unwrap();
    let poll = queue.poll(0, false);
    assert_eq!((poll.late, poll.next), (vec![], Next::WaitUntil(40)));
    let poll = queue.poll(40, false);
    assert_eq!(poll.late, [0]);
    assert_eq!(run(queue.poll(41, true).next), [1]);
}

#[test]
fn starts_before_waiting_would_make_one_late() {
    let mut queue = queue(4, 8, 10_000);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 0,
    });
    queue.push(0, 0, 1_000).unwrap();
    assert_eq!(queue.poll(0, true).next, Next::WaitUntil(899));
    let poll = queue.poll(899, true);
    assert!(poll.late.is_empty());
    assert_eq!(run(poll.next), [0]);
}

#[test]
fn shrinks_a_short_batch_rather_than_missing_its_tightest() {
    let mut queue = queue(1, 8, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 10,
    });
    for i in 0..4 {
        queue.push(i, 0, 125).unwrap();
    }
    let poll = queue.poll(0, true);
    assert!(poll.late.is_empty());
    assert_eq!(run(poll.next), [0, 1]);
}

#[test]
fn under_overload_drops_the_tight_and_fills_the_batch() {
    let mut queue = queue(1, 4, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 10,
    });
    for i in 0..3 {
        queue.push(i, 0, 125).unwrap();
    }
    for i in 3..9 {
        queue.push(i, 0, FAR).unwrap();
    }
    let poll = queue.poll(0, true);
    assert_eq!(poll.late, [0, 1, 2]);
    assert_eq!(run(poll.next), [3, 4, 5, 6]);
}

/// If no request could wait for a full batch, all of them were refused, and the replica idled.
#[test]
fn under_overload_a_batch_that_cannot_be_full_in_time_is_as_full_as_it_can_be() {
    let mut queue = queue(1, 4, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 10,
    });
    for i in 0..6 {
        queue.push(i, 0, 125).unwrap();
    }
    let poll = queue.poll(0, true);
    assert!(poll.late.is_empty(), "{:?}", poll.late);
    assert_eq!(run(poll.next), [0, 1]);
    // Of requests that could, as many as there are.
    let mut queue = self::queue(1, 4, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 10,
    });
    for (i, deadline) in [(0, 115), (1, 125), (2, 125), (3, 135), (4, 135)] {
        queue.push(i, 0, deadline).unwrap();
    }
    let poll = queue.poll(0, true);
    assert_eq!(poll.late, [0]);
    assert_eq!(run(poll.next), [1, 2]);
}

#[test]
fn a_gear_shift_keeps_the_queue() {
    let mut queue = queue(4, 8, FAR / 2);
    queue.push(0, 0, FAR).unwrap();
    assert!(matches!(queue.poll(0, true).next, Next::WaitUntil(_)));
    queue.set_batching(Batching {
        min_queue: 1,
        max_batch: 1,
        max_wait_us: 0,
    });
    assert_eq!(run(queue.poll(0, true).next), [0]);
}

proptest! {
    /// For any sequence of events: each request leaves exactly once, in order within a batch; no late request runs unless so many
    /// were refused that one is tried alone and displaces no other request; and a wait always ends in the future.
    #[test]
    fn every_request_leaves_once(
        batching in (1..6_u32, 1..6_u32, 0..500_u64),
        base_us in 0..100_u64,
        per_request_us in 0..30_u64,
        steps in prop::collection::vec((0..60_u64, 0..400_u64, prop::bool::ANY, prop::bool::ANY), 1..120),
    ) {
        let (min_queue, max_batch, max_wait_us) = batching;
        let run_time = RunTime { base_us, per_request_us };
        let mut queue = BatchQueue::new(Batching { min_queue, max_batch, max_wait_us }, 20);
        queue.set_expected_run(run_time);
        let mut deadlines: Vec<u64> = Vec::new();
        let mut left = Vec::new();
        let (mut now, mut refused) = (0, 0);
        for (elapsed, budget, push, idle) in steps {
            now += elapsed;
            if push && queue.push(deadlines.len(), now, now + budget).is_ok() {
                deadlines.push(now + budget);
            }
            let mut waiting = (0..deadlines.len()).filter(|id| !left.contains(id));
            let hopeless = waiting.all(|id| deadlines[id] <= now + run_time.of(1));
            let tries = refused >= TRIED_AFTER as usize && hopeless;
            let poll = queue.poll(now, idle);
            for id in &poll.late {
                prop_assert!(deadlines[*id] <= now + run_time.of(max_batch as usize));
            }
            if idle {
                refused += poll.late.len();
            }
            left.extend(poll.late);
            match poll.next {
                Next::Run(batch) => {
                    prop_assert!(idle && !batch.is_empty() && batch.len() <= max_batch as usize);
                    prop_assert!(batch.is_sorted());
                    for id in &batch {
                        let in_time = deadlines[*id] > now + run_time.of(batch.len());
                        let tried = tries && batch.len() == 1 && deadlines[*id] > now;
                        prop_assert!(in_time || tried);
                    }
                    left.extend(batch);
                    refused = 0;
                }
                Next::WaitUntil(at) => prop_assert!(at > now && !queue.is_empty()),
                Next::Wait => prop_assert!(queue.is_empty()),
            }
        }
        left.extend(queue.drain());
        left.sort_unstable();
        prop_assert_eq!(left, (0..deadlines.len()).collect::<Vec<_>>());
    }

    /// Polling exactly at the returned times never lets a request wait beyond its trigger.
    #[test]
    fn an_idle_replica_that_obeys_waits_no_longer_than_max_wait(
        min_queue in 1..5_u32,
        max_wait_us in 0..500_u64,
        gaps in prop::collection::vec(0..300_u64, 1..40),
    ) {
        let mut queue = BatchQueue::new(Batching { min_queue, max_batch: 8, max_wait_us }, 100);
        let mut now = 0;
        for gap in gaps {
            let arrival = now + gap;
            while let Next::WaitUntil(at) = queue.poll(now, true).next {
                if at > arrival { break; }
                now = at;
            }
            now = arrival;
            queue.push(now, now, FAR).unwrap();
            if let Next::Run(batch) = queue.poll(now, true).next {
                prop_assert!(batch.iter().all(|since| now - since <= max_wait_us));
            }
        }
    }
}

/// One request after the other, each with half a second, for an idle replica; gives how many were refused before one ran.
fn refused_before_a_run(queue: &mut BatchQueue<u32>) -> Option<usize> {
    let mut refused = 0;
    for at in (0..100_000).step_by(1_000) {
        queue.push(1, at, at + 500_000).unwrap();
        let poll = queue.poll(at, true);
        refused += poll.late.len();
        if let Next::Run(batch) = poll.next {
            assert_eq!(batch, [1]);
            return Some(refused);
        }
    }
    None
}

#[test]
fn an_expectation_beyond_every_budget_is_tried_now_and_then() {
    let mut queue = queue(1, 8, 0);
    queue.set_expected_run(RunTime {
        base_us: 5_000_000,
        per_request_us: 0,
    });
    for _ in 0..3 {
        assert_eq!(refused_before_a_run(&mut queue), Some(TRIED_AFTER as usize));
    }
}

#[test]
fn nothing_is_tried_in_vain_beside_a_request_in_time() {
    let mut queue = queue(1, 8, 0);
    queue.set_expected_run(RunTime {
        base_us: 100,
        per_request_us: 0,
    });
    for _ in 0..TRIED_AFTER {
        queue.push(0, 0, 50).unwrap();
    }
    let poll = queue.poll(0, true);
    assert_eq!((poll.late.len(), poll.next), (TRIED_AFTER as usize, Next::Wait));
    queue.push(1, 0, 50).unwrap();
    queue.push(2, 0, 1_000).unwrap();
    let poll = queue.poll(0, true);
    assert_eq!((poll.late, run(poll.next)), (vec![1], vec![2]));
}
