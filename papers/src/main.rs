//! `kaskade-papers`: a paper's headline comparisons, beside the paper's figures.
//!
//! Exit codes: 0 done, 1 a comparison could not be run, 2 the command line itself is wrong.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use kaskade_app::report::in_one_line;
use kaskade_papers::reproduction::Reproduction;
use kaskade_papers::{cascadeserve, hybridcache, hybridserve, loki, pipeline};

/// Runs a paper's headline comparisons and prints them beside the paper's figures. Needs no file outside the repository.
#[derive(Debug, clap::Parser)]
#[command(name = "kaskade-papers", version, max_term_width = 110)]
enum System {
    /// CascadeServe: gear plans against static and switched models, in simulation.
    #[command(name = "cascadeserve")]
    CascadeServe(cascadeserve::Args),
    /// HybridServe (KAIST): a KV-activation hybrid cache against its baselines on four OPTs, in simulation.
    #[command(name = "hybridcache")]
    HybridCache(hybridcache::Args),
    /// HybridServe (Edinburgh): AP and EO cascades against the largest model alone on twelve servers, in simulation.
    #[command(name = "hybridserve")]
    HybridServe(hybridserve::Args),
    /// Loki: pipelines by hardware and accuracy scaling against `InferLine` and Proteus, in simulation.
    #[command(name = "loki")]
    Loki(loki::Args),
    /// Writes a pipeline as a file for `kaskade plan pipeline`: the stated one, or the published measurements.
    #[command(name = "pipeline")]
    Pipeline(pipeline::Args),
}

fn main() -> ExitCode {
    match run(&System::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is closed, so the error cannot be reported.
            let _ = writeln!(
                std::io::stderr().lock(),
                "kaskade-papers: {}",
                in_one_line(error.as_ref())
            );
            ExitCode::FAILURE
        }
    }
}

/// Runs and reports.
fn run(system: &System) -> anyhow::Result<()> {
    let (out, json) = match system {
        System::CascadeServe(args) => (&args.out, args.json),
        System::HybridCache(args) => (&args.out, args.json),
        System::HybridServe(args) => (&args.out, args.json),
        System::Loki(args) => (&args.out, args.json),
        System::Pipeline(args) => return pipeline::write(args),
    };
    ready(out)?;
    let found = match system {
        System::CascadeServe(args) => cascadeserve::run(args)?,
        System::HybridCache(args) => hybridcache::run(args)?,
        System::HybridServe(args) => hybridserve::run(args)?,
        System::Loki(args) => loki::run(args)?,
        System::Pipeline(_) => return Ok(()),
    };
    print(&found, json)
}

/// Checks that pictures can be written there before the long computations.
fn ready(out: &Path) -> anyhow::Result<()> {
    let probe = out.join(".kaskade");
    std::fs::create_dir_all(out)
        .and_then(|()| std::fs::write(&probe, ""))
        .and_then(|()| std::fs::remove_file(&probe))
        .with_context(|| {
            format!(
                "no picture can be written to {}; name another folder by `--out`",
                out.display()
            )
        })
}

/// Prints the result on standard output; a reader that has gone away is no error.
fn print(found: &Reproduction, json: bool) -> anyhow::Result<()> {
    let text = if json {
        serde_json::to_string_pretty(found)?
    } else {
        found.as_text()
    };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(()),
    }
}
