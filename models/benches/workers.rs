//! Compares one worker of N cores with N workers of one core each on this machine (2 by default).
//!
//! `cargo bench -p kaskade-models --bench workers -- [N] [SECONDS]` starts the workers as processes, which compute batches
//! of the sentiment example at the same time, and prints the ratio of their speeds over alternating rounds. Target: the
//! workers with one core are together within 10 % of the worker with all cores.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kaskade_models::{Cores, Device, Inputs, LoadOptions, Model, PinnedModel, Tensor, load};

const ROUNDS: usize = 5;
/// First argument of a worker.
const WORKER: &str = "worker";

type Failure = Box<dyn Error>;

/// A worker process. It reads a number of seconds per line, computes for that time, and prints the items per second.
struct Worker {
    process: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Worker {
    fn start(cores: usize) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([WORKER, &cores.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (ask, answer) = (process.stdin.take(), process.stdout.take());
        let (ask, answer) = ask.zip(answer).ok_or("a worker has no pipes")?;
        Ok(Self {
            process,
            ask,
            answer: BufReader::new(answer),
        })
    }

    fn begin(&mut self, seconds: f64) -> Result<(), Failure> {
        Ok(writeln!(self.ask, "{seconds}")?)
    }

    fn speed(&mut self) -> Result<f64, Failure> {
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

/// Returns the total items per second of workers that compute at the same time.
fn together(workers: &mut [Worker], seconds: f64) -> Result<f64, Failure> {
    for worker in &mut *workers {
        worker.begin(seconds)?;
    }
    let mut sum = 0.0;
    for worker in workers {
        sum += worker.speed()?;
    }
    Ok(sum)
}

fn work(cores: &str) -> Result<(), Failure> {
    let cores = Cores::start(Some(cores.parse()?))?;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sentiment/weights/sentiment-mini");
    let loaded = cores.compute(|| load(&dir, &Device::Cpu, &LoadOptions::default()))?;
    let mut model = PinnedModel::new(loaded.model, cores);
    let text = "a warm , funny and moving film about people whom one would like to meet again . ".repeat(2);
    let batch: Vec<Inputs> = vec![vec![Tensor::from_texts("text", &[&text])?]; 8];
    for line in std::io::stdin().lock().lines() {
        let time = Duration::from_secs_f64(line?.trim().parse()?);
        let (began, mut items) = (Instant::now(), 0_u32);
        while began.elapsed() < time {
            for answer in model.run(&batch) {
                answer?;
                items += 1;
            }
        }
        println!("{}", f64::from(items) / began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if let [WORKER, cores] = [0, 1].map(|index| arguments.get(index).map_or("", String::as_str)) {
        return work(cores);
    }
    let count = arguments.first().map_or(Ok(2), |count| count.parse())?;
    let seconds = arguments.get(1).map_or(Ok(3.0), |seconds| seconds.parse())?;
    let mut whole = [Worker::start(count)?];
    let mut single = (0..count)
        .map(|_| Worker::start(1))
        .collect::<Result<Vec<_>, _>>()?;
    together(&mut whole, 1.0)?;
    together(&mut single, 1.0)?;
    let mut ratios = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let one = together(&mut whole, seconds)?;
        let many = together(&mut single, seconds)?;
        println!("one worker of {count} cores: {one:.1}/s; {count} workers of one core: {many:.1}/s");
        ratios.push(many / one);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ROUNDS / 2).copied().unwrap_or_default();
    println!("ratio {median:.3} (aim: at least 0.9)");
    for mut worker in whole.into_iter().chain(single) {
        drop(worker.ask);
        worker.process.wait()?;
    }
    Ok(())
}
