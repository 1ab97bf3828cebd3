//! Cost of the dashboard in the gateway: heartbeats of many replicas, and one page that is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kaskade_actors::App;
use kaskade_actors::bus::Bus;
use kaskade_actors::wire::{Heartbeat, Message as _, ReplicaBeat};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

use crate::processes::{Running, processor_s};
use crate::{Failure, bus};

/// Heartbeats of a worker per second, as workers send them.
const BEAT: Duration = Duration::from_millis(100);

/// Measures with that many replicas, `per_worker` of them at each simulated worker.
pub(crate) fn measure(replicas: usize, per_worker: usize, seconds: f64) -> Result<(), Failure> {
    let mut service = Running::start(&["idle-service"])?;
    let url = service.line()?;
    let mut gateway = Running::start(&["idle-gateway", &url])?;
    let (address, pid) = gateway.ready()?;
    eprintln!("the dashboard is at http://{address}/");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let workers = replicas.div_ceil(per_worker.max(1));
    let (idle, watched, page) = runtime.block_on(async {
        let connected = Bus::connect(bus(&url, "idle")).await?;
        let beating = tokio::spawn(beat(connected, workers, per_worker));
        // The gateway has received heartbeats of every worker by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let idle = cores(pid, seconds).await?;
        let page = Arc::new(Page::default());
        let reading = tokio::spawn(read(address, Arc::clone(&page)));
        let watched = cores(pid, seconds).await?;
        beating.abort();
        reading.abort();
        Ok::<_, Failure>((idle, watched, page))
    })?;
    println!(
        "{{\"name\":\"dashboard\",\"replicas\":{replicas},\"workers\":{workers},\"cores_without_page\":{idle:.4},\"cores\":{watched:.4},\"events\":{},\"bytes\":{}}}",
        page.events.load(Relaxed),
        page.bytes.load(Relaxed)
    );
    Ok(())
}

/// Waits, and returns the cores that the process has used meanwhile.
async fn cores(pid: u32, seconds: f64) -> Result<f64, Failure> {
    let (begun, before) = (Instant::now(), processor_s(pid)?);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok((processor_s(pid)? - before) / begun.elapsed().as_secs_f64())
}

/// What an open page has received.
#[derive(Default)]
struct Page {
    events: AtomicU64,
    bytes: AtomicU64,
}

/// Reads the events of the dashboard.
async fn read(address: String, page: Arc<Page>) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(&address).await?;
    let request = format!("GET /dashboard/events/idle HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut received = Vec::with_capacity(1 << 20);
    while stream.read_buf(&mut received).await? > 0 {
        let events = received.windows(2).filter(|two| *two == b"\n\n").count();
        page.events.fetch_add(events as u64, Relaxed);
        page.bytes.fetch_add(received.len() as u64, Relaxed);
        received.clear();
    }
    Ok(())
}

/// Sends the heartbeats of simulated workers, spread over the period. The queues of a tenth of the replicas change every time.
async fn beat(bus: Bus, workers: usize, per_worker: usize) -> Result<(), Failure> {
    let app = App::new("idle")?;
    let mut ticks = interval(BEAT / 10);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for tick in 0_u64.. {
        ticks.tick().await;
        for worker in (0..workers).filter(|worker| *worker as u64 % 10 == tick % 10) {
            let replicas = (0..per_worker).map(|replica| ReplicaBeat {
                id: format!("replica-{worker}-{replica}"),
                stage: "stage".to_owned(),
                variant: format!("variant-{}", replica % 3),
                queue: if (worker + replica).is_multiple_of(10) {
                    (tick % 7) as u32
                } else {
                    0
                },
                in_flight: 0,
                unavailable: false,
            });
            let beat = Heartbeat {
                actor: format!("simulated-{worker}"),
                kind: "worker".to_owned(),
                replicas: replicas.collect(),
                sequence: tick / 10,
                ..Heartbeat::default()
            };
            bus.publish(app.beat(&beat.actor)?, None, None, beat.encode()?)
                .await?;
        }
    }
    Ok(())
}
