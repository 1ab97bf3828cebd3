//! `kaskade quantise`: writes a checkpoint with quantised weights.

use std::path::PathBuf;

use kaskade::models::{WeightType, quantise};
use kaskade_app::report::units;
use serde::Serialize;

use crate::output;

/// Quantises the weights of a checkpoint and writes them to a new directory, which loads like the original.
///
/// The command quantises the matrices of linear layers and embeddings, in GGML's blocks of 32 weights. Norms, biases and convolutions are
/// not quantised, and neither are matrices whose row length is not a multiple of 32. `dtype` in app.toml does the same while a worker loads
/// the original checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the checkpoint.
    input: PathBuf,
    /// Directory to write; it must not exist.
    output: PathBuf,
    /// Type of the weights: `q8_0` or `q4_0`.
    #[arg(long, value_name = "TYPE")]
    dtype: WeightType,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of the command.
#[derive(Debug, Serialize)]
struct Report {
    output: PathBuf,
    dtype: WeightType,
    matrices: usize,
    others: usize,
    bytes_before: u64,
    bytes_after: u64,
}

/// Quantises the checkpoint and prints what became smaller.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let quantised = quantise(&args.input, &args.output, args.dtype)?;
    let report = Report {
        output: args.output.clone(),
        dtype: args.dtype,
        matrices: quantised.matrices,
        others: quantised.others,
        bytes_before: quantised.bytes_before,
        bytes_after: quantised.bytes_after,
    };
    if args.json {
        return output::print_json(&report);
    }
    output::print(&format!(
        "wrote {}: {} as {}, {}; {} of tensors were {}\nmeasure it before you serve it: \
         `kaskade profile` with both directories as variants",
        report.output.display(),
        units::count_of(report.matrices as u64, "matrix", "matrices"),
        report.dtype,
        units::count_of(report.others as u64, "other tensor", "other tensors"),
        units::bytes(report.bytes_after),
        units::bytes(report.bytes_before)
    ))
}
