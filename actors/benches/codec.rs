//! The time to encode and decode the message of one hop: `cargo bench -p kaskade-actors --bench codec`.
//!
//! Prints medians over batches in microseconds per message, and the time to build and read a hop's two headers.

#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::headers::{Context, Trace};
use kaskade_actors::wire::{CodecError, Hop, Message, StageRequest};
use kaskade_models::{Datatype, Tensor};

const BATCHES: usize = 41;

fn main() -> Result<(), CodecError> {
    println!(
        "{:>10} {:>10} {:>10} {:>12}",
        "data", "encode us", "decode us", "wire bytes"
    );
    for size in [1 << 10, 50_000, 1 << 20] {
        let message = request(size);
        let bytes = message.encode()?;
        let rounds = 20_000_000 / (size + 20_000);
        let encode = median(rounds, || drop(black_box(black_box(&message).encode())));
        let decode = median(rounds, || {
            drop(black_box(StageRequest::decode(black_box(&bytes))));
        });
        println!("{size:>10} {encode:>10.3} {decode:>10.3} {:>12}", bytes.len());
    }
    let trace = Trace::start();
    let hop = |trace: &Trace| {
        let mut headers = HeaderMap::new();
        headers::put_budget(&mut headers, Duration::from_millis(100));
        trace.put(&mut headers);
        headers
    };
    let build = median(2_000, || drop(black_box(hop(&trace.child()))));
    let hop = hop(&trace);
    let read = median(2_000, || drop(black_box(Context::read(Some(black_box(&hop))))));
    println!("headers of a hop: build {build:.3} us, read {read:.3} us");
    Ok(())
}

fn request(size: usize) -> StageRequest {
    StageRequest {
        id: 123_456,
        ingress: "0123456789abcdef".into(),
        epoch: 7,
        stage: "tiny".into(),
        hops: vec![Hop {
            stage: "tiny".into(),
            wait_us: 900,
            run_us: 1_500,
            batch: 32,
            cost: None,
            answer: None,
        }],
        inputs: vec![Tensor {
            name: "image".into(),
            shape: vec![size],
            datatype: Datatype::U8,
            data: Bytes::from(vec![7; size]),
        }],
        ..StageRequest::default()
    }
}

/// Microseconds per call.
fn median(rounds: usize, mut call: impl FnMut()) -> f64 {
    let mut batches = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e6 / rounds as f64
        })
        .collect::<Vec<_>>();
    batches.sort_by(f64::total_cmp);
    batches.get(BATCHES / 2).copied().unwrap_or(f64::NAN)
}
