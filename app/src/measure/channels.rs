//! How long a message takes from stage to stage, by its size: `T(b)` of each channel (HybridServe §V-A).
//!
//! What is timed is a stage request with one tensor, from its encoding to its decoding: between two tasks of a process, which copies
//! nothing, and over a broker back to this process, which is the path between two processes at that broker.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kaskade_actors::bus::publisher::HEADROOM;
use kaskade_actors::bus::{Bus, BusConfig, BusError};
use kaskade_actors::ids;
use kaskade_actors::subjects;
use kaskade_actors::subjects::SubjectError;
use kaskade_actors::wire::{CodecError, Message as _, StageRequest};
use kaskade_models::{Tensor, TensorError};
use kaskade_planners::placement::{Channel, TransferSample};
use kaskade_policy::profile::HopTime;
use thiserror::Error;

/// Longest that one message may take.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages of each size that are not counted.
const WARM_UP: usize = 8;

/// A channel cannot be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The receiving task has ended.
    #[error("the message has no receiver")]
    NoReceiver,
    /// A message was lost inside the process.
    #[error("the message did not arrive")]
    Lost,
    /// A message was lost at the broker.
    #[error("a message of {bytes} bytes did not come back in {ECHO_TIMEOUT:?}")]
    Late {
        /// Its size.
        bytes: usize,
    },
    /// The broker ended the subscription.
    #[error("the broker closed the subscription")]
    Closed,
    /// Another message came back.
    #[error("the broker returned a message that differs from the one sent")]
    Other,
    /// The broker carries no message of the smallest size.
    #[error("the broker's max_payload is {carried} bytes, less than the smallest message")]
    TooSmall {
        /// Bytes of the largest message that it carries.
        carried: usize,
    },
    /// The broker fails.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The name of the channel is no subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// A message cannot be encoded or decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A message is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Sizes of the tensors, bytes.
pub fn sizes(largest: usize) -> Vec<usize> {
    (8..=24)
        .map(|power| 1_usize << power)
        .take_while(|size| *size <= largest)
        .collect()
}

fn request(bytes: usize) -> Result<StageRequest, ChannelError> {
    let values = vec![0.5; bytes / 4];
    Ok(StageRequest {
        stage: "stage".to_owned(),
        ingress: "ingress".to_owned(),
        inputs: vec![Tensor::from_f32("hidden_states", &[values.len()], &values)?],
        ..StageRequest::default()
    })
}

/// Between two tasks of this process.
///
/// # Errors
/// When a message does not arrive.
pub async fn in_process(sizes: &[usize], rounds: usize) -> Result<Channel, ChannelError> {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<StageRequest>(1);
    let mut samples = Vec::new();
    for size in sizes {
        let request = request(*size)?;
        let mut times = Vec::new();
        for round in 0..WARM_UP + rounds {
            let message = request.clone();
            let begun = Instant::now();
            let (sent, arrived) = tokio::join!(sender.send(message), receiver.recv());
            let took = begun.elapsed();
            sent.map_err(|_| ChannelError::NoReceiver)?;
            arrived.ok_or(ChannelError::Lost)?;
            times.extend((round >= WARM_UP).then_some(took));
        }
        samples.push(sample(*size, &mut times));
    }
    Ok(Channel::Measured { samples })
}

/// Messages of which the time of a hop is measured.
const HOPS: usize = 400;

/// Largest message of which the time of a hop is measured, bytes: larger ones travel in parts.
const MAX_HOP: usize = 512 << 10;

/// Measures the time of a message of this size between two actors, over a broker of its own on this machine.
///
/// # Errors
/// The broker's error, or when a message does not arrive.
pub async fn hop(bytes: usize) -> Result<Option<HopTime>, ChannelError> {
    let sizes = [bytes.clamp(4, MAX_HOP)];
    let times = times_over_broker(BusConfig::new("hops"), &sizes, HOPS).await?;
    let times = times.into_iter().next();
    let mut times = times.map_or_else(Vec::new, |(_, times)| times);
    times.sort_unstable();
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Ok(HopTime::of(&seconds))
}

/// Over a broker; sizes that it does not carry whole are left out.
///
/// # Errors
/// The broker's error, or when a message does not arrive.
pub async fn over_broker(bus: BusConfig, sizes: &[usize], rounds: usize) -> Result<Channel, ChannelError> {
    let mut measured = times_over_broker(bus, sizes, rounds).await?;
    let samples = measured.iter_mut().map(|(size, times)| sample(*size, times));
    Ok(Channel::Measured {
        samples: samples.collect(),
    })
}

/// Times of messages by size, over a broker.
async fn times_over_broker(
    bus: BusConfig,
    sizes: &[usize],
    rounds: usize,
) -> Result<Vec<(usize, Vec<Duration>)>, ChannelError> {
    let bus = Bus::connect(bus).await?;
    let subject = subjects::App::new("channels")?.replica(&ids::unique_token())?;
    let mut arrivals = bus.subscribe(subject.clone(), None).await?;
    bus.barrier().await?;
    let carried = bus.max_payload().saturating_sub(HEADROOM);
    let mut measured = Vec::new();
    for size in sizes {
        let request = request(*size)?;
        if request.encode()?.len() > carried {
            break;
        }
        let mut times = Vec::new();
        for round in 0..WARM_UP + rounds {
            let begun = Instant::now();
            bus.publish(subject.clone(), None, None, request.encode()?)
                .await?;
            let arrived = tokio::time::timeout(ECHO_TIMEOUT, arrivals.next()).await;
            let message = arrived
                .map_err(|_| ChannelError::Late { bytes: *size })?
                .ok_or(ChannelError::Closed)?;
            let read = StageRequest::decode(&message.payload)?;
            let took = begun.elapsed();
            if read.inputs.len() != 1 {
                return Err(ChannelError::Other);
            }
            times.extend((round >= WARM_UP).then_some(took));
        }
        measured.push((*size, times));
    }
    bus.close().await;
    if measured.is_empty() {
        return Err(ChannelError::TooSmall { carried });
    }
    Ok(measured)
}

/// The median: other processes on the machine delay some messages, but not half of them.
fn sample(bytes: usize, times: &mut [Duration]) -> TransferSample {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    TransferSample {
        bytes: bytes as f64,
        seconds: median.as_secs_f64(),
    }
}
