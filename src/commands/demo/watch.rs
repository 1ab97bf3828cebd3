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
use kaskade_policy::linear_fit;
use kaskade_policy::plan::{LoadRange, Plan};
use kaskade_policy::profile::Profile;
use serde_json::json;

/// Highest load on a machine that is fast enough, requests per second.
const MAX_RATE: f64 = 220.0;

/// Share of the machine's capacity that the highest load uses.
const USED: f64 = 0.6;

/// Time of one wave of the load.
const WAVE: Duration = Duration::from_secs(40);

/// Longest sleep of a client.
const STEP: Duration = Duration::from_millis(100);

/// Clients, each with a connection of its own.
const CLIENTS: u32 = 8;

/// A load that goes up and down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wave {
    /// Lowest load, requests per second.
    low: f64,
    /// Highest load, requests per second.
    high: f64,
    /// Load at which the gear changes, requests per second.
    shift_at: f64,
}

impl Wave {
    /// Returns a load that the machine on which a family was profiled can answer, even if every request passes every variant.
    pub(super) fn of(profile: &Profile) -> Self {
        let variants = profile.variants.iter();
        let latencies = variants
            .filter_map(|variant| linear_fit::per_request(&variant.costs, 1, |cost| Some(cost.latency_s)));
        Self::within(latencies.sum())
    }

    /// Returns a load of which every request takes the machine this time, seconds.
    fn within(request_s: f64) -> Self {
        let high = if request_s > 0.0 {
            (USED / request_s).min(MAX_RATE)
        } else {
            MAX_RATE
        };
        Self {
            low: 0.1 * high,
            high,
            shift_at: 0.55 * high,
        }
    }

    /// Returns the load after that time, requests per second.
    fn load(&self, after: Duration) -> f64 {
        let turn = after.as_secs_f64() / WAVE.as_secs_f64() * std::f64::consts::TAU;
        self.low + (self.high - self.low) * (1.0 - turn.cos()) / 2.0
    }
}

/// Merges two plans of one app into two gears, which shift at that load, requests per second.
///
/// # Errors
/// When a plan has no gear, or the merged plan is not valid.
pub(super) fn gears(accurate: &Plan, fast: &Plan, wave: Wave) -> anyhow::Result<Plan> {
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
        to_qps: Some(wave.shift_at),
    };
    high.load = LoadRange {
        from_qps: wave.shift_at,
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
    wave: Wave,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let http = gateway::listen(app, address)?;
    let bus = BusConfig::new(app.name.as_str());
    let service = Service::builder(app)
        .family(family)
        .on_first_worker()
        .plan(plan)
        .bus(bus.clone())
        .start()?;
    http.watch(service.node().health().clone());
    let options = gateway::options(app).with_local_ingress(service.node().local_intake());
    http.serve(options, bus)?;
    let address = http.address();
    say(&format!(
        "open http://{address}/ to watch {:.0} to {:.0} requests per second, or run `kaskade top {} --nats {}`; Ctrl-C ends",
        wave.low,
        wave.high,
        app.name,
        service.url()
    ));
    let requests: Arc<[Vec<u8>]> = test.inputs.iter().map(|inputs| request(app, inputs)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (requests, stop) = (Arc::clone(&requests), Arc::clone(&stop));
            thread::spawn(move || ask(address, &requests, client as usize, (wave, begun), &stop))
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signal = shutdown::on_signals(app.ingress.drain_timeout.duration())?;
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
fn ask(
    address: SocketAddr,
    requests: &[Vec<u8>],
    client: usize,
    (wave, begun): (Wave, Instant),
    stop: &AtomicBool,
) {
    let mut connection = None;
    let mut due = Instant::now();
    for request in requests.iter().cycle().skip(client * 97) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        due += Duration::from_secs_f64(f64::from(CLIENTS) / wave.load(begun.elapsed()));
        // In steps, so that the end of the demo is noticed.
        while let Some(left) = due
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
        {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(left.min(STEP));
        }
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
    fn the_load_crosses_the_gears_and_never_exceeds_the_machine() {
        for (request_s, most) in [(0.0, MAX_RATE), (0.000_1, MAX_RATE), (0.04, USED / 0.04)] {
            let wave = Wave::within(request_s);
            assert!((wave.high - most).abs() < 1e-6, "{wave:?}");
            assert!(wave.load(Duration::ZERO) < wave.shift_at);
            assert!(wave.load(WAVE / 2) > wave.shift_at);
            assert!((wave.load(WAVE) - wave.low).abs() < 1e-6);
        }
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
        let wave = Wave {
            low: 1.0,
            high: 20.0,
            shift_at: 10.0,
        };
        let merged = gears(&plan(0.9), &plan(0.5), wave).unwrap();
        assert_eq!(merged.gears.len(), 2);
        assert_eq!(merged.placement.len(), 2);
        assert!((merged.gears[1].load.from_qps - wave.shift_at).abs() < f64::EPSILON);
    }
}
