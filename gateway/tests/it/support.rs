//! A gateway before a cascade of models in Rust, and a plain HTTP client.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use kaskade_actors::bus::{BusConfig, Embedded};
use kaskade_actors::{Node, Service};
use kaskade_broker::BrokerConfig;
use kaskade_gateway::{AppOptions, Gateway, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{TIMEOUT, wait_until};
use serde_json::Value;

/// Answers with its inputs. Its confidence is the input `sure`, if there is one.
pub(crate) struct Echo(pub(crate) f32);

impl Model for Echo {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let echo = |inputs: &Inputs| {
            let sure = inputs.iter().find(|input| input.name == "sure");
            let sure = sure
                .map(Tensor::to_f32)
                .transpose()?
                .map_or(self.0, |sure| sure[0].max(self.0));
            let mut outputs: Outputs = inputs
                .iter()
                .filter(|input| input.name != "sure")
                .cloned()
                .collect();
            if outputs.is_empty() {
                outputs.push(Tensor::from_f32("logits", &[2], &[sure, 1.0 - sure])?);
            }
            outputs.push(Tensor::from_f32("confidence", &[1], &[sure])?);
            Ok(outputs)
        };
        batch.iter().map(echo).collect()
    }
}

/// Waits before it answers.
pub(crate) struct Slow(pub(crate) Duration);

impl Model for Slow {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        std::thread::sleep(self.0);
        Echo(1.0).run(batch)
    }
}

/// A gateway and the node behind it.
pub(crate) struct Stand {
    pub(crate) gateway: Gateway,
    pub(crate) node: Node,
    _broker: Embedded,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// The confidence below which the small model of [`Stand::cascade`] defers.
pub(crate) const THRESHOLD: f64 = 0.75;

impl Stand {
    /// `small` answers what it is sure of, `large` the rest.
    pub(crate) fn cascade(limits: Limits) -> Self {
        let plan = Plan::cascade("app")
            .stage("first", "small")
            .below(THRESHOLD)
            .then("second", "large");
        let service = Service::new("app")
            .plan(plan.build().unwrap())
            .model("small", || Ok::<_, String>(Echo(0.5)))
            .model("large", || Ok::<_, String>(Echo(0.9)));
        Self::of(service, AppOptions::new("app").default_budget(TIMEOUT), limits)
    }

    /// The cascade behind a gateway that needs keys; the test looks at it with `key`.
    pub(crate) fn keyed(limits: Limits, key: &str) -> Self {
        Self::cascade(Limits::default()).behind(limits, key)
    }

    /// The same app behind another gateway, likewise.
    pub(crate) fn behind(self, limits: Limits, key: &str) -> Self {
        let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
        let bus = BusConfig::new("app").url(self.node.bus().url());
        let options = AppOptions::new("app").default_budget(TIMEOUT);
        gateway.serve(options, bus).unwrap();
        let stand = Self { gateway, ..self };
        let value = format!("Bearer {key}");
        wait_until("the gateway is ready and knows the plan", TIMEOUT, || {
            let path = request("GET", "/v2/models/app", &[("authorization", &value)], b"");
            exchange(stand.address(), &path).json()["versions"] != serde_json::json!([])
                && stand.get("/ready").status == 200
        });
        stand
    }

    pub(crate) fn of(service: Service, options: AppOptions, limits: Limits) -> Self {
        let broker = Embedded::start(BrokerConfig::default()).unwrap();
        let bus = BusConfig::new("app").embedded(&broker);
        let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
        let node = service.bus(bus.clone()).start().unwrap();
        gateway.watch(node.health().clone());
        gateway
            .serve(options.with_local_ingress(node.local_intake()), bus)
            .unwrap();
        let stand = Self {
            gateway,
            node,
            _broker: broker,
        };
        wait_until("the gateway is ready and knows the plan", TIMEOUT, || {
            stand.get("/v2/models/app").json()["versions"] != serde_json::json!([])
                && stand.get("/ready").status == 200
        });
        stand
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        exchange(self.address(), &request("GET", path, &[], b""))
    }

    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answer {
        exchange(self.address(), &request("POST", path, headers, body.as_ref()))
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n");
    for (name, value) in headers {
        write!(request, "{name}: {value}\r\n").unwrap();
    }
    write!(request, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
    [request.as_bytes(), body].concat()
}

pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let body = bytes[end + 4..].to_vec();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Answer {
        status: head[9..12].parse().unwrap(),
        body: if chunked { unchunked(&body) } else { body },
        head,
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
        if size == 0 {
            break;
        }
    }
    whole
}

/// The values of the events of a stream, without the final `[DONE]`, which must be there.
pub(crate) fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let mut lines: Vec<&str> = text.split("\n\n").filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.pop(), Some("data: [DONE]"), "{text}");
    let values = lines
        .into_iter()
        .map(|line| serde_json::from_str(line.split_once("data: ").unwrap().1).unwrap());
    values.collect()
}
