//! Closed loops of requests, over NATS and over HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use kaskade_actors::bus::Bus;
use kaskade_actors::{App, Client};
use kaskade_models::Tensor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{BUDGET, Failure, bus};

const WIDTH: usize = 64;

/// A seeded draw per request: xorshift.
fn draw(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32 / (1_u32 << 24) as f32
}

fn features(draw: f32) -> Vec<f32> {
    std::iter::once(draw)
        .chain((0..WIDTH).map(|i| i as f32 / WIDTH as f32))
        .collect()
}

/// Throughput and latencies of one run.
pub(crate) struct Figures {
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) errors: u64,
}

impl Figures {
    pub(crate) fn json(&self) -> String {
        format!(
            "{{\"per_s\":{:.0},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"errors\":{}}}",
            self.per_s, self.p50_ms, self.p99_ms, self.errors
        )
    }
}

/// Latencies in microseconds, and errors.
type Taken = Arc<Mutex<(Vec<u64>, u64)>>;

fn figures(taken: &Taken, seconds: f64) -> Figures {
    let mut all = taken.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.sort_unstable();
    let at = |share: f64| {
        let rank = ((all.0.len().saturating_sub(1)) as f64 * share).round() as usize;
        all.0.get(rank).copied().unwrap_or(0) as f64 / 1e3
    };
    Figures {
        per_s: all.0.len() as f64 / seconds,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        errors: all.1,
    }
}

fn add(taken: &Taken, latencies: Vec<u64>, errors: u64) {
    let mut all = taken.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.extend(latencies);
    all.1 += errors;
}

/// Requests over NATS, all on one connection, as the gateway's are.
pub(crate) async fn nats(url: &str, app: &str, concurrency: usize, seconds: f64) -> Result<Figures, Failure> {
    let connected = Bus::connect(bus(url, app)).await?;
    let client = Client::new(&connected, App::new(app)?);
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    let taken = Taken::default();
    let loops = (0..concurrency).map(|index| {
        let (client, taken) = (client.clone(), Arc::clone(&taken));
        async move {
            let (mut latencies, mut errors) = (Vec::new(), 0);
            let mut state = 0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1);
            while Instant::now() < stop {
                let begun = Instant::now();
                let inputs = Tensor::from_f32("x", &[WIDTH + 1], &features(draw(&mut state)));
                let answered = match inputs {
                    Ok(input) => client.infer(vec![input], BUDGET).await.is_ok(),
                    Err(_) => false,
                };
                if answered {
                    latencies.push(begun.elapsed().as_micros() as u64);
                } else {
                    errors += 1;
                }
            }
            add(&taken, latencies, errors);
        }
    });
    join_all(loops).await;
    Ok(figures(&taken, seconds))
}

/// Requests over HTTP/1.1 with binary tensors, one kept connection per loop.
pub(crate) async fn http(
    address: SocketAddr,
    app: &str,
    concurrency: usize,
    seconds: f64,
) -> Result<Figures, Failure> {
    let size = (WIDTH + 1) * size_of::<f32>();
    let json = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[{}],\"parameters\":{{\"binary_data_size\":{size}}}}}],\"parameters\":{{\"binary_data_output\":true}}}}",
        WIDTH + 1
    );
    let head = format!(
        "POST /v2/models/{app}/infer HTTP/1.1\r\nhost: {address}\r\ninference-header-content-length: {}\r\ncontent-length: {}\r\n\r\n{json}",
        json.len(),
        json.len() + size
    );
    let mut streams = Vec::new();
    for _ in 0..concurrency {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    let taken = Taken::default();
    let loops = streams.into_iter().enumerate().map(|(index, mut stream)| {
        let (head, taken) = (head.clone(), Arc::clone(&taken));
        async move {
            let (mut latencies, mut errors) = (Vec::new(), 0);
            let mut state = 0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1);
            let mut received = Vec::with_capacity(4_096);
            while Instant::now() < stop {
                let begun = Instant::now();
                let mut request = head.clone().into_bytes();
                request.extend(
                    features(draw(&mut state))
                        .iter()
                        .flat_map(|value| value.to_le_bytes()),
                );
                match exchange(&mut stream, &request, &mut received).await {
                    Ok(200) => latencies.push(begun.elapsed().as_micros() as u64),
                    Ok(_) => errors += 1,
                    Err(_) => {
                        errors += 1;
                        break;
                    }
                }
            }
            add(&taken, latencies, errors);
        }
    });
    join_all(loops).await;
    Ok(figures(&taken, seconds))
}

/// Sends a request and reads its whole answer. Returns the status.
async fn exchange(stream: &mut TcpStream, request: &[u8], received: &mut Vec<u8>) -> Result<u16, Failure> {
    stream.write_all(request).await?;
    received.clear();
    loop {
        if stream.read_buf(received).await? == 0 {
            return Err("the connection was closed".into());
        }
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.ok_or("an answer without a length")?.trim().parse()?;
        if received.len() >= end + 4 + length {
            let status = head.split(' ').nth(1).ok_or("no status")?;
            return Ok(status.parse()?);
        }
    }
}
