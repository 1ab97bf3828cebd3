//! `kaskade reproduce`: a paper's headline comparisons, beside the paper's figures.

use crate::report;
use crate::reproduce::cascadeserve;

/// Runs a paper's headline comparisons and prints them beside the paper's figures. Needs no file outside the repository.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum System {
    /// CascadeServe: gear plans against static and switched models, in simulation.
    #[command(name = "cascadeserve")]
    CascadeServe(cascadeserve::Args),
}

/// Runs and reports.
pub(crate) fn run(system: &System) -> anyhow::Result<()> {
    let System::CascadeServe(args) = system;
    let found = cascadeserve::run(args)?;
    if args.json {
        return report::print_json(&found);
    }
    report::print(&found.as_text())
}
