//! The cost of HTTP in front of the NATS request that a gateway makes.
//!
//! ```text
//! cargo bench -p kaskade-gateway --bench http_cost -- COMMAND
//!
//! http_cost gateway URL ADDRESS                  a gateway for the apps of `serving_cost serve`, until a line is read
//! http_cost load ADDRESS APP CONCURRENCY SECONDS closed loops over HTTP
//! http_cost added CONCURRENCY SECONDS ROUNDS     p50 over NATS and over HTTP in turn, and what HTTP adds
//! http_cost idle STREAMS                         memory of a gateway with that many idle streams; needs `ulimit -n` twice as high
//! ```
//!
//! `scripts/bench-peers.py` runs the first two beside the peers, interleaved. A request is that of `serving_cost`: a draw that
//! decides where the cascade exits, and 64 numbers, as a binary tensor.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod idle;
mod load;

use std::net::SocketAddr;
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_actors::bus::{BusConfig, PlanStorage};
use kaskade_gateway::{AppOptions, Gateway, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};

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
}

fn bus(url: &str, app: &str) -> BusConfig {
    let config = BusConfig {
        plans: PlanStorage::Memory,
        ..BusConfig::new(app)
    };
    if url == "embedded" {
        config
    } else {
        config.url(url)
    }
}

fn listen(address: SocketAddr) -> Result<Gateway, Failure> {
    let limits = Limits {
        max_in_flight: 20_000,
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

/// Measures NATS and HTTP in turn, with one service behind both.
fn added(concurrency: usize, seconds: f64, rounds: usize) -> Result<(), Failure> {
    let node = Service::new("single")
        .bus(bus("embedded", "single"))
        .model("s", || Ok::<_, String>(Label))
        .start()?;
    let url = node.bus().url().to_owned();
    let gateway = listen("127.0.0.1:0".parse()?)?;
    gateway.serve(
        AppOptions::new("single").default_budget(BUDGET),
        bus(&url, "single"),
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut differences = Vec::new();
    for round in 1..=rounds {
        let over_nats = runtime.block_on(load::nats(&url, "single", concurrency, seconds))?;
        let over_http = runtime.block_on(load::http(gateway.address(), "single", concurrency, seconds))?;
        println!(
            "{{\"round\":{round},\"nats\":{},\"http\":{}}}",
            over_nats.json(),
            over_http.json()
        );
        differences.push(over_http.p50_ms - over_nats.p50_ms);
    }
    differences.sort_by(f64::total_cmp);
    let median = differences
        .get(differences.len() / 2)
        .copied()
        .unwrap_or_default();
    println!("{{\"name\":\"added\",\"concurrency\":{concurrency},\"added_p50_ms\":{median:.3}}}");
    gateway.stop();
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
        ["load", address, app, concurrency, seconds] => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let figures = load::http(address.parse()?, app, concurrency.parse()?, seconds.parse()?);
            let figures = runtime.block_on(figures)?;
            println!("{}", figures.json());
            Ok(())
        }
        ["added", concurrency, seconds, rounds] => {
            added(concurrency.parse()?, seconds.parse()?, rounds.parse()?)
        }
        ["idle", streams] => idle::measure(streams.parse()?),
        ["idle-service"] => idle::service(),
        ["idle-gateway", url] => gateway(url, "127.0.0.1:0".parse()?, &["idle"]),
        _ => Err("gateway/benches/http_cost/main.rs lists the commands at its head".into()),
    }
}
