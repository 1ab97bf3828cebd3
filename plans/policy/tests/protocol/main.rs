//! The protocol under a seeded scheduler: the state machines of this crate, wired as the actors wire them, over a network that
//! loses, delays, doubles and reorders, between processes that die, stop and come back. See docs/contributing/simulation-testing.md.
//!
//! ```text
//! cargo test --release -p kaskade-policy --test protocol                                    # some thousands of seeds
//! KASKADE_SEEDS=100000 cargo test --release -p kaskade-policy --test protocol storms        # more of them
//! KASKADE_SEED=17 cargo test --release -p kaskade-policy --test protocol storms -- --nocapture   # one, with its trace
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::print_stdout, reason = "a replay prints its trace, a run its tally")]

mod control;
mod exchange;
mod ingress;
mod log;
mod messages;
mod oracle;
mod plans;
mod process;
mod replica;
mod sabotage;
mod scenario;
mod shifter;
mod worker;
mod world;

mod mutations;

use oracle::{Oracle, Tally};
use sabotage::Sabotage;
use scenario::{Glue, Scenario, Weather};
use world::World;

/// Seeds of a storm without further word.
const STORMS: u64 = 3_000;

/// Runs a seed to its end.
fn played(seed: u64, weather: Weather, glue: Glue, sabotage: Option<Sabotage>, echo: bool) -> World {
    let mut world = World::new(Scenario::of(seed, weather, glue), sabotage, echo);
    world.run();
    world
}

/// Runs the seeds given by the environment, else the given number, and panics at the first broken promise.
fn run(test: &str, weather: Weather, glue: Glue, seeds: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    if let Some(seed) = number("KASKADE_SEED") {
        let world = played(seed, weather, glue, None, true);
        return judge(test, seed, &world);
    }
    let seeds = number("KASKADE_SEEDS").unwrap_or(seeds);
    let (mut total, mut lines, mut failing) = (Tally::default(), 0, Vec::new());
    for seed in 0..seeds {
        let world = played(seed, weather, glue, None, false);
        total.add(&world.judge.tally);
        lines += world.log.lines();
        failing.extend(world.judge.violation().map(|violation| (seed, violation.oracle)));
    }
    println!("{test}: {seeds} seeds, {lines} events noted, {total:?}");
    if let Some((seed, _)) = failing.first() {
        println!(
            "{} seeds fail, the first of them: {:?}",
            failing.len(),
            &failing[..failing.len().min(20)]
        );
        judge(test, *seed, &played(*seed, weather, glue, None, false));
    }
}

/// Panics with the promise that the run broke, the end of its trace, and how to see it again.
fn judge(test: &str, seed: u64, world: &World) {
    if let Some(violation) = world.judge.violation() {
        panic!(
            "seed {seed} breaks a promise at {} us\n\nthe end of its trace:\n{}\n{violation}\n\nreplay it with\n  \
             KASKADE_SEED={seed} cargo test --release -p kaskade-policy --test protocol {test} -- --exact --nocapture\n",
            world.now,
            world.log.tail(),
        );
    }
}

#[test]
fn storms() {
    run("storms", Weather::Storm, Glue::SERVING, STORMS);
}

#[test]
fn calm() {
    run("calm", Weather::Calm, Glue::SERVING, STORMS / 10);
}

/// Deaths of workers alone; what they would cost otherwise, [`what_deaths_cost`].
#[test]
fn crashes() {
    run("crashes", Weather::Crashes, Glue::SERVING, STORMS / 3);
}

/// Workers that leave in good order over a slow network: nothing is lost, nothing is sent again.
#[test]
fn leaves() {
    run("leaves", Weather::Leaves, Glue::SERVING, STORMS / 3);
}

/// Connections that break and come back, also that of an ingress with clients and replicas in its process.
#[test]
fn reconnects() {
    run("reconnects", Weather::Reconnects, Glue::SERVING, STORMS / 3);
}

/// The same seed is the same run, to the last event.
#[test]
fn replays() {
    for seed in 0..40 {
        for weather in [
            Weather::Storm,
            Weather::Calm,
            Weather::Crashes,
            Weather::Leaves,
            Weather::Reconnects,
        ] {
            let trace = || {
                let world = played(seed, weather, Glue::SERVING, None, false);
                (world.log.hash(), world.log.lines(), world.judge.tally)
            };
            assert_eq!(trace(), trace(), "seed {seed}, {weather:?}");
        }
    }
    let hash = |seed| {
        played(seed, Weather::Storm, Glue::SERVING, None, false)
            .log
            .hash()
    };
    assert_ne!(hash(1), hash(2), "another seed is another run");
}

/// The value of three mechanisms, if workers only die and come back one at a time and budgets outlast it all.
///
/// A no-responders notice names its request and not the attempt. After a death the first notice resends all that the replica had
/// elsewhere; the next ones, about the same attempts, are taken for notices about these new replicas, so that live replicas are
/// declared lost one after the other. A worker that is back within three beats was never silent: what it had when it died waits
/// until the budget ends, unless its heartbeats reveal the restart. And five attempts are over in 30 ms, but silence is noticed after 300: until then
/// routers go on sending by shares to the replica that died.
#[test]
fn what_deaths_cost() {
    let losing = |glue: Glue| {
        let broken = |seed: &u64| {
            played(*seed, Weather::Crashes, glue, None, false)
                .judge
                .violation()
                .is_some()
        };
        (0..200).filter(broken).count()
    };
    let all = Glue::SERVING;
    let glues = [
        Glue {
            notices_name_attempts: false,
            ..all
        },
        Glue {
            beats_name_lives: false,
            ..all
        },
        Glue {
            max_attempts: 5,
            ..all
        },
        all,
    ];
    let counts = glues.map(losing);
    println!(
        "of 200 seeds lose a reply: all but attempts in notices, but lives in beats, but patience, all: {counts:?}"
    );
    let [_, without_lives, without_patience, all] = counts;
    assert!(
        all == 0 && without_lives > 0 && without_patience > 0,
        "{counts:?}"
    );
}
