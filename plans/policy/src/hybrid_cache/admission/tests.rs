use proptest::prelude::*;

use super::super::BlockCounts;
use super::super::blocks::{Capacity, Shares};
use super::*;

const LIMITS: Limits = Limits {
    context: 64,
    requests: 8,
    prefill_tokens: 48,
    blocks_at_once: None,
};

fn space(blocks: usize) -> BlockSpace {
    let host = BlockCounts {
        act: blocks / 2,
        kv: blocks - blocks / 2,
    };
    let device = BlockCounts::default();
    BlockSpace::new(4, Capacity { device, host }, Shares::device_first(0.5))
}

#[test]
fn what_can_never_run_is_refused_at_once_with_the_figures() {
    let (mut scheduler, space) = (Scheduler::new(LIMITS), space(10));
    assert_eq!(scheduler.submit(0, 0, 5, &space), Err(Refused::Empty));
    assert_eq!(
        scheduler.submit(0, 60, 5, &space),
        Err(Refused::Context {
            prompt: 60,
            answer: 5,
            context: 64
        })
    );
    let refused = scheduler.submit(0, 40, 1, &space).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "41 tokens take 11 cache blocks and there are 10; shorten the prompt or the answer, or give the cache more memory"
    );
    scheduler.submit(0, 39, 1, &space).unwrap();
    assert_eq!(
        scheduler.submit(0, 1, 1, &space),
        Err(Refused::Twice { request: 0 })
    );
    assert!(!scheduler.is_idle());
}

#[test]
fn the_latest_makes_room_and_comes_back_at_its_place() {
    let (mut scheduler, mut space) = (Scheduler::new(LIMITS), space(5));
    for request in 0..2 {
        scheduler.submit(request, 4, 12, &space).unwrap();
    }
    scheduler.submit(2, 4, 4, &space).unwrap();
    assert_eq!(
        scheduler.step(&mut space).prefill,
        [0, 1],
        "two blocks are in reserve"
    );
    let mut preempted = Vec::new();
    for _ in 0..9 {
        for request in 0..2 {
            scheduler.extend(request);
        }
        preempted = scheduler.step(&mut space).preempted;
        if !preempted.is_empty() {
            break;
        }
    }
    assert_eq!(preempted, [1]);
    assert!(scheduler.end(0, &mut space));
    assert!(!scheduler.end(0, &mut space));
    assert_eq!(
        scheduler.step(&mut space).prefill.first(),
        Some(&1),
        "before the later 2"
    );
}

#[test]
fn engines_without_mini_batches_run_what_the_buffers_hold() {
    let limits = Limits {
        blocks_at_once: Some(4),
        ..LIMITS
    };
    let (mut scheduler, mut space) = (Scheduler::new(limits), space(100));
    for request in 0..3 {
        scheduler.submit(request, 4, 4, &space).unwrap();
    }
    assert_eq!(scheduler.step(&mut space).prefill, [0, 1]);
    assert!(matches!(
        scheduler.submit(9, 10, 10, &space),
        Err(Refused::Cache { capacity: 4, .. })
    ));
}

#[test]
fn a_beam_search_counts_its_beams_and_begins_again_when_it_makes_room() {
    let (mut scheduler, mut space) = (Scheduler::new(LIMITS), space(10));
    let refused = scheduler.submit_beams(0, 9, 4, 4, &space).unwrap_err();
    assert_eq!(
        refused,
        Refused::Beams {
            beams: 9,
            requests: 8
        }
    );
    // Two blocks of the prompt are shared; each of four beams has two of its own at most, and two more of eight do not fit.
    scheduler.submit_beams(0, 4, 8, 8, &space).unwrap();
    let refused = scheduler.submit_beams(1, 4, 8, 9, &space).unwrap_err();
    assert!(
        matches!(
            refused,
            Refused::Cache {
                blocks: 14,
                capacity: 10,
                ..
            }
        ),
        "{refused}"
    );
    scheduler.submit(1, 4, 8, &space).unwrap();
    scheduler.submit_beams(2, 4, 4, 4, &space).unwrap();
    assert_eq!(
        scheduler.step(&mut space).prefill,
        [0, 1],
        "nine tables are more than run"
    );
    assert!(scheduler.end(0, &mut space) && scheduler.end(1, &mut space));

    scheduler.submit(3, 4, 28, &space).unwrap();
    assert_eq!(scheduler.step(&mut space).prefill, [2, 3]);
    for beam in [100, 101] {
        space.fork(2, beam, 4).unwrap();
    }
    scheduler.set_beams(2, vec![100, 101]);
    scheduler.extend(2);
    let step = scheduler.step(&mut space);
    assert_eq!(step.decode, [2, 100, 101, 3], "beams run in the same step");
    assert_eq!(scheduler.make_room(2, &mut space), Some(3), "the latest arrival");
    assert_eq!(scheduler.make_room(2, &mut space), None, "it runs alone");
    scheduler.preempt(2, &mut space);
    assert_eq!(scheduler.step(&mut space).prefill, [2, 3]);
    assert_eq!((space.table(2).len(), space.table(100).len()), (1, 0));
    assert!(scheduler.end(2, &mut space) && scheduler.end(3, &mut space));
    assert_eq!((space.free(), space.holders()), (10, 0));
}

/// One request of the property: when it comes, its prompt, its answer, and whether it is cancelled, after how many steps.
type Life = (usize, usize, usize, Option<usize>);

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let life = (
        0..30_usize,
        1..24_usize,
        1..24_usize,
        prop::option::weighted(0.2, 0..20_usize),
    );
    prop::collection::vec(life, 1..25)
}

proptest! {
    #[test]
    fn the_longest_answer_is_accepted_and_a_longer_one_is_not(beams in 1..5_usize, prompt in 1..80_usize, blocks in 0..40_usize, at_once in prop::option::of(1..20_usize)) {
        let mut scheduler = Scheduler::new(Limits { blocks_at_once: at_once, ..LIMITS });
        let space = space(blocks);
        let longest = scheduler.longest_answer(beams, prompt, &space);
        prop_assert!(scheduler.submit_beams(0, beams, prompt, longest + 1, &space).is_err());
        if longest > 0 {
            prop_assert_eq!(scheduler.submit_beams(0, beams, prompt, longest, &space), Ok(()));
        }
    }

    /// Every request that is taken ends, in bounded time, whatever the others do; the earliest always gets on; all blocks come back.
    #[test]
    fn no_request_is_lost_or_starves(lives in lives(), blocks in 1..40_usize, requests in 1..6_usize, at_once in prop::option::of(1..20_usize)) {
        let mut scheduler = Scheduler::new(Limits { requests, blocks_at_once: at_once, ..LIMITS });
        let mut space = space(blocks);
        let mut live: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        // Each step gives a token to some request; a preemption costs its victim a step, and the earliest is never one.
        let bound = 30 + lives.iter().map(|life| life.2 + 2).sum::<usize>() * lives.len();
        let mut steps = 0;
        loop {
            for (id, life) in (0..).zip(&lives) {
                if life.0 == steps && scheduler.submit(id, life.1, life.2, &space).is_ok() {
                    live.insert(id, (life.1, life.1 + life.2));
                }
                if life.3.is_some_and(|after| life.0 + after == steps) {
                    prop_assert_eq!(scheduler.end(id, &mut space), live.remove(&id).is_some());
                }
            }
            if live.is_empty() && steps > 60 { break; }
            prop_assert!(steps < bound + 60, "{live:?} never end");
            let step = scheduler.step(&mut space);
            let served: Vec<u64> = step.prefill.iter().chain(&step.decode).copied().collect();
            prop_assert!(served.len() <= requests);
            prop_assert!(live.is_empty() || !served.is_empty(), "a step served no request");
            prop_assert!(at_once.is_none() || step.preempted.is_empty());
            if let (Some(first), true) = (live.keys().min_by_key(|id| (lives[**id as usize].0, **id)), step.prefill.is_empty()) {
                prop_assert!(served.contains(first), "{first} waits while {served:?} run");
            }
            for id in served {
                let (tokens, most) = live[&id];
                prop_assert!(space.table(id).len() >= space.blocks_for(tokens));
                scheduler.extend(id);
                live.insert(id, (tokens + 1, most));
                if tokens + 1 == most {
                    live.remove(&id);
                    prop_assert!(scheduler.end(id, &mut space));
                }
            }
            steps += 1;
        }
        prop_assert!(scheduler.is_idle());
        prop_assert_eq!((space.free(), space.holders()), (blocks, 0));
    }
}
