//! The cost of a remote hop: an endpoint called directly, and the same endpoint as a remote variant behind ingress and broker.
//!
//! Both are measured in turn, in one run. Targets: at most 1 ms more in the median, at least 0.95 times the throughput.
//!
//! ```sh
//! cargo bench -p kaskade-app --bench remote_hop -- [--delay-ms 20] [--seconds 3] [--rounds 5] [--concurrency 32]
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::serving::{Client, Service};
use kaskade_models::Tensor;
use kaskade_testkit::endpoint::{Does, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A completion that is one of the labels.
const ANSWER: &str = r#"{"choices": [{"message": {"content": "yes"}, "logprobs": {"content": [{"token": "yes", "logprob": -0.1,
    "top_logprobs": [{"token": "yes", "logprob": -0.1}, {"token": "no", "logprob": -3.0}]}]}}], "usage": {"prompt_tokens": 3,
    "completion_tokens": 1}}"#;

/// What was measured in one stretch.
struct IntervalCost {
    latencies: Vec<Duration>,
    took: Duration,
}

impl IntervalCost {
    fn p50(&mut self) -> f64 {
        self.latencies.sort_unstable();
        self.latencies[self.latencies.len() / 2].as_secs_f64() * 1e3
    }

    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }
}

/// Runs as many clients at once, each of which repeats a request for that time.
async fn run<F>(clients: usize, time: Duration, client: impl Fn() -> F) -> IntervalCost
where
    F: Future<Output = Vec<Duration>> + Send + 'static,
{
    let begun = Instant::now();
    let clients: Vec<_> = (0..clients).map(|_| tokio::spawn(client())).collect();
    let mut latencies = Vec::new();
    for client in clients {
        latencies.extend(client.await.unwrap());
    }
    let took = begun.elapsed().max(time);
    IntervalCost { latencies, took }
}

/// One client of the endpoint itself, on a connection that it keeps.
async fn directly(address: std::net::SocketAddr, time: Duration) -> Vec<Duration> {
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": "is it so?"}], "max_tokens": 8}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: endpoint\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (begun, mut latencies, mut buffer) = (Instant::now(), Vec::new(), vec![0; 4096]);
    while begun.elapsed() < time {
        let sent = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut read = 0;
        while !buffer[..read].ends_with(ANSWER.as_bytes()) {
            read += stream.read(&mut buffer[read..]).await.unwrap();
        }
        latencies.push(sent.elapsed());
    }
    latencies
}

/// One client of the app.
async fn through(client: Client, time: Duration) -> Vec<Duration> {
    let (begun, mut latencies) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let inputs = vec![Tensor::from_texts("text", &["is it so?"]).unwrap()];
        let sent = Instant::now();
        client.infer(inputs).await.unwrap();
        latencies.push(sent.elapsed());
    }
    latencies
}

fn app(url: &str, concurrency: usize) -> App {
    let text = format!(
        r#"
        name = "hop"
        task = "classification"
        slo = {{ p95 = "1s" }}
        [[variants]]
        name = "remote"
        price = {{ request = 0.001 }}
        [variants.remote]
        kind = "openai"
        base_url = "{url}/v1"
        model = "m"
        labels = ["no", "yes"]
        concurrency = {concurrency}
        "#
    );
    App::parse(&text).unwrap()
}

/// The value of a flag, or a default.
fn flag(name: &str, fallback: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).map_or(fallback, |value| value.parse().unwrap())
}

fn main() -> ExitCode {
    let (delay, time) = (
        Duration::from_millis(flag("--delay-ms", 20)),
        Duration::from_secs(flag("--seconds", 3)),
    );
    let clients = flag("--concurrency", 32) as usize;
    let endpoint = Server::start(move |_, _| Does::Slowly(delay, ANSWER.to_owned()));
    let (address, app) = (endpoint.address, app(&endpoint.url(), clients));
    let bus = BusConfig::new("hop");
    let service = Service::builder(&app)
        .on_first_worker()
        .bus(bus.clone())
        .start()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (mut more, mut ratios) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let client = Client::connect_with(bus, "hop")
            .await
            .unwrap()
            .budget(Duration::from_secs(10));
        // Warms both up.
        run(clients, Duration::from_millis(500), || {
            directly(address, Duration::from_millis(500))
        })
        .await;
        run(clients, Duration::from_millis(500), || {
            through(client.clone(), Duration::from_millis(500))
        })
        .await;
        for round in 1..=flag("--rounds", 5) {
            let mut direct = run(clients, time, || directly(address, time)).await;
            let mut hop = run(clients, time, || through(client.clone(), time)).await;
            println!(
                "round {round}: direct p50 {:.3} ms, {:.0}/s; through Kaskade p50 {:.3} ms, {:.0}/s",
                direct.p50(),
                direct.rate(),
                hop.p50(),
                hop.rate()
            );
            more.push(hop.p50() - direct.p50());
            ratios.push(hop.rate() / direct.rate());
        }
    });
    service.stop();
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (more, ratio) = (median(&mut more), median(&mut ratios));
    let holds = more <= 1.0 && ratio >= 0.95;
    println!(
        "the hop adds {more:.3} ms in the median (target 1), throughput is {ratio:.3} of direct (target 0.95): {}",
        if holds { "held" } else { "missed" }
    );
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
