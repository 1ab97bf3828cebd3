//! Every target over its corpus, over what once broke it, and over a fixed number of mutations, the same in every run.
//!
//! `KASKADE_FUZZ_MUTATIONS=100000` makes it that many per target, `KASKADE_FUZZ_SEED=7` others, and `KASKADE_FUZZ_TARGET=plan` leaves
//! the others out.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod mutate;

use std::alloc::System;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[cfg(feature = "serving")]
use kaskade_fuzz_targets::corpus::repository;
use kaskade_fuzz_targets::{Target, corpus::inputs, targets};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What a run may allocate in all for each byte of its input.
const PER_BYTE: usize = 256;
/// Longest run, on a machine that does other things too.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Address space of the test: who asks for more than this has believed a number that it should not.
const ADDRESS_SPACE: u64 = 16 << 30;

#[test]
fn every_target_keeps_its_promises() {
    let limits = getrlimit(Resource::As);
    let current = Some(
        limits
            .maximum
            .map_or(ADDRESS_SPACE, |most| most.min(ADDRESS_SPACE)),
    );
    setrlimit(Resource::As, Rlimit { current, ..limits }).unwrap();
    let only = std::env::var("KASKADE_FUZZ_TARGET").ok();
    let chosen = |target: &&Target| only.as_ref().is_none_or(|only| only == target.name);
    for target in targets().filter(chosen) {
        let begin = Instant::now();
        let runs = smoke(target);
        println!("{:>23} {runs:>8} runs {:>8.2?}", target.name, begin.elapsed());
    }
}

#[cfg(feature = "serving")]
#[test]
fn every_target_has_a_program_for_libfuzzer() {
    let manifest = fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
    let names = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let mut programs: Vec<&str> = names.filter(|name| *name != "kaskade-libfuzzer").collect();
    let mut all: Vec<&str> = targets().map(|target| target.name).collect();
    programs.sort_unstable();
    all.sort_unstable();
    assert_eq!(programs, all);
}

fn smoke(target: &Target) -> u32 {
    let mut witness = Witness::of(target);
    let corpus = inputs("corpus", target.name).unwrap();
    let regressions = inputs("regressions", target.name).unwrap();
    assert!(
        !corpus.is_empty(),
        "`{}` has no corpus; `kaskade-fuzz seeds` writes one",
        target.name
    );
    let known = corpus
        .iter()
        .chain(&regressions)
        .map(|input| witness.run(input))
        .count();
    let mut rng = ChaCha8Rng::seed_from_u64(variable("KASKADE_FUZZ_SEED").unwrap_or(0));
    let mutations = variable("KASKADE_FUZZ_MUTATIONS").map_or(target.mutations, |mutations| mutations as u32);
    for _ in 0..mutations {
        witness.run(&mutate::mutated(&corpus, &mut rng));
    }
    fs::remove_file(witness.path).unwrap();
    mutations + known as u32
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Keeps every input in a file while it runs: whatever becomes of the process, what broke it is there.
struct Witness {
    target: Target,
    path: PathBuf,
    file: File,
}

impl Witness {
    fn of(target: &Target) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(target.name);
        Self {
            target: *target,
            file: File::create(&path).unwrap(),
            path,
        }
    }

    fn run(&mut self, input: &[u8]) {
        self.keep(input);
        let (begin, region) = (Instant::now(), Region::new(ALLOCATOR));
        let outcome = catch_unwind(|| (self.target.run)(input));
        let change = region.change();
        let allocated = change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0);
        if outcome.is_err() {
            self.fail("it panicked");
        }
        if begin.elapsed() > MAX_TIME {
            self.fail(&format!("it took {:?}", begin.elapsed()));
        }
        if allocated > (self.target.max_kib << 10) + PER_BYTE * input.len() {
            self.fail(&format!(
                "it allocated {} KiB for {} bytes",
                allocated >> 10,
                input.len()
            ));
        }
    }

    fn keep(&mut self, input: &[u8]) {
        self.file.rewind().unwrap();
        self.file.write_all(input).unwrap();
        self.file.set_len(input.len() as u64).unwrap();
    }

    fn fail(&self, reason: &str) -> ! {
        let (name, path) = (self.target.name, self.path.display());
        panic!(
            "target `{name}` breaks a promise: {reason}\n\
             the input is {path}; it runs again with\n\
             cargo run --release -p kaskade-fuzz-targets -- replay {name} {path}"
        );
    }
}
