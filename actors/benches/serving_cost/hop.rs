//! The cost of one routed hop beside a raw request and reply.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use kaskade_actors::App;
use kaskade_actors::bus::Bus;
use kaskade_actors::wire::{InferRequest, Message as _};
use kaskade_models::Tensor;

use crate::Failure;
use crate::apps::bus;

/// Alternates a raw request/reply with a prediction of the same size, one at a time, and prints both medians.
pub(crate) async fn hop(url: &str, bytes: usize, seconds: f64) -> Result<(), Failure> {
    let responder = async_nats::connect(url).await?;
    let mut echo = responder.subscribe("raw.echo").await?;
    responder.flush().await?;
    let back = responder.clone();
    tokio::spawn(async move {
        while let Some(message) = echo.next().await {
            if let Some(reply) = message.reply {
                let _ = back.publish(reply, message.payload).await;
            }
        }
    });
    let connected = Bus::connect(bus(url, "echo")).await?;
    let nats = connected.client().clone();
    let values = vec![0.5_f32; bytes / 4];
    let request = InferRequest {
        inputs: vec![Tensor::from_f32("x", &[values.len()], &values)?],
        ..InferRequest::default()
    };
    let routed = request.encode()?;
    let raw = Bytes::from(vec![7_u8; routed.len()]);
    let subject = App::new("echo")?.infer();
    nats.request("raw.echo", raw.clone()).await?;
    nats.request(subject.clone(), routed.clone()).await?;
    let (mut raws, mut routeds) = (Vec::new(), Vec::new());
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < stop {
        let begun = Instant::now();
        nats.request("raw.echo", raw.clone()).await?;
        raws.push(begun.elapsed());
        let begun = Instant::now();
        let reply = nats.request(subject.clone(), routed.clone()).await?;
        routeds.push(begun.elapsed());
        if reply.payload.len() < bytes {
            return Err("the routed reply is a fault".into());
        }
    }
    let median = |taken: &mut Vec<Duration>| {
        taken.sort_unstable();
        taken
            .get(taken.len() / 2)
            .copied()
            .unwrap_or_default()
            .as_secs_f64()
            * 1e6
    };
    let (raw, routed) = (median(&mut raws), median(&mut routeds));
    println!(
        "{{\"name\":\"hop\",\"bytes\":{bytes},\"raw_p50_us\":{raw:.0},\"routed_p50_us\":{routed:.0},\"added_us\":{:.0},\"ratio\":{:.2},\"n\":{}}}",
        routed - raw,
        routed / raw,
        raws.len()
    );
    Ok(())
}
