//! The control plane: what heartbeats cost, and that they do not wait behind data.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kaskade_actors::bus::{BusConfig, Embedded, PlanStorage};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::{
    App, AttachConfig, Client, Fault, Node, NodeConfig, Service, Stage, StageInput, StageOutput, attach_stage,
};
use kaskade_broker::BrokerConfig;
use kaskade_models::Tensor;
use kaskade_policy::plan::{Plan, Replica};
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT};

use crate::common::gears::block_on;
use crate::common::{Scripted, ask};

/// Elements of the large output: 6 MiB in f32.
const LARGE: usize = 3 << 19;

/// Bytes per second of the throttled link.
const RATE: usize = 4 << 20;

/// A stage with large outputs, which defers.
struct Bulky;

impl Stage for Bulky {
    async fn run(&self, _: StageInput) -> Result<StageOutput, Fault> {
        let outputs = vec![Tensor::from_f32("hidden", &[LARGE], &vec![0.5; LARGE])?];
        Ok(StageOutput::new(outputs).confidence(0.1))
    }
}

/// Starts a proxy to that port, and returns its URL. Each connection sends at most [`RATE`] bytes per second to the
/// server.
fn throttled(port: u16) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            // Without a server, the near end is closed.
            let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
                continue;
            };
            for end in [&near, &far] {
                end.set_nodelay(true).unwrap();
            }
            let (from_far, to_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || trickle(near, far));
            thread::spawn(move || io::copy(&mut &from_far, &mut &to_near));
        }
    });
    url
}

fn trickle(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        to.write_all(&buffer[..read])?;
        // The link under test is this slow.
        thread::sleep(Duration::from_secs_f64(read as f64 / RATE as f64));
    }
}

#[test]
fn heartbeats_do_not_wait_behind_a_large_message() {
    let app = "bulky";
    let server = NatsServer::start(NatsOptions::default());
    let bus = |url: String| BusConfig {
        plans: PlanStorage::Memory,
        ..BusConfig::new(app).url(url)
    };
    let plan = Plan::cascade(app)
        .stage("first", "bulky")
        .worker("elsewhere")
        .below(0.5)
        .then("second", "small")
        .build()
        .unwrap();
    let node = Service::new(app)
        .bus(bus(server.url()))
        .plan(plan)
        .model("small", || {
            Ok::<_, String>(Scripted {
                strength: 1.0,
                run: Duration::ZERO,
            })
        })
        .start()
        .unwrap();
    let slow = bus(throttled(server.port()));
    block_on(async {
        let beats = App::new(app).unwrap().beat("bulky-0").unwrap();
        let mut beats = node.bus().subscribe(beats, None).await.unwrap();
        node.bus().barrier().await.unwrap();
        let config = AttachConfig::new(app, "first", "bulky-0");
        let stage = attach_stage(slow, config, Bulky).await.unwrap();
        beats.next().await.unwrap();
        let client = Client::new(node.bus(), App::new(app).unwrap());
        let begun = Instant::now();
        let reply = client.infer(ask(2.0, 4.0), TIMEOUT).await.unwrap();
        assert_eq!(reply.stage, "second");
        assert!(
            begun.elapsed() > Duration::from_secs(1),
            "the link was slow enough to delay heartbeats"
        );
        assert_eq!(node.metrics().read().retried, 0);
        stage.detach(TIMEOUT).await;
    });
    node.stop();
}

/// Ten heartbeats per worker and second reach each ingress, and no worker.
#[test]
fn heartbeats_cost_one_delivery_per_ingress() {
    const WORKERS: u64 = 8;
    const PERIODS: u64 = 15;
    let app = "linear";
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let bus = || BusConfig::new(app).embedded(&embedded);
    let mut plan = kaskade_actors::plan::single(
        app,
        "small",
        "w0",
        std::num::NonZeroU32::MIN,
        kaskade_policy::plan::Batching::default(),
    );
    let first = plan.placement[0].clone();
    plan.placement = (0..WORKERS)
        .map(|number| Replica {
            id: format!("small-{number}"),
            worker: format!("w{number}"),
            ..first.clone()
        })
        .collect();
    let ingress = Node::start(NodeConfig {
        app: app.to_owned(),
        bus: bus(),
        ingress: Some(IngressConfig::default()),
        worker: None,
        plan: Some(plan.clone()),
        planner: None,
        power: None,
        grace: Duration::ZERO,
    })
    .unwrap();
    let workers = (0..WORKERS).map(|number| {
        let service = Service::new(app).bus(bus()).plan(plan.clone()).ingress(None);
        let service = service.model("small", || {
            Ok::<_, String>(Scripted {
                strength: 1.0,
                run: Duration::ZERO,
            })
        });
        let worker = WorkerConfig {
            name: format!("w{number}"),
            queue_capacity: 16,
            ..WorkerConfig::default()
        };
        service.worker(worker).start().unwrap()
    });
    let workers: Vec<Node> = workers.collect();
    let (delivered, published) = block_on(async {
        let beats = App::new(app).unwrap().beat("w0").unwrap();
        let mut beats = ingress.bus().subscribe(beats, None).await.unwrap();
        beats.next().await.unwrap();
        let before = embedded.stats();
        for _ in 0..PERIODS {
            beats.next().await.unwrap();
        }
        let after = embedded.stats();
        (
            after.messages_out - before.messages_out,
            after.messages_in - before.messages_in,
        )
    });
    assert!(
        published >= WORKERS * PERIODS / 2,
        "{published} messages were published"
    );
    // Once to the ingress; beside that the heartbeats that this test reads, and states once per second to each worker.
    let most = published + PERIODS + 4 * WORKERS;
    assert!(
        delivered <= most,
        "{delivered} deliveries, at most {most} expected"
    );
    for worker in workers {
        worker.stop();
    }
    ingress.stop();
}
