//! Memory of a gateway with many idle streams. Service, gateway and clients are processes of their own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_models::{Continuous, Inputs, Model, ModelError, Outputs, Progress, Tensor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Failure, bus, wait_for_a_line};

/// Says one piece and then nothing, until it is cancelled.
#[derive(Default)]
struct Silent {
    fresh: Vec<u64>,
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
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.fresh.retain(|fresh| *fresh != number);
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

/// Serves the silent model until a line is read.
pub(crate) fn service() -> Result<(), Failure> {
    let ingress = IngressConfig {
        max_in_flight: 100_000,
        max_budget: Duration::from_hours(1),
        ..IngressConfig::default()
    };
    let node = Service::new("idle")
        .bus(bus("embedded", "idle"))
        .ingress(ingress)
        .worker(WorkerConfig {
            name: "local".to_owned(),
            queue_capacity: 100_000,
        })
        .model("silent", || Ok::<_, String>(Silent::default()))
        .start()?;
    println!("{}", node.bus().url());
    wait_for_a_line()?;
    node.stop();
    Ok(())
}

/// A process that ends with this value.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(words: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self(child, lines))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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

/// Opens the streams, waits for the first piece of each, and prints the memory of the gateway.
pub(crate) fn measure(streams: usize) -> Result<(), Failure> {
    let mut service = Running::start(&["idle-service"])?;
    let url = service.line()?;
    let mut gateway = Running::start(&["idle-gateway", &url])?;
    let ready = gateway.line()?;
    let words: Vec<&str> = ready.split(' ').collect();
    let ["ready", address, "pid", pid] = words.as_slice() else {
        return Err(format!("the gateway said {ready:?}").into());
    };
    let (address, pid) = (address.trim_start_matches("http://").to_owned(), pid.parse()?);
    let before = resident(pid)?;
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
    let after = resident(pid)?;
    println!(
        "{{\"name\":\"idle\",\"streams\":{},\"rss_mib\":{after:.1},\"empty_mib\":{before:.1},\"per_stream_kib\":{:.1}}}",
        open.len(),
        (after - before) * 1_024.0 / streams.max(1) as f64
    );
    Ok(())
}
