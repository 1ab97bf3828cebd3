//! Tests the embedded broker beside a nats-server: what both support is tested on both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers too"
)]

mod clients;
mod limits;
mod python;
mod transcripts;

use kaskade_broker::{Broker, BrokerConfig};
use kaskade_testkit::{NatsOptions, NatsServer};

/// Both engines, so that a test can run against each.
struct Engines {
    embedded: Broker,
    real: NatsServer,
}

impl Engines {
    fn start() -> Self {
        Self {
            // The default of a nats-server.
            embedded: embedded(BrokerConfig {
                max_payload: 1 << 20,
                ..BrokerConfig::default()
            }),
            real: NatsServer::start(NatsOptions::default()),
        }
    }

    /// Name and URL of each.
    fn each(&self) -> [(&'static str, String); 2] {
        [
            ("embedded", self.embedded.url()),
            ("nats-server", self.real.url()),
        ]
    }
}

fn embedded(config: BrokerConfig) -> Broker {
    Broker::start(config).unwrap()
}
