//! Measures the time of a message between stages by its size: `T(b)` of each channel (HybridServe §V-A).
//!
//! The message is a stage request with one tensor; the time runs from its encoding to its decoding. Between two tasks
//! of a process nothing is copied. Over a broker the message returns to this process, which is the same path as between
//! two processes on that broker.

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

/// Longest time of one message.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of messages of each size that are not counted.
const WARM_UP: usize = 8;

/// Error of measuring a channel.
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
        /// Size of the tensor, bytes.
        bytes: usize,
    },
    /// The broker ended the subscription.
    #[error("the broker closed the subscription")]
    Closed,
    /// Another message arrived.
    #[error("the broker returned a message that differs from the one sent")]
    Other,
    /// The broker's limit is below the smallest message.
    #[error("the broker's max_payload is {carried} bytes, less than the smallest message")]
    TooSmall {
        /// Largest message that the broker accepts, bytes.
        carried: usize,
    },
    /// The broker fails.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The name of the channel is invalid in a subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// A message cannot be encoded or decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A message's tensor cannot be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Returns the tensor sizes to measure, bytes.
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

/// Measures the channel between two tasks of this process.
///
/// # Errors
/// [`ChannelError`] if a message does not arrive.
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

/// Number of messages for the time of a hop.
const HOPS: usize = 400;

/// Largest message for the time of a hop, bytes; larger ones travel in chunks.
const MAX_HOP: usize = 512 << 10;

/// Measures the time of a message with this tensor size between two actors, over an embedded broker on this machine.
///
/// # Errors
/// [`ChannelError`] if the broker fails or a message does not arrive.
pub async fn hop(bytes: usize) -> Result<Option<HopTime>, ChannelError> {
    let sizes = [bytes.clamp(4, MAX_HOP)];
    let times = times_over_broker(BusConfig::new("hops"), &sizes, HOPS).await?;
    let times = times.into_iter().next();
    let mut times = times.map_or_else(Vec::new, |(_, times)| times);
    times.sort_unstable();
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Ok(HopTime::from_sorted(&seconds))
}

/// Measures the channel over a broker. Sizes above the broker's limit are left out.
///
/// # Errors
/// [`ChannelError`] if the broker fails or a message does not arrive.
pub async fn over_broker(bus: BusConfig, sizes: &[usize], rounds: usize) -> Result<Channel, ChannelError> {
    let mut measured = times_over_broker(bus, sizes, rounds).await?;
    let samples = measured.iter_mut().map(|(size, times)| sample(*size, times));
    Ok(Channel::Measured {
        samples: samples.collect(),
    })
}

/// Returns the times of messages by size, over a broker.
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

/// Returns the median time. Other processes on the machine may delay some messages, but not half of them.
fn sample(bytes: usize, times: &mut [Duration]) -> TransferSample {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    TransferSample {
        bytes: bytes as f64,
        seconds: median.as_secs_f64(),
    }
}
