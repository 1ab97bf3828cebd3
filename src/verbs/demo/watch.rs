//! `kaskade demo --watch`: leaves the demo running behind the dashboard, with a load that changes.
//!
//! Two gears serve: the accuracy-preserving cascade at a low load, the energy-optimised one at a high load. The load goes
//! over HTTP, through the gateway, in waves.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::shutdown;
use kaskade_app::config::App;
use kaskade_app::data::Samples;
use kaskade_app::family::Family;
use kaskade_app::report::progress::say;
use kaskade_app::serving::{Service, gateway};
use kaskade_policy::plan::{LoadRange, Plan};
use serde_json::json;

/// Load at which the gear changes, requests per second.
const SHIFT_AT: f64 = 120.0;

/// Lowest and highest load, requests per second.
const LOAD: (f64, f64) = (20.0, 220.0);

/// Time of one wave of the load.
const WAVE: Duration = Duration::from_secs(40);

/// Clients, each with a connection of its own.
const CLIENTS: u32 = 8;

/// Merges two plans of one app into two gears, which shift at [`SHIFT_AT`].
///
/// # Errors
/// When a plan has no gear, or the merged plan is not valid.
pub(super) fn gears(accurate: &Plan, fast: &Plan) -> anyhow::Result<Plan> {
    let mut plan = accurate.clone();
    "demo --watch".clone_into(&mut plan.made_by);
    // A certificate holds for the gear that it was made for.
    plan.certificate = None;
    for replica in &fast.placement {
        if !plan.placement.contains(replica) {
            plan.placement.push(replica.clone());
        }
    }
    for variant in &fast.variants {
        if !plan.variants.iter().any(|known| known.name == variant.name) {
            plan.variants.push(variant.clone());
        }
    }
    let mut low = accurate.gears.first().context("the plan has no gear")?.clone();
    let mut high = fast.gears.first().context("the plan has no gear")?.clone();
    "accurate".clone_into(&mut low.name);
    "fast".clone_into(&mut high.name);
    low.load = LoadRange {
        from_qps: 0.0,
        to_qps: Some(SHIFT_AT),
    };
    high.load = LoadRange {
        from_qps: SHIFT_AT,
        to_qps: None,
    };
    plan.gears = vec![low, high];
    plan.validate()?;
    Ok(plan)
}

/// Serves until a signal.
///
/// # Errors
/// When the app or the gateway does not start.
pub(super) fn run(
    app: &App,
    family: Family,
    plan: Plan,
    test: &Samples,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let http = gateway::listen(app, address)?;
    let bus = BusConfig::new(app.name.as_str());
    let service = Service::builder(app)
        .family(family)
        .first_worker()
        .plan(plan)
        .bus(bus.clone())
        .start()?;
    http.watch(service.node().health().clone());
    http.serve(gateway::options(app), bus)?;
    let address = http.address();
    say(&format!("open http://{address}/ to watch; Ctrl-C ends"));
    let requests: Arc<[Vec<u8>]> = test.inputs.iter().map(|inputs| request(app, inputs)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (requests, stop) = (Arc::clone(&requests), Arc::clone(&stop));
            thread::spawn(move || ask(address, &requests, client as usize, begun, &stop))
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signal = shutdown::on_signals(app.ingress.drain.duration())?;
        signal.wait().await;
        Ok::<_, std::io::Error>(())
    })?;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let _ = client.join();
    }
    http.stop();
    service.stop();
    say("stopped");
    Ok(())
}

/// Returns the load after that time, requests per second.
fn load(after: Duration) -> f64 {
    let turn = after.as_secs_f64() / WAVE.as_secs_f64() * std::f64::consts::TAU;
    let (low, high) = LOAD;
    low + (high - low) * (1.0 - turn.cos()) / 2.0
}

/// Writes a request of the Open Inference Protocol with binary tensors.
fn request(app: &App, inputs: &[kaskade::Tensor]) -> Vec<u8> {
    let tensors = inputs.iter().map(|input| {
        json!({
            "name": input.name, "datatype": input.datatype.name(), "shape": input.shape,
            "parameters": {"binary_data_size": input.data.len()},
        })
    });
    let header = json!({"inputs": tensors.collect::<Vec<_>>()}).to_string();
    let length = header.len() + inputs.iter().map(|input| input.data.len()).sum::<usize>();
    let mut request = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nhost: demo\r\ncontent-length: {length}\r\ninference-header-content-length: {}\r\n\r\n{header}",
        app.name,
        header.len()
    )
    .into_bytes();
    for input in inputs {
        request.extend_from_slice(&input.data);
    }
    request
}

/// Sends requests over one connection, each when it is due.
fn ask(address: SocketAddr, requests: &[Vec<u8>], client: usize, begun: Instant, stop: &AtomicBool) {
    let mut connection = None;
    let mut due = Instant::now();
    for request in requests.iter().cycle().skip(client * 97) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        due += Duration::from_secs_f64(f64::from(CLIENTS) / load(begun.elapsed()));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // A late client does not catch up in a burst.
        due = due.max(Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(due));
        let answered = exchange(&mut connection, address, request);
        if answered.is_none() {
            connection = None;
        }
    }
}

/// Sends one request and reads its answer; `None` if the connection failed.
fn exchange(connection: &mut Option<TcpStream>, address: SocketAddr, request: &[u8]) -> Option<()> {
    if connection.is_none() {
        let made = TcpStream::connect(address).ok()?;
        made.set_nodelay(true).ok()?;
        *connection = Some(made);
    }
    let stream = connection.as_mut()?;
    stream.write_all(request).ok()?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        answer.extend_from_slice(buffer.get(..read)?);
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = std::str::from_utf8(answer.get(..end)?).ok()?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
        if answer.len() >= end + 4 + length {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_crosses_the_gears() {
        assert!(load(Duration::ZERO) < SHIFT_AT);
        assert!(load(WAVE / 2) > SHIFT_AT);
        assert!((load(WAVE) - LOAD.0).abs() < 1e-6);
    }

    #[test]
    fn two_plans_become_two_gears() {
        let plan = |below: f64| {
            let cascade = Plan::cascade("a")
                .stage("s", "small")
                .below(below)
                .then("l", "large");
            cascade.build().unwrap()
        };
        let merged = gears(&plan(0.9), &plan(0.5)).unwrap();
        assert_eq!(merged.gears.len(), 2);
        assert_eq!(merged.placement.len(), 2);
        assert!((merged.gears[1].load.from_qps - SHIFT_AT).abs() < f64::EPSILON);
    }
}
