//! `kaskade schema`: what a file may hold.

use clap::ValueEnum;
use kaskade::planners::placement::Channels;
use kaskade::policy::pipeline::Pipeline;
use kaskade::policy::plan::Plan;
use kaskade::policy::profile::Profile;

use crate::output;

/// Prints the JSON Schema of a file format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file format.
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// The TOML file of an app.
    App,
    /// A plan.
    Plan,
    /// A profile.
    Profile,
    /// A pipeline with what was measured of it.
    Pipeline,
    /// How long messages take between devices, as `plan placement` reads it.
    Channels,
}

/// Prints the schema.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    output::print_json(&match args.format {
        Format::App => kaskade_app::config::App::schema(),
        Format::Plan => Plan::json_schema(),
        Format::Profile => Profile::json_schema(),
        Format::Pipeline => Pipeline::json_schema(),
        Format::Channels => Channels::json_schema(),
    })
}
