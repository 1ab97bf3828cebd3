//! Times a checkpoint on the CPU: `cargo bench -p kaskade-models --bench checkpoint -- DIR [BATCH] [SEQUENCE]`.
//!
//! Prints the median and the minimum wall time of a batch, and its CPU time, in milliseconds.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::path::Path;
use std::sync::mpsc::channel;

use kaskade_models::{
    BatchResult, Datatype, Device, Executor, Extent, InputSpec, Inputs, LoadOptions, ModelError, Tensor, load,
};
use rustix::time::{ClockId, clock_gettime};

const WARM_UP: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let dir = arguments
        .next()
        .ok_or("usage: checkpoint DIR [BATCH] [SEQUENCE]")?;
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |argument| argument.parse());
    let (batch, sequence) = (number(1)?, number(64)?);
    let executor = Executor::spawn("model", move || {
        load(Path::new(&dir), &Device::Cpu, &LoadOptions::default()).map(|loaded| loaded.model)
    })?;
    let required = executor
        .signature()
        .inputs
        .first()
        .ok_or("the model has no signature")?;
    let request: Inputs = vec![example(required, sequence)?];
    let mut results = Vec::new();
    for round in 0..WARM_UP + 30 {
        let used = process_us();
        let result = run(&executor, vec![request.clone(); batch])?;
        let used = process_us().saturating_sub(used);
        for output in result.outputs {
            output?;
        }
        if round >= WARM_UP {
            results.push((result.run_us, used));
        }
    }
    results.sort_unstable();
    let milliseconds = |us: u64| us as f64 / 1e3;
    let minimum = results.first().ok_or("no result")?;
    let median = results.get(results.len() / 2).ok_or("no result")?;
    println!(
        "batch {batch} sequence {sequence}: median {:.2} ms wall, {:.2} ms cpu; minimum {:.2} ms wall, {:.2} ms cpu",
        milliseconds(median.0),
        milliseconds(median.1),
        milliseconds(minimum.0),
        milliseconds(minimum.1),
    );
    Ok(())
}

/// Returns the CPU time of this process so far, microseconds; almost all of it is the model's.
fn process_us() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}

fn run(executor: &Executor, batch: Vec<Inputs>) -> Result<BatchResult, Box<dyn Error>> {
    let (send, receive) = channel();
    executor.run(batch, move |result| drop(send.send(result)))?;
    Ok(receive.recv()?)
}

/// Returns a valid input: token ids 1, 2, ..., or numbers between 0 and 1.
fn example(input: &InputSpec, sequence: usize) -> Result<Tensor, ModelError> {
    let shape: Vec<usize> = input
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Exactly(extent) => *extent,
            Extent::UpTo(limit) | Extent::AtMost(limit) | Extent::Tokens(limit) => sequence.min(*limit),
        })
        .collect();
    let elements: usize = shape.iter().product();
    Ok(if input.datatype == Datatype::I64 {
        let ids: Vec<i64> = (1..).take(elements).collect();
        Tensor::from_i64(&input.name, &shape, &ids)?
    } else {
        let values: Vec<f32> = (0..elements).map(|index| (index % 256) as f32 / 255.0).collect();
        Tensor::from_f32(&input.name, &shape, &values)?
    })
}
