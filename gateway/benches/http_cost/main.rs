//! The cost of HTTP in front of the NATS request that a gateway makes.
//!
//! ```text
//! cargo bench -p kaskade-gateway --bench http_cost -- COMMAND
//!
//! http_cost gateway URL ADDRESS                  a gateway for the apps of `serving_cost serve`, until a line is read
//! http_cost load ADDRESS APP CONCURRENCY SECONDS closed loops over HTTP
//! http_cost serve ADDRESS [THREADS]              the same apps and their gateway in one process, as `kaskade serve --http`
//! http_cost added CONCURRENCY SECONDS ROUNDS     p50 over NATS and over HTTP in turn, and what HTTP adds
//! http_cost idle STREAMS                         memory of a gateway with that many idle streams
//! http_cost vanish STREAMS ROUNDS                time for which requests of killed clients are left running
//! http_cost dashboard REPLICAS PER_WORKER SECONDS    processor time of a gateway that shows them
//! ```
//!
//! `scripts/bench-peers.py` runs the first three beside the peers, interleaved. A request is that of `serving_cost`: a draw that
//! decides where the cascade exits, and 64 numbers, as a binary tensor.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "../../../actors/benches/serving_cost/apps.rs"]
mod apps;
mod dashboard;
mod idle;
mod load;
mod processes;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Gateway, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};

use apps::{BATCHING, Echo, Trivial, bus, cascade, inline};

/// That of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Budget of a request.
const BUDGET: Duration = Duration::from_secs(10);

/// Answers at once: what remains is the cost of serving.
struct Label;

impl Model for Label {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = || {
            Ok(vec![
                Tensor::from_f32("label", &[1], &[1.0])?,
                Tensor::from_f32("confidence", &[1], &[0.9])?,
            ])
        };
        batch.iter().map(|_| answer()).collect()
    }

    fn runs_inline(&self) -> bool {
        inline()
    }
}

fn listen(address: SocketAddr) -> Result<Gateway, Failure> {
    listen_on(address, None)
}

fn listen_on(address: SocketAddr, threads: Option<NonZeroUsize>) -> Result<Gateway, Failure> {
    let limits = Limits {
        max_in_flight: 20_000,
        threads,
        ..Limits::default()
    };
    Ok(Gateway::listen(address, limits)?)
}

fn wait_for_a_line() -> Result<(), Failure> {
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// A gateway for the apps of `serving_cost serve`.
fn gateway(url: &str, address: SocketAddr, apps: &[&str]) -> Result<(), Failure> {
    let gateway = listen(address)?;
    for app in apps {
        gateway.serve(AppOptions::new(*app).default_budget(BUDGET), bus(url, app))?;
    }
    println!("ready http://{} pid {}", gateway.address(), std::process::id());
    wait_for_a_line()?;
    gateway.stop();
    Ok(())
}

/// The apps of `serving_cost serve`, with their gateway in this process.
fn serve(address: SocketAddr, threads: Option<NonZeroUsize>) -> Result<(), Failure> {
    let model = |draw: f32| move || Ok::<_, String>(Trivial::new(draw));
    let cascade = Service::new("cascade")
        .bus(bus("embedded", "cascade"))
        .plan(cascade())
        .model("s1", model(0.6))
        .model("s2", model(0.85))
        .model("s3", model(1.1))
        .start()?;
    let url = cascade.bus().url().to_owned();
    let single = Service::new("single")
        .bus(bus(&url, "single"))
        .batching(BATCHING)
        .model("s", model(1.1))
        .start()?;
    let echo = Service::new("echo")
        .bus(bus(&url, "echo"))
        .batching(BATCHING)
        .model("e", || Ok::<_, String>(Echo))
        .start()?;
    let gateway = listen_on(address, threads)?;
    for (app, node) in [("cascade", &cascade), ("single", &single), ("echo", &echo)] {
        let options = AppOptions::new(app).default_budget(BUDGET);
        gateway.serve(options.with_local_ingress(node.local_intake()), bus(&url, app))?;
    }
    println!("ready http://{} pid {}", gateway.address(), std::process::id());
    wait_for_a_line()?;
    gateway.stop();
    for node in [cascade, single, echo] {
        node.stop();
    }
    Ok(())
}

/// Measures NATS and HTTP in turn, with one service behind both; HTTP by a gateway beside the ingress, and by one that asks over
/// NATS.
fn added(concurrency: usize, seconds: f64, rounds: usize) -> Result<(), Failure> {
    let node = Service::new("single")
        .bus(bus("embedded", "single"))
        .model("s", || Ok::<_, String>(Label))
        .start()?;
    let url = node.bus().url().to_owned();
    let of = |local| {
        let gateway = listen("127.0.0.1:0".parse()?)?;
        let options = AppOptions::new("single").default_budget(BUDGET);
        gateway.serve(options.with_local_ingress(local), bus(&url, "single"))?;
        Ok::<_, Failure>(gateway)
    };
    let gateways = [("beside", of(node.local_intake())?), ("apart", of(None)?)];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut differences = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        let over_nats = runtime.block_on(load::nats(&url, "single", concurrency, seconds))?;
        println!("{{\"round\":{round},\"nats\":{{{}}}}}", over_nats.json());
        for ((name, gateway), differences) in gateways.iter().zip(&mut differences) {
            let over_http = load::http(gateway.address(), "single", concurrency, seconds);
            let over_http = runtime.block_on(over_http)?;
            println!("{{\"round\":{round},\"{name}\":{{{}}}}}", over_http.json());
            differences.push(over_http.p50_ms - over_nats.p50_ms);
        }
    }
    for ((name, gateway), mut differences) in gateways.into_iter().zip(differences) {
        differences.sort_by(f64::total_cmp);
        let median = differences.get(differences.len() / 2).copied();
        let median = median.unwrap_or_default();
        println!(
            "{{\"name\":\"added\",\"gateway\":\"{name}\",\"concurrency\":{concurrency},\"added_p50_ms\":{median:.3}}}"
        );
        gateway.stop();
    }
    node.stop();
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds `--bench`.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["gateway", url, address] => gateway(url, address.parse()?, &["cascade", "single"]),
        ["serve", address] => serve(address.parse()?, None),
        ["serve", address, threads] => serve(address.parse()?, Some(threads.parse()?)),
        ["load", address, app, concurrency, seconds] => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let figures = load::http(address.parse()?, app, concurrency.parse()?, seconds.parse()?);
            let figures = runtime.block_on(figures)?;
            println!("{{{}}}", figures.json());
            Ok(())
        }
        ["added", concurrency, seconds, rounds] => {
            added(concurrency.parse()?, seconds.parse()?, rounds.parse()?)
        }
        ["idle", streams] => idle::measure(streams.parse()?),
        ["hold", address, streams] => idle::hold(address, streams.parse()?),
        ["vanish", streams, rounds] => idle::vanish(streams.parse()?, rounds.parse()?),
        ["dashboard", replicas, per_worker, seconds] => {
            dashboard::measure(replicas.parse()?, per_worker.parse()?, seconds.parse()?)
        }
        ["idle-service"] => idle::service(),
        ["idle-gateway", url] => gateway(url, "127.0.0.1:0".parse()?, &["idle"]),
        _ => Err("gateway/benches/http_cost/main.rs lists the commands at its head".into()),
    }
}
