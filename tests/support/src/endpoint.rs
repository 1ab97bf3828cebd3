//! An HTTP server in the place of an endpoint that behaves as told: it answers, hangs, refuses, breaks off.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Does {
    /// Answers with this status, these header lines and this body.
    Answer(u16, String, Vec<u8>),
    /// Answers with status 200 after a while.
    Slowly(Duration, String),
    /// Sends these events, one after the other, and then ends the stream or, if told so, the connection.
    Stream(Vec<String>, bool),
    /// Sends these pieces of an answer as they are, head included, one after the other, and then ends the connection, or leaves it
    /// open and silent.
    Raw(Vec<Vec<u8>>, Ends),
    /// Never answers.
    Hang,
}

/// How an answer of raw pieces ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The connection is closed.
    Closed,
    /// The connection stays open, and nothing more is sent.
    Silent,
}

/// Answers with status 200 and this body.
pub fn ok(body: &str) -> Does {
    Does::Answer(200, String::new(), body.as_bytes().to_vec())
}

type Script = dyn Fn(&Request, usize) -> Does + Send + Sync;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// The path.
    pub path: String,
    /// First line and headers.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

/// A running server, on a thread of its own.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it was asked, in order; without questions about models.
    pub requests: Arc<Mutex<Vec<Request>>>,
    /// Connections so far.
    pub connections: Arc<AtomicUsize>,
    /// Most requests that were under way at once.
    pub most: Arc<AtomicUsize>,
    /// Whether questions about models are answered with an error; they are no requests.
    pub down: Arc<AtomicBool>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does not wait: an answer may hang, and the caller may be in another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Server {
    /// Starts a server that does what `script` says for each request and its number from 0.
    ///
    /// # Panics
    /// When the system gives no thread or port.
    pub fn start(script: impl Fn(&Request, usize) -> Does + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        // Not awaited, since the caller may be in another runtime.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let state = State {
            script: Arc::new(script),
            requests: Arc::default(),
            running: Arc::default(),
            most: Arc::default(),
            down: Arc::default(),
        };
        let mut server = Self {
            address: listener.local_addr().expect("an address"),
            requests: Arc::clone(&state.requests),
            connections: Arc::default(),
            most: Arc::clone(&state.most),
            down: Arc::clone(&state.down),
            runtime: None,
        };
        let connections = Arc::clone(&server.connections);
        listener.set_nonblocking(true).expect("a listener");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, state.clone()));
            }
        });
        server.runtime = Some(runtime);
        server
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of requests so far.
    ///
    /// # Panics
    /// When a thread of the server has panicked.
    pub fn calls(&self) -> usize {
        lock(&self.requests).len()
    }
}

#[derive(Clone)]
struct State {
    script: Arc<Script>,
    requests: Arc<Mutex<Vec<Request>>>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    down: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked")
}

async fn serve(mut stream: TcpStream, state: State) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let Some(request) = read(&mut stream, &mut bytes).await? else {
            return Ok(());
        };
        if request.head.starts_with("GET ") && request.path.ends_with("/models") {
            let status = if state.down.load(Ordering::SeqCst) {
                500
            } else {
                200
            };
            answer(&mut stream, Does::Answer(status, String::new(), b"{}".to_vec())).await?;
            continue;
        }
        let number = {
            let mut requests = lock(&state.requests);
            requests.push(request.clone());
            requests.len() - 1
        };
        let running = state.running.fetch_add(1, Ordering::SeqCst) + 1;
        state.most.fetch_max(running, Ordering::SeqCst);
        let stays = answer(&mut stream, (state.script)(&request, number)).await;
        state.running.fetch_sub(1, Ordering::SeqCst);
        if !stays? {
            return Ok(());
        }
    }
}

/// Answers a request. Returns whether the connection stays.
async fn answer(stream: &mut TcpStream, does: Does) -> std::io::Result<bool> {
    match does {
        Does::Answer(status, headers, body) => {
            let head = format!(
                "HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n{headers}\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).await?;
            Ok(true)
        }
        Does::Slowly(pause, body) => {
            tokio::time::sleep(pause).await;
            Box::pin(answer(stream, ok(&body))).await
        }
        Does::Stream(events, whole) => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                .await?;
            for event in events {
                let chunk = format!("data: {event}\n\n");
                stream
                    .write_all(format!("{:x}\r\n{chunk}\r\n", chunk.len()).as_bytes())
                    .await?;
                stream.flush().await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if whole {
                stream.write_all(b"0\r\n\r\n").await?;
            }
            Ok(whole)
        }
        Does::Raw(pieces, ends) => {
            for piece in pieces {
                stream.write_all(&piece).await?;
                stream.flush().await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            match ends {
                Ends::Closed => Ok(false),
                Ends::Silent => std::future::pending().await,
            }
        }
        Does::Hang => std::future::pending().await,
    }
}

async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<Option<Request>> {
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_lowercase()
                        .strip_prefix("content-length: ")?
                        .trim()
                        .parse()
                        .ok()
                })
                .unwrap_or(0_usize);
            if bytes.len() >= end + 4 + length {
                let mut body: Vec<u8> = bytes.drain(..end + 4 + length).collect();
                body.drain(..end + 4);
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                return Ok(Some(Request { path, head, body }));
            }
        }
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(buffer.get(..read).unwrap_or_default());
    }
}
