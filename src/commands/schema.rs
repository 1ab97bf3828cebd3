//! `kaskade schema`: JSON Schemas of the file formats.

use clap::ValueEnum;
use kaskade::planners::placement::Channels;
use kaskade::policy::pipeline::Pipeline;
use kaskade::policy::plan::Plan;
use kaskade::policy::profile::Profile;

use crate::output;

/// Prints the JSON Schema of a file format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File format.
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// App file, TOML.
    App,
    /// Plan.
    Plan,
    /// Profile.
    Profile,
    /// Pipeline with its measurements.
    Pipeline,
    /// Transfer times between devices, for `plan placement`.
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
