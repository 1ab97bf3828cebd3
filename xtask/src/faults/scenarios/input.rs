//! Invalid, oversized and duplicated messages, and messages of other versions.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use kaskade::{Inputs, Tensor};
use kaskade_actors::bus::Bus;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{InferReply, InferRequest, Message as _};
use kaskade_actors::{App, Code};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::APP;
use crate::faults::oracle::{Load, undisturbed};
use crate::faults::rig::{Rig, Start};
use crate::faults::verdict::Verdict;
use crate::node::{inputs, what};

scenarios! {
    "no-numbers" "Models return NaN or no output for some requests; each becomes a typed error, and none an answer." no_numbers;
    "malformed" "Undecodable bodies, wrong shapes, unknown inputs, absurd lengths, empty bodies: each is refused with the code for it." malformed;
    "oversize" "A client sends a message over max_payload; the server closes its connection, and no other client is affected." oversize;
    "delivered-twice" "Every message to a stage and every result is delivered twice; each request gets one reply." twice;
    "foreign-outputs" "A foreign program joins a stage and answers NaN with confidence 0.99, or a huge shape without data; each becomes a typed error, and none an answer." foreign;
    "mixed-versions" "A worker and a client of another version send unknown fields and leave out optional ones; both are served." mixed;
}

async fn no_numbers() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let load = Load {
        asks: |number| match number % 10 {
            3 => inputs(what::NAN, 9.0),
            6 => inputs(what::EMPTY, 9.0),
            _ => inputs(1.0, 9.0),
        },
        ..Load::at(&rig.nats.url())
    };
    let tally = undisturbed(&load).await?;
    let refused =
        (0..tally.requests()).filter(|number| tally.fault_of(*number) == Some(Code::BadOutput.id()));
    let refused = refused.count();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0009"])
        .demand(refused == tally.requests() / 5, "no invalid output is an answer"))
}

async fn malformed() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let bus = rig.bus().await?;
    let load = Load::at(&rig.nats.url());
    let (tally, wrong) = tokio::join!(undisturbed(&load), ask_wrongly(&bus));
    let (tally, wrong) = (tally?, wrong?);
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            wrong.is_empty(),
            &format!("each is refused with the code for it ({})", wrong.join(", ")),
        )
        .note(format!("{} invalid messages, 20 times each", WRONG.len())))
}

/// An invalid message: name, body, and the code with which it must be refused.
type Wrong = (&'static str, fn() -> anyhow::Result<Bytes>, Code);

const WRONG: [Wrong; 6] = [
    (
        "garbage",
        || Ok(Bytes::from_static(b"\xc1\xff garbage")),
        Code::Malformed,
    ),
    ("nothing", || Ok(Bytes::new()), Code::Malformed),
    (
        "a length beyond the message",
        || Ok(Bytes::from_static(b"\xdd\xff\xff\xff\xff")),
        Code::Malformed,
    ),
    ("no inputs", || asked(Vec::new()), Code::InvalidInput),
    (
        "another shape",
        || asked(vec![Tensor::from_f32("x", &[3], &[0.0; 3])?]),
        Code::InvalidInput,
    ),
    (
        "another name",
        || asked(vec![Tensor::from_f32("y", &[2], &[0.0; 2])?]),
        Code::InvalidInput,
    ),
];

fn asked(inputs: Inputs) -> anyhow::Result<Bytes> {
    let request = InferRequest {
        inputs,
        ..InferRequest::default()
    };
    Ok(request.encode()?)
}

async fn ask_wrongly(bus: &Bus) -> anyhow::Result<Vec<String>> {
    let subject = App::new(APP)?.infer();
    let mut wrong = Vec::new();
    for _ in 0..20 {
        for (name, body, code) in WRONG {
            let reply = bus.client().request(subject.clone(), body()?).await?;
            let got = headers::fault(reply.headers.as_ref()).map(|fault| fault.code);
            if got != Some(code) {
                wrong.push(format!("{name}: {got:?}"));
            }
        }
    }
    Ok(wrong)
}

async fn oversize() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let mut rude = TcpStream::connect((Ipv4Addr::LOCALHOST, rig.nats.port()))?;
    rude.set_read_timeout(Some(Duration::from_secs(5)))?;
    let size = 2 << 20;
    rude.write_all(
        format!("CONNECT {{\"verbose\":false}}\r\nPUB kaskade.{APP}.infer {size}\r\n").as_bytes(),
    )?;
    let tally = undisturbed(&Load::at(&rig.nats.url())).await?;
    let mut said = String::new();
    let _ = rude.read_to_string(&mut said);
    let bus = rig.bus().await?;
    let client = kaskade_actors::Client::new(&bus, App::new(APP)?);
    let large = Tensor::from_f32("x", &[1 << 19], &vec![0.0; 1 << 19])?;
    let refused = client.infer(vec![large], Duration::from_secs(5)).await;
    let code = refused.err().map(|fault| fault.code);
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            said.contains("Maximum Payload Violation"),
            "the server refuses it",
        )
        .demand(
            code == Some(Code::TooLarge),
            "the client refuses it before sending",
        ))
}

async fn twice() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let bus = rig.bus().await?;
    let echoes = ["stage.*", "replica.*", "done.*.*.*.*"].map(|tail| format!("kaskade.{APP}.{tail}"));
    for subject in echoes {
        let mut heard = bus.subscribe(subject.into(), None).await?;
        let bus = bus.clone();
        tokio::spawn(async move {
            let mut seen = std::collections::HashSet::new();
            while let Some(message) = heard.next().await {
                // Its own echo is not echoed again.
                if seen.insert((message.subject.to_string(), message.payload.clone())) {
                    let _ = bus
                        .publish(message.subject, message.reply, message.headers, message.payload)
                        .await;
                }
            }
        });
    }
    bus.barrier().await?;
    let load = Load {
        asks: |number| inputs((number % 4) as f32, if number % 2 == 0 { 9.0 } else { 0.1 }),
        ..Load::at(&rig.nats.url())
    };
    let tally = undisturbed(&load).await?;
    Ok(Verdict::from_tally(&tally).without_faults())
}

async fn foreign() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let bus = rig.bus().await?;
    // Joins the small stage's queue group, so that it gets some of all requests.
    let mut asked = bus
        .subscribe(App::new(APP)?.stage("small")?, Some("q".to_owned()))
        .await?;
    bus.barrier().await?;
    let answers = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (counted, speaking) = (answers.clone(), bus.clone());
    tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let not_a_number = Tensor::from_f32("logits", &[1], &[f32::NAN]);
            let output = not_a_number.map(|not_a_number| match number % 2 {
                0 => not_a_number,
                _ => Tensor {
                    shape: vec![1 << 40, 0],
                    data: Bytes::new(),
                    ..not_a_number
                },
            });
            // A result needs no more fields than a reply has.
            let answer = InferReply {
                outputs: output.into_iter().collect(),
                confidence: Some(0.99),
                ..InferReply::default()
            };
            let (Some(reply), Ok(body)) = (message.reply, answer.encode()) else {
                continue;
            };
            let _ = speaking.publish(reply, None, None, body).await;
        }
    });
    let tally = undisturbed(&Load::at(&rig.nats.url())).await?;
    let foreign = answers.load(std::sync::atomic::Ordering::Relaxed);
    let refused =
        (0..tally.requests()).filter(|number| tally.fault_of(*number) == Some(Code::BadOutput.id()));
    let refused = refused.count();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0009"])
        .demand(foreign > 0, "the foreign program gets requests")
        .demand(refused == foreign, "each of its answers is refused, and no other"))
}

/// The answer of a worker of a later version, with fields that this version does not know.
#[derive(serde::Serialize)]
struct Later {
    outputs: Vec<serde_json::Value>,
    confidence: f64,
    invented: std::collections::BTreeMap<String, Vec<u8>>,
}

async fn mixed() -> anyhow::Result<Verdict> {
    let plan = crate::deployed_plan::plan(&[("w1", &["large"]), ("w2", &["small", "large"])]);
    let rig = Rig::with(NatsOptions::jetstream(), &plan)?;
    let _first = rig.start(&Start::worker("w1"))?;
    let _second = rig.start(&Start::worker("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let bus = rig.bus().await?;
    // Joins the small stage's queue group, so that it gets about half of all requests.
    let mut asked = bus
        .subscribe(App::new(APP)?.stage("small")?, Some("q".to_owned()))
        .await?;
    bus.barrier().await?;
    let answers = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (counted, speaking) = (answers.clone(), bus.clone());
    tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let answer = Later {
                outputs: vec![serde_json::json!({
                    "name": "logits", "shape": [4], "datatype": "FP32", "data": [0.0, 9.0, 0.0, 0.0], "unit": "nats"
                })],
                confidence: 0.99,
                invented: [("since".to_owned(), vec![2, 0])].into(),
            };
            let (Some(reply), Ok(body)) = (message.reply, rmp_serde::to_vec_named(&answer)) else {
                continue;
            };
            let _ = speaking.publish(reply, None, None, body.into()).await;
        }
    });
    let tally = undisturbed(&Load::at(&rig.nats.url())).await?;
    let foreign = answers.load(std::sync::atomic::Ordering::Relaxed);
    let later = later_client(&bus).await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(foreign > 50, "the other version gets requests")
        .demand(later, "a request with unknown fields is answered")
        .note(format!(
            "{foreign} of {} answered by the other version",
            tally.requests()
        )))
}

/// Whether a request with unknown fields is answered.
async fn later_client(bus: &Bus) -> anyhow::Result<bool> {
    let body = serde_json::json!({
        "inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 9.0], "layout": "dense"}],
        "priority": {"class": "gold", "weight": [1, 2]},
    });
    let body = rmp_serde::to_vec_named(&body)?;
    let reply = bus.client().request(App::new(APP)?.infer(), body.into()).await?;
    Ok(headers::fault(reply.headers.as_ref()).is_none())
}
