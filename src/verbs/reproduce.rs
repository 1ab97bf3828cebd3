//! `kaskade reproduce`: a paper's headline comparisons, beside the paper's figures.

use crate::report;
use crate::reproduce::{cascadeserve, loki};

/// Runs a paper's headline comparisons and prints them beside the paper's figures. Needs no file outside the repository.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum System {
    /// CascadeServe: gear plans against static and switched models, in simulation.
    #[command(name = "cascadeserve")]
    CascadeServe(cascadeserve::Args),
    /// Loki
    #[command(name = "loki")]
    Loki(loki::Args),
}

/// Runs and reports.
pub(crate) fn run(system: &System) -> anyhow::Result<()> {
    let (found, json) = match system {
        System::CascadeServe(args) => (cascadeserve::run(args)?, args.json),
        System::Loki(args) => (loki::run(args)?, args.json),
    };
    if json {
        return report::print_json(&found);
    }
    report::print(&found.as_text())
}
