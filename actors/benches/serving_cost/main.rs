//! The cost of serving itself: the model is trivial, so that everything else is measured.
//!
//! ```text
//! cargo bench -p kaskade-actors --bench serving_cost -- COMMAND
//!
//! serving_cost serve URL|embedded [SHARDS] three stages (60/25/15 exit) as `cascade`, one as `single`, and an echo
//! serving_cost nats URL APP CONCURRENCY SECONDS
//! serving_cost http ADDRESS PATH CONCURRENCY SECONDS
//! serving_cost hop URL BYTES SECONDS       a routed prediction beside a raw NATS request/reply of that size
//! serving_cost shards URL|embedded CONCURRENCY SECONDS ROUNDS    throughput with 1, 2, 4 and 8 shards, in turn
//! ```
//!
//! `scripts/bench-peers.py` runs it beside the peers, interleaved. A request is a draw in [0, 1), which decides where the
//! cascade exits, and 64 numbers; the model multiplies them by a 64 x 64 matrix.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod apps;
mod hop;
mod load;
mod scaling;

use std::num::NonZeroUsize;

use kaskade_actors::Service;

use apps::{BATCHING, Echo, Trivial, bus, cascade};

/// That of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves the three apps until a line is read.
fn serve(url: &str, shards: NonZeroUsize) -> Result<(), Failure> {
    let model = |draw: f32| move || Ok::<_, String>(Trivial::new(draw));
    let cascade = Service::new("cascade")
        .bus(bus(url, "cascade"))
        .plan(cascade())
        .model("s1", model(0.6))
        .model("s2", model(0.85))
        .model("s3", model(1.1))
        .shards(shards)
        .start()?;
    // The nodes share the one broker of a process without a URL.
    let url = cascade.bus().url();
    let single = Service::new("single")
        .bus(bus(url, "single"))
        .batching(BATCHING)
        .model("s", model(1.1))
        .shards(shards)
        .start()?;
    let echo = Service::new("echo")
        .bus(bus(url, "echo"))
        .batching(BATCHING)
        .model("e", || Ok::<_, String>(Echo))
        .shards(shards)
        .start()?;
    println!("{url}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    for node in [cascade, single, echo] {
        node.stop();
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds `--bench`.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match words.as_slice() {
        ["serve", url] => serve(url, NonZeroUsize::MIN),
        ["serve", url, shards] => serve(url, shards.parse()?),
        ["nats", url, app, concurrency, seconds] => {
            runtime.block_on(load::nats(url, app, concurrency.parse()?, seconds.parse()?))
        }
        ["http", address, path, concurrency, seconds] => {
            runtime.block_on(load::http(address, path, concurrency.parse()?, seconds.parse()?))
        }
        ["hop", url, bytes, seconds] => runtime.block_on(hop::hop(url, bytes.parse()?, seconds.parse()?)),
        ["shards", url, concurrency, seconds, rounds] => {
            scaling::scaling(url, concurrency.parse()?, seconds.parse()?, rounds.parse()?)
        }
        _ => Err("actors/benches/serving_cost/main.rs lists the commands at its head".into()),
    }
}
