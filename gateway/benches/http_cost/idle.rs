//! Memory of a gateway with many idle streams. Service, gateway and clients are processes of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::{Node, Service};
use kaskade_gateway::AppOptions;
use kaskade_models::{Continuous, Inputs, Model, ModelError, Outputs, Progress, Tensor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::processes::Running;
use crate::{BUDGET, Failure, bus, listen, wait_for_a_line};

/// Says one piece and then nothing, until it is cancelled. Tells how many requests it has.
#[derive(Default)]
struct Silent {
    fresh: Vec<u64>,
    has: Arc<AtomicUsize>,
}

impl Model for Silent {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let only_streamed = || {
            Err(ModelError::Failed {
                reason: "it is continuous".to_owned(),
            })
        };
        batch.iter().map(|_| only_streamed()).collect()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

impl Continuous for Silent {
    fn submit(&mut self, number: u64, _: &Inputs) -> Result<(), ModelError> {
        self.fresh.push(number);
        self.has.fetch_add(1, SeqCst);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.fresh.retain(|fresh| *fresh != number);
        self.has.fetch_sub(1, SeqCst);
    }

    fn step(&mut self) -> Vec<Progress> {
        std::thread::sleep(Duration::from_millis(5));
        let piece = |number| Progress {
            number,
            pieces: 1,
            part: Tensor::from_texts("text", &["a"]).into_iter().collect(),
            end: None,
        };
        self.fresh.drain(..).map(piece).collect()
    }
}

/// Starts a service of the silent model. Returns it and the number of requests that the model has.
fn silent() -> Result<(Node, Arc<AtomicUsize>), Failure> {
    let ingress = IngressConfig {
        max_in_flight: 100_000,
        max_budget: Duration::from_hours(1),
        ..IngressConfig::default()
    };
    let has = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&has);
    let node = Service::new("idle")
        .bus(bus("embedded", "idle"))
        .ingress(ingress)
        .worker(WorkerConfig {
            name: "local".to_owned(),
            queue_capacity: 100_000,
            ..WorkerConfig::default()
        })
        .model("silent", move || {
            Ok::<_, String>(Silent {
                fresh: Vec::new(),
                has: Arc::clone(&counter),
            })
        })
        .start()?;
    Ok((node, has))
}

/// Serves the silent model until a line is read.
pub(crate) fn service() -> Result<(), Failure> {
    let (node, _) = silent()?;
    println!("{}", node.bus().url());
    wait_for_a_line()?;
    node.stop();
    Ok(())
}

/// Opens the streams, reads the first piece of each, and keeps them until it is killed.
pub(crate) fn hold(address: &str, streams: usize) -> Result<(), Failure> {
    let _open = open(address, streams)?;
    println!("open");
    wait_for_a_line()
}

/// Kills clients with that many streams, with the gateway beside the ingress and apart from it, and prints how long requests
/// were left running.
pub(crate) fn vanish(streams: usize, rounds: usize) -> Result<(), Failure> {
    let (node, has) = silent()?;
    for (name, local) in [("beside", node.local_intake()), ("apart", None)] {
        let gateway = listen("127.0.0.1:0".parse()?)?;
        let options = AppOptions::new("idle").default_budget(BUDGET);
        gateway.serve(options.with_local_ingress(local), bus(node.bus().url(), "idle"))?;
        let mut taken = Vec::new();
        for _ in 0..rounds {
            let mut clients =
                Running::start(&["hold", &gateway.address().to_string(), &streams.to_string()])?;
            clients.line()?;
            let before = has.load(SeqCst);
            let begun = Instant::now();
            clients.kill();
            while has.load(SeqCst) > 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            taken.push(begun.elapsed().as_secs_f64() * 1e3);
            if before != streams {
                return Err(format!("{before} requests were running").into());
            }
        }
        taken.sort_by(f64::total_cmp);
        println!("{{\"name\":\"vanish\",\"gateway\":\"{name}\",\"streams\":{streams},\"ms\":{taken:.1?}}}");
        gateway.stop();
    }
    node.stop();
    Ok(())
}

/// Resident memory of a process, MiB.
fn resident(pid: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1_024.0)
}

/// Opens streams and waits for the first piece of each.
fn open(address: &str, streams: usize) -> Result<(Runtime, Vec<TcpStream>), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let body = r#"{"prompt":"x","stream":true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: here\r\nx-kaskade-budget-ms: 3000000\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let open = runtime.block_on(async {
        let mut open = Vec::with_capacity(streams);
        for _ in 0..streams {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(request.as_bytes()).await?;
            open.push(stream);
        }
        for stream in &mut open {
            let mut head = [0; 12];
            stream.read_exact(&mut head).await?;
            if &head != b"HTTP/1.1 200" {
                return Err(format!("an answer began with {:?}", String::from_utf8_lossy(&head)).into());
            }
        }
        Ok::<_, Failure>(open)
    })?;
    Ok((runtime, open))
}

/// Opens the streams, waits for the first piece of each, and prints the memory of the gateway.
pub(crate) fn measure(streams: usize) -> Result<(), Failure> {
    let mut service = Running::start(&["idle-service"])?;
    let url = service.line()?;
    let mut gateway = Running::start(&["idle-gateway", &url])?;
    let (address, pid) = gateway.ready()?;
    let before = resident(pid)?;
    let (_runtime, open) = open(&address, streams)?;
    let after = resident(pid)?;
    println!(
        "{{\"name\":\"idle\",\"streams\":{},\"rss_mib\":{after:.1},\"empty_mib\":{before:.1},\"per_stream_kib\":{:.1}}}",
        open.len(),
        (after - before) * 1_024.0 / streams.max(1) as f64
    );
    Ok(())
}
