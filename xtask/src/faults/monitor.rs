//! The monitoring endpoint of a nats-server.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use kaskade_testkit::{NatsOptions, free_port};

/// Resources that a server holds for its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) subscriptions: u64,
    pub(super) consumers: u64,
    pub(super) streams: u64,
}

/// The monitoring port of a server.
pub(super) struct Monitor(u16);

impl Monitor {
    pub(super) fn new() -> Self {
        Self(free_port())
    }

    /// Options for a server with this port and JetStream.
    pub(super) fn options(&self) -> NatsOptions {
        NatsOptions {
            config: format!("http: \"127.0.0.1:{}\"", self.0),
            ..NatsOptions::jetstream()
        }
    }

    /// The resources of the server once they equal `expected`, or no longer change.
    pub(super) async fn settled(&self, expected: Option<Held>) -> anyhow::Result<Held> {
        let (mut last, mut alike) = (self.held()?, 0);
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.held()?;
            alike = if now == last { alike + 1 } else { 0 };
            last = now;
            if expected == Some(now) || (expected.is_none() && alike >= 5) {
                break;
            }
        }
        Ok(last)
    }

    /// The current resources of the server.
    pub(super) fn held(&self) -> anyhow::Result<Held> {
        Ok(Held {
            subscriptions: self.number("/subsz", "num_subscriptions")?,
            consumers: self.number("/jsz", "consumers")?,
            streams: self.number("/jsz", "streams")?,
        })
    }

    fn number(&self, path: &str, field: &str) -> anyhow::Result<u64> {
        let body: serde_json::Value = serde_json::from_str(&self.get(path)?)?;
        let found = body.get(field).and_then(serde_json::Value::as_u64);
        found.with_context(|| format!("{path} has no {field}"))
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.0))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
        Ok(body.to_owned())
    }
}
