//! `kaskade-papers pipeline`: writes a pipeline of the Loki paper as a file that the planner reads.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::args::PipelineArgs;

/// Writes the stated traffic pipeline, or the one that the authors measured, as JSON.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Path of the output file.
    #[arg(long, value_name = "FILE", default_value = "pipeline.json")]
    out: PathBuf,
}

/// Writes the pipeline.
///
/// # Errors
/// When it cannot be read or written.
pub fn write(args: &Args) -> anyhow::Result<()> {
    let named = args.pipeline.read()?;
    let text = serde_json::to_string_pretty(&named.pipeline)? + "\n";
    std::fs::write(&args.out, text).with_context(|| format!("{} cannot be written", args.out.display()))
}
