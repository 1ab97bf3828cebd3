//! `kaskade reproduce`: a paper's headline comparisons, beside the paper's figures.

use std::path::Path;

use anyhow::Context as _;

use crate::report;
use crate::reproduce::{Reproduction, cascadeserve, hybridcache, hybridserve, loki};

/// Runs a paper's headline comparisons and prints them beside the paper's figures. Needs no file outside the repository.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum System {
    /// CascadeServe: gear plans against static and switched models, in simulation.
    #[command(name = "cascadeserve")]
    CascadeServe(cascadeserve::Args),
    /// HybridServe (KAIST): a KV-activation hybrid cache against its baselines on four OPTs, in simulation.
    #[command(name = "hybridcache")]
    HybridCache(hybridcache::Args),
    /// HybridServe (Edinburgh): AP and EO cascades against the giant alone on twelve servers, in simulation.
    #[command(name = "hybridserve")]
    HybridServe(hybridserve::Args),
    /// Loki: pipelines by hardware and accuracy scaling against `InferLine` and Proteus, in simulation.
    #[command(name = "loki")]
    Loki(loki::Args),
}

/// Runs and reports.
pub(crate) fn run(system: &System) -> anyhow::Result<()> {
    ready(match system {
        System::CascadeServe(args) => &args.out,
        System::HybridCache(args) => &args.out,
        System::HybridServe(args) => &args.out,
        System::Loki(args) => &args.out,
    })?;
    match system {
        System::CascadeServe(args) => print(&cascadeserve::run(args)?, args.json),
        System::HybridCache(args) => print(&hybridcache::run(args)?, args.json),
        System::HybridServe(args) => print(&hybridserve::run(args)?, args.json),
        System::Loki(args) => print(&loki::run(args)?, args.json),
    }
}

/// Whether pictures can be written there is found out before minutes are spent on them.
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

fn print(found: &Reproduction, json: bool) -> anyhow::Result<()> {
    if json {
        return report::print_json(found);
    }
    report::print(&found.as_text())
}
