//! Service discovery: the ingress as a NATS service (ADR-32), for `nats micro ls`, `info` and `stats`.
//!
//! The client library's own service would also receive the endpoint's requests. The ingress receives requests itself,
//! each with a permit, so this module answers only the three discovery requests, with the library's types.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::service::{Info, PingResponse, Stats, endpoint, error};
use async_nats::{Message, Subject};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use crate::bus::{Bus, BusError};
use crate::error::Fault;
use crate::ids;
use crate::metrics::Metrics;
use crate::subjects::{self, App, INGRESS_GROUP};
use crate::supervision::Supervisor;

/// Name of the service's only endpoint.
pub(crate) const ENDPOINT: &str = "infer";

const PING: &str = "PING";
const INFO: &str = "INFO";
const STATS: &str = "STATS";

/// Counters of an endpoint since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EndpointStats {
    /// Requests answered, faults included.
    pub requests: u64,
    /// Requests answered with a fault.
    pub errors: u64,
    /// The newest fault.
    pub last_error: Option<Fault>,
    /// Summed time between the arrival of requests and their answers.
    pub processing: Duration,
    /// Further statistics as JSON.
    pub data: Option<serde_json::Value>,
}

/// Source of an endpoint's counters.
pub(crate) trait ServiceStats: Send + Sync {
    /// Returns the current counters.
    fn stats(&self) -> EndpointStats;
}

impl<F: Fn() -> EndpointStats + Send + Sync> ServiceStats for F {
    fn stats(&self) -> EndpointStats {
        self()
    }
}

/// Statistics of an ingress in `nats micro stats`.
impl ServiceStats for Metrics {
    fn stats(&self) -> EndpointStats {
        let snapshot = self.read();
        let errors = snapshot.faults.values().sum();
        EndpointStats {
            requests: snapshot.answered + errors,
            errors,
            last_error: self.last_fault().map(|fault| Fault::clone(&fault)),
            processing: Duration::from_micros(self.processing_us()),
            data: serde_json::to_value(&snapshot).ok(),
        }
    }
}

/// Returns a unique id of an ingress instance: valid as a subject token and as an ADR-32 id.
pub(crate) fn instance_id() -> String {
    ids::unique_token()
}

/// An announced service. Dropping the handle has no effect: the service stays announced until it is withdrawn or its
/// bus closes.
#[derive(Debug)]
pub(crate) struct Announcement {
    withdraw: watch::Sender<bool>,
}

impl Announcement {
    /// Stops answering discovery requests, so that the instance is no longer listed before it stops.
    pub(crate) fn withdraw(&self) {
        self.withdraw.send_replace(true);
    }
}

/// Announces an ingress of `app`, and answers discovery requests until it is withdrawn or the bus closes. A panic ends
/// the node of `supervisor`.
///
/// # Errors
/// [`BusError::Failed`] if a subscription fails, [`BusError::Subject`] if `id` is not a valid token.
pub(crate) async fn announce(
    bus: &Bus,
    app: &App,
    id: &str,
    stats: Arc<dyn ServiceStats>,
    supervisor: &Supervisor,
) -> Result<Announcement, BusError> {
    let mut questions = Vec::new();
    for verb in [PING, INFO, STATS] {
        for subject in subjects::discovery(verb, app.name(), id)? {
            questions.push(bus.subscribe(subject, None).await?);
        }
    }
    let service = Service {
        app: app.clone(),
        id: id.to_owned(),
        started: OffsetDateTime::now_utc(),
        stats,
    };
    let (withdraw, withdrawn) = watch::channel(false);
    let serving = serve(bus.clone(), service, stream::select_all(questions), withdrawn);
    let guard = supervisor.panic_guard("answers to discovery");
    tokio::spawn(async move {
        let _guard = guard;
        serving.await;
    });
    Ok(Announcement { withdraw })
}

async fn serve(
    bus: Bus,
    service: Service,
    mut questions: stream::SelectAll<async_nats::Subscriber>,
    mut withdrawn: watch::Receiver<bool>,
) {
    let withdrawn = async move {
        // If the handle is dropped, the service stays announced.
        if withdrawn.wait_for(|withdrawn| *withdrawn).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(withdrawn);
    loop {
        let question = tokio::select! {
            question = questions.next() => question,
            () = &mut withdrawn => None,
        };
        let Some(Message { subject, reply, .. }) = question else {
            return;
        };
        if let Some(reply) = reply {
            answer(&bus, &service, &subject, reply).await;
        }
    }
}

async fn answer(bus: &Bus, service: &Service, question: &Subject, reply: Subject) {
    let written = match subjects::discovery_verb(question) {
        PING => json(&service.ping()),
        INFO => json(&service.info()),
        STATS => json(&service.stats()),
        _ => return,
    };
    let answered = match written {
        Ok(payload) => bus
            .publish(reply, None, None, payload)
            .await
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = answered {
        tracing::warn!(reason, "answering a discovery request failed");
    }
}

fn json(answer: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(answer).map(Bytes::from)
}

struct Service {
    app: App,
    id: String,
    started: OffsetDateTime,
    stats: Arc<dyn ServiceStats>,
}

impl Service {
    fn ping(&self) -> PingResponse {
        PingResponse {
            kind: "io.nats.micro.v1.ping_response".to_owned(),
            name: self.app.name().to_owned(),
            id: self.id.clone(),
            version: version(),
            metadata: self.metadata(),
        }
    }

    fn info(&self) -> Info {
        Info {
            kind: "io.nats.micro.v1.info_response".to_owned(),
            name: self.app.name().to_owned(),
            id: self.id.clone(),
            description: format!("Kaskade app {}: a family of models served as one", self.app),
            version: version(),
            metadata: self.metadata(),
            endpoints: vec![endpoint::Info {
                name: ENDPOINT.to_owned(),
                subject: self.app.infer().into_string(),
                queue_group: INGRESS_GROUP.to_owned(),
                metadata: HashMap::from([(
                    "content-type".to_owned(),
                    "application/msgpack, application/json".to_owned(),
                )]),
            }],
        }
    }

    fn stats(&self) -> Stats {
        let stats = self.stats.stats();
        let answered = u32::try_from(stats.requests).unwrap_or(u32::MAX);
        Stats {
            kind: "io.nats.micro.v1.stats_response".to_owned(),
            name: self.app.name().to_owned(),
            id: self.id.clone(),
            version: version(),
            started: self.started,
            endpoints: vec![endpoint::Stats {
                name: ENDPOINT.to_owned(),
                subject: self.app.infer().into_string(),
                queue_group: INGRESS_GROUP.to_owned(),
                requests: usize::try_from(stats.requests).unwrap_or(usize::MAX),
                errors: usize::try_from(stats.errors).unwrap_or(usize::MAX),
                processing_time: stats.processing,
                average_processing_time: stats.processing.checked_div(answered).unwrap_or_default(),
                last_error: stats.last_error.map(|fault| error::Error {
                    status: fault.to_string(),
                    code: fault.code.status().into(),
                }),
                data: stats.data,
            }],
        }
    }

    fn metadata(&self) -> HashMap<String, String> {
        HashMap::from([("kaskade.app".to_owned(), self.app.name().to_owned())])
    }
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use async_nats::service::ServiceExt;
    use kaskade_testkit::{NatsOptions, NatsServer, eventually};
    use serde_json::Value;

    use super::*;
    use crate::bus::{BusConfig, Embedded};
    use crate::error::Code;
    use kaskade_broker::BrokerConfig;

    const TIMEOUT: Duration = Duration::from_secs(20);

    async fn ask(bus: &Bus, subject: String) -> Option<Value> {
        let answer = bus.client().request(subject, Bytes::new()).await.ok()?;
        Some(serde_json::from_slice(&answer.payload).unwrap())
    }

    fn counts() -> EndpointStats {
        EndpointStats {
            requests: 8,
            errors: 2,
            last_error: Some(Fault::new(Code::Overloaded, "full")),
            processing: Duration::from_millis(4),
            data: Some(serde_json::json!({"in_flight": 3})),
        }
    }

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    /// Sends every discovery request to this service and to one of the client library, and compares the shapes of the
    /// answers.
    async fn check(config: BusConfig) {
        let app = App::new("digits").unwrap();
        let id = instance_id();
        let ours = Bus::connect(config.clone()).await.unwrap();
        let announcement = announce(&ours, &app, &id, Arc::new(counts), &Supervisor::default())
            .await
            .unwrap();
        let theirs = Bus::connect(config.clone()).await.unwrap();
        let library = theirs
            .client()
            .service_builder()
            .start("library", "1.0.0")
            .await
            .unwrap();
        let _endpoint = library.endpoint("infer").await.unwrap();
        ours.barrier().await.unwrap();
        theirs.barrier().await.unwrap();
        let client = Bus::connect(config).await.unwrap();

        for (verb, kind) in [("PING", "ping"), ("INFO", "info"), ("STATS", "stats")] {
            let by_id = ask(&client, format!("$SRV.{verb}.digits.{id}")).await.unwrap();
            let by_name = ask(&client, format!("$SRV.{verb}.digits")).await.unwrap();
            assert_eq!(by_id, by_name);
            assert_eq!(by_id["type"], format!("io.nats.micro.v1.{kind}_response"));
            assert_eq!(
                (&by_id["name"], &by_id["id"]),
                (&Value::from("digits"), &Value::from(id.clone()))
            );
            let reference = ask(&client, format!("$SRV.{verb}.library")).await.unwrap();
            assert!(
                keys(&by_id).is_superset(&keys(&reference)),
                "{by_id} lacks fields of {reference}"
            );
            if verb != "PING" {
                let (ours, library) = (&by_id["endpoints"][0], &reference["endpoints"][0]);
                assert!(
                    keys(ours).is_superset(&keys(library)),
                    "{ours} lacks fields of {library}"
                );
            }
        }
        let info: Info =
            serde_json::from_value(ask(&client, "$SRV.INFO.digits".into()).await.unwrap()).unwrap();
        assert_eq!(info.endpoints[0].subject, "kaskade.digits.infer");
        assert_eq!(info.endpoints[0].queue_group, "q");
        let stats = ask(&client, "$SRV.STATS.digits".into()).await.unwrap();
        let endpoint = &stats["endpoints"][0];
        assert_eq!(
            (&endpoint["num_requests"], &endpoint["num_errors"]),
            (&8.into(), &2.into())
        );
        assert_eq!(endpoint["last_error"], "429:KSK0006: full");
        assert_eq!(endpoint["processing_time"], 4_000_000);
        assert_eq!(endpoint["average_processing_time"], 500_000);
        assert_eq!(endpoint["data"]["in_flight"], 3);
        assert!(serde_json::from_value::<Stats>(stats).is_ok());

        // Every instance answers a request to all of them.
        let mut pongs = client.subscribe("pongs".into(), None).await.unwrap();
        client
            .publish("$SRV.PING".into(), Some("pongs".into()), None, Bytes::new())
            .await
            .unwrap();
        let mut names = BTreeSet::new();
        while names.len() < 2 {
            let pong: PingResponse = serde_json::from_slice(&pongs.next().await.unwrap().payload).unwrap();
            names.insert(pong.name);
        }
        assert_eq!(names, BTreeSet::from(["digits".to_owned(), "library".to_owned()]));

        announcement.withdraw();
        eventually("the service is withdrawn", TIMEOUT, async || {
            ask(&client, "$SRV.PING.digits".into()).await.is_none()
        })
        .await;
    }

    #[tokio::test]
    async fn discovery_is_answered_on_the_embedded_broker() {
        let embedded = Embedded::start(BrokerConfig::default()).unwrap();
        check(BusConfig::new("digits").embedded(&embedded)).await;
    }

    #[tokio::test]
    async fn discovery_is_answered_on_a_nats_server() {
        let server = NatsServer::start(NatsOptions::default());
        let config = BusConfig {
            timeout: TIMEOUT,
            ..BusConfig::new("digits").url(server.url())
        };
        check(config).await;
    }

    #[tokio::test]
    async fn an_announcement_that_is_dropped_stays() {
        let embedded = Embedded::start(BrokerConfig::default()).unwrap();
        let bus = Bus::connect(BusConfig::new("digits").embedded(&embedded))
            .await
            .unwrap();
        let app = App::new("digits").unwrap();
        let supervisor = Supervisor::default();
        drop(
            announce(&bus, &app, "one", Arc::new(counts), &supervisor)
                .await
                .unwrap(),
        );
        for _ in 0..3 {
            assert!(ask(&bus, "$SRV.PING.digits.one".into()).await.is_some());
        }
        let refused = announce(&bus, &app, "no token", Arc::new(counts), &supervisor).await;
        assert!(refused.is_err());
    }
}
