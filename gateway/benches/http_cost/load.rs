//! Closed loops of requests, over NATS and over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use kaskade_actors::bus::Bus;
use kaskade_actors::{App, Client};
use kaskade_models::Tensor;
use kaskade_testkit::bench::{Figures, WIDTH, closed_loop, features};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::{BUDGET, Failure, bus};

/// Requests over NATS, all on one connection, as the gateway's are.
pub(crate) async fn nats(url: &str, app: &str, concurrency: usize, seconds: f64) -> Result<Figures, Failure> {
    let connected = Bus::connect(bus(url, app)).await?;
    let client = Client::new(&connected, App::new(app)?);
    let ask = move |_: usize, draw: f32| {
        let client = client.clone();
        async move {
            let input = Tensor::from_f32("x", &[WIDTH + 1], &features(draw))?;
            client.infer(vec![input], BUDGET).await?;
            Ok::<(), Failure>(())
        }
    };
    Ok(closed_loop(concurrency, seconds, ask).await)
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
    let mut connections = Vec::new();
    for _ in 0..concurrency {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connections.push(Mutex::new((stream, Vec::with_capacity(4_096))));
    }
    let connections = Arc::new(connections);
    let ask = move |index: usize, draw: f32| {
        let (connections, head) = (Arc::clone(&connections), head.clone());
        async move {
            let connection = connections.get(index).ok_or("no such connection")?;
            let (stream, received) = &mut *connection.lock().await;
            let mut request = head.into_bytes();
            request.extend(features(draw).iter().flat_map(|value| value.to_le_bytes()));
            match exchange(stream, &request, received).await? {
                200 => Ok::<(), Failure>(()),
                status => Err(format!("status {status}").into()),
            }
        }
    };
    Ok(closed_loop(concurrency, seconds, ask).await)
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
