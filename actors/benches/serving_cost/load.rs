//! Closed loops of requests, over NATS and over HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kaskade_actors::bus::Bus;
use kaskade_actors::{App, Client};
use kaskade_models::Tensor;
use kaskade_testkit::bench::{Figures, WIDTH, closed_loop, features};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Failure;
use crate::apps::bus;

const BUDGET: Duration = Duration::from_secs(10);

fn print(name: &str, concurrency: usize, figures: &Figures) {
    println!(
        "{{\"name\":\"{name}\",\"concurrency\":{concurrency},{}}}",
        figures.json()
    );
}

/// Returns what sends one request of the app and waits for its answer, on a connection of its own.
pub(crate) async fn asking(
    url: &str,
    app: &str,
) -> Result<impl Fn(usize, f32) -> Pending + Clone + Send + 'static, Failure> {
    let connected = Bus::connect(bus(url, app)).await?;
    let client = Client::new(&connected, App::new(app)?);
    Ok(move |_: usize, draw: f32| -> Pending {
        let client = client.clone();
        Box::pin(async move {
            let inputs = vec![Tensor::from_f32("x", &[WIDTH + 1], &features(draw))?];
            client.infer(inputs, BUDGET).await?;
            Ok(())
        })
    })
}

/// A request that is being answered.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

pub(crate) async fn nats(url: &str, app: &str, concurrency: usize, seconds: f64) -> Result<(), Failure> {
    let ask = asking(url, app).await?;
    print(app, concurrency, &closed_loop(concurrency, seconds, ask).await);
    Ok(())
}

/// Keep-alive HTTP/1.1 with one connection per loop; implements only what the peers need.
pub(crate) async fn http(address: &str, path: &str, concurrency: usize, seconds: f64) -> Result<(), Failure> {
    let mut connections = Vec::new();
    for _ in 0..concurrency {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connections.push(tokio::sync::Mutex::new(stream));
    }
    let connections = Arc::new(connections);
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n");
    let figures = closed_loop(concurrency, seconds, move |index, draw| {
        let (connections, head) = (Arc::clone(&connections), head.clone());
        async move {
            let mut stream = connections.get(index).ok_or("no such connection")?.lock().await;
            let body: Vec<u8> = features(draw)
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            let mut request = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
            request.extend(body);
            stream.write_all(&request).await?;
            read_response(&mut stream).await
        }
    })
    .await;
    print(path, concurrency, &figures);
    Ok(())
}

async fn read_response(stream: &mut tokio::net::TcpStream) -> Result<(), Failure> {
    let mut received = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err("the connection was closed".into());
        }
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err("not a 200".into());
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let whole = match length {
            Some(length) => received.len() >= end + 4 + length,
            None => received.ends_with(b"0\r\n\r\n"),
        };
        if whole {
            return Ok(());
        }
    }
}
