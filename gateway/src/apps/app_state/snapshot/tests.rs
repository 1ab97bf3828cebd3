use std::time::{Duration, Instant};

use kaskade_actors::wire::{Heartbeat, IngressState, ReplicaBeat};
use rustix::time::{ClockId, clock_gettime};

use super::super::{AppState, HISTORY, Point};
use super::*;

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends heartbeats of ten workers with a hundred replicas each; the queue of every `step`-th replica changes.
fn beat(app_state: &AppState, round: u32, step: usize) {
    for worker in 0..10 {
        let replicas = (0..100_usize).map(|number| ReplicaBeat {
            id: format!("variant-{worker}-replica-{number}"),
            variant: format!("variant-{worker}"),
            queue: if number % step == 0 { round } else { 0 },
            in_flight: 8,
            ..ReplicaBeat::default()
        });
        let beat = Heartbeat {
            actor: format!("worker-{worker}"),
            kind: "worker".to_owned(),
            replicas: replicas.collect(),
            ..Heartbeat::default()
        };
        app_state.state().beat(beat);
    }
}

fn point() -> Point {
    Point {
        at_ms: 1_700_000_000_000,
        arrived_per_s: 123.456_789,
        gear: Some(1),
        p50_s: Some(0.012_345_678),
        p95_s: Some(0.023_456_789),
        p99_s: Some(0.034_567_891),
        joules_per_request: Some(0.001_234_567),
        money_per_request: Some(0.000_123_456),
    }
}

/// Returns the state of an app with a thousand replicas and a full history.
fn thousand() -> AppState {
    let app_state = AppState::new("a");
    beat(&app_state, 0, 1);
    app_state.state().history.extend((0..HISTORY).map(|_| point()));
    app_state
}

#[test]
fn updates_apply_to_the_snapshot_and_to_each_other() {
    let app_state = thousand();
    let (number, all) = app_state.state().snapshot("a");
    let mut known: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(known["replicas"]["rows"].as_array().unwrap().len(), 1_000);
    assert_eq!(known["history"].as_array().unwrap().len(), HISTORY);
    for (round, step) in [(1, 1), (2, 7), (3, 50)] {
        beat(&app_state, round, step);
        let (next, update) = app_state.state().next_update("a");
        assert_eq!(next, number + u64::from(round));
        let update: Value = serde_json::from_str(&update).unwrap();
        for change in update["changed"].as_array().unwrap() {
            let row = &mut known["replicas"]["rows"][change[0].as_u64().unwrap() as usize];
            for (field, place) in [(3, 1), (4, 2), (5, 3)] {
                row[field] = change[place].clone();
            }
        }
        let (_, all) = app_state.state().snapshot("a");
        let all: Value = serde_json::from_str(&all).unwrap();
        assert_eq!(known["replicas"], all["replicas"], "after round {round}");
    }
    // The set of replicas changes, so the whole list is sent again.
    app_state.state().beat(Heartbeat {
        actor: "worker-9b".to_owned(),
        replicas: vec![ReplicaBeat {
            id: "another".to_owned(),
            ..ReplicaBeat::default()
        }],
        ..Heartbeat::default()
    });
    let (_, update) = app_state.state().next_update("a");
    let update: Value = serde_json::from_str(&update).unwrap();
    assert_eq!(update["replicas"]["rows"].as_array().unwrap().len(), 1_001);
    assert!(update.get("changed").is_none());
}

#[test]
fn an_ingress_that_was_killed_is_forgotten_with_the_replicas_that_it_avoided() {
    let app_state = AppState::new("a");
    app_state.state().beat(Heartbeat {
        actor: "w".to_owned(),
        replicas: vec![ReplicaBeat {
            id: "r".to_owned(),
            ..ReplicaBeat::default()
        }],
        ..Heartbeat::default()
    });
    for (ingress, avoided) in [("killed", vec!["r".to_owned()]), ("well", Vec::new())] {
        app_state.state().ingress(IngressState {
            ingress: ingress.to_owned(),
            unavailable: avoided,
            ..IngressState::default()
        });
    }
    let shown = |text: &str| {
        let all: Value = serde_json::from_str(text).unwrap();
        (
            all["replicas"]["rows"][0][3].clone(),
            all["replicas"]["ingresses"].clone(),
        )
    };
    assert_eq!(
        shown(&app_state.state().next_update("a").1),
        (json!("unavailable"), json!(2))
    );
    let long_ago = Instant::now().checked_sub(2 * SILENT).unwrap();
    app_state.state().unavailable.get_mut("killed").unwrap().0 = long_ago;
    app_state.state().forget_silent();
    assert_eq!(
        shown(&app_state.state().next_update("a").1),
        (json!("live"), json!(1))
    );
}

/// Limits per second and reader: 32 kB if every replica changes, 4 kB if few do, and 5 % of a core.
#[test]
fn updates_of_a_thousand_replicas_are_small_and_cheap() {
    let app_state = thousand();
    app_state.state().snapshot("a");
    let mut measured = Vec::new();
    for round in 1..6 {
        beat(&app_state, round, 1);
        let mut state = app_state.state();
        let begun = thread_time();
        let (_, update) = state.next_update("a");
        measured.push((thread_time().saturating_sub(begun), update.len()));
    }
    let (least, _) = measured.iter().min().unwrap();
    let (_, longest) = measured.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
    beat(&app_state, 5, 1);
    let (_, idle) = app_state.state().next_update("a");
    println!(
        "{longest} bytes if all change, {} if none does, {least:?} of processor time",
        idle.len()
    );
    assert!(
        *longest < 32_000 && idle.len() < 4_000,
        "{longest} and {}",
        idle.len()
    );
    assert!(*least < Duration::from_millis(50), "{least:?}");
}
