//! Load of the serving benchmarks: closed loops of requests, and their figures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;

/// Width of the benchmarked model's input, beside the drawn first value.
pub const WIDTH: usize = 64;

/// Throughput and latencies of one run.
pub struct Figures {
    /// Answered requests per second.
    pub per_s: f64,
    /// Median latency, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, milliseconds.
    pub p99_ms: f64,
    /// Requests without an answer.
    pub errors: u64,
}

impl Figures {
    /// Returns the fields of a JSON object, without braces.
    pub fn json(&self) -> String {
        format!(
            "\"per_s\":{:.0},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"errors\":{}",
            self.per_s, self.p50_ms, self.p99_ms, self.errors
        )
    }
}

/// Returns the input of a request: the draw, and [`WIDTH`] constants.
pub fn features(draw: f32) -> Vec<f32> {
    std::iter::once(draw)
        .chain((0..WIDTH).map(|i| i as f32 / WIDTH as f32))
        .collect()
}

/// Runs `concurrency` loops of `ask` for `seconds`. Each call gets the number of its loop and a seeded draw from [0, 1).
pub async fn closed_loop<E, F: Future<Output = Result<(), E>> + Send>(
    concurrency: usize,
    seconds: f64,
    ask: impl Fn(usize, f32) -> F + Clone + Send + 'static,
) -> Figures {
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    let latencies = Arc::new(Mutex::new((Vec::new(), 0_u64)));
    let loops = (0..concurrency).map(|index| {
        let (ask, latencies) = (ask.clone(), Arc::clone(&latencies));
        async move {
            let (mut taken, mut errors) = (Vec::new(), 0);
            let mut state = 0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1);
            while Instant::now() < stop {
                let begun = Instant::now();
                match ask(index, draw(&mut state)).await {
                    Ok(()) => taken.push(begun.elapsed().as_micros() as u64),
                    Err(_) => errors += 1,
                }
            }
            let mut all = latencies.lock().unwrap_or_else(PoisonError::into_inner);
            all.0.extend(taken);
            all.1 += errors;
        }
    });
    join_all(loops).await;
    let mut all = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.sort_unstable();
    let at = |share: f64| {
        let rank = ((all.0.len().saturating_sub(1)) as f64 * share).round() as usize;
        all.0.get(rank).copied().unwrap_or(0) as f64 / 1e3
    };
    Figures {
        per_s: all.0.len() as f64 / seconds,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        errors: all.1,
    }
}

/// A seeded draw: xorshift.
fn draw(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32 / (1_u32 << 24) as f32
}
