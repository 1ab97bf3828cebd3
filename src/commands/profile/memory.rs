//! `kaskade profile memory`: measures the memory of models and of their partitions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use kaskade::models::Partition;
use kaskade_app::config::App;
use kaskade_app::family::Family;
use kaskade_app::measure::memory::{self, MeasuredMemory};
use kaskade_app::report::progress::Progress;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;

use crate::output;

/// Measures the memory of an app's variants by batch size, whole or split by layer.
///
/// Each variant is measured in a process of its own, with synthetic requests of the model's maximum length.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// Variant to measure [default: all].
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Partitions to split a variant into.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    partitions: u32,
    /// Batch sizes to measure.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batches: Vec<u32>,
    /// Measure one partition in this process: its index, from 0, and the number of partitions.
    #[arg(long, value_name = "INDEX/OF", hide = true, requires = "variant", value_parser = partition)]
    partition: Option<Partition>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn partition(text: &str) -> Result<Partition, String> {
    let numbers = text
        .split_once('/')
        .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    let (index, of) = numbers.ok_or("expected INDEX/OF, such as 0/2")?;
    Partition::new(index, of).map_err(|error| error.to_string())
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load_to_plan(&args.app)?;
    let family = Family::from_app(&app);
    let mut batches = args.batches.clone();
    batches.sort_unstable();
    batches.dedup();
    let members: Vec<_> = family
        .members
        .iter()
        .filter(|member| args.variant.as_ref().is_none_or(|name| *name == member.name))
        .collect();
    if members.is_empty() {
        let names = family.members.iter().map(|member| member.name.as_str());
        bail!(
            "the app has no variant `{}`; it has {}",
            args.variant.as_deref().unwrap_or_default(),
            names.collect::<Vec<_>>().join(", ")
        );
    }
    if let (Some(partition), [member]) = (args.partition, members.as_slice()) {
        return output::print_json(&memory::here(member, partition, &batches)?);
    }
    let of = args.partitions;
    let mut progress = Progress::begin(
        "memory".to_owned(),
        (members.len() as u64) * u64::from(of),
        args.json,
    );
    let mut measured = Vec::new();
    for member in members {
        for index in 0..of {
            let partition = Partition::new(index, of)?;
            measured.push(in_subprocess(&args.app, &member.name, partition, &batches)?);
            progress.advance(1);
        }
    }
    progress.end("measured");
    if args.json {
        return output::print_json(&measured);
    }
    output::print(&as_text(&measured, &batches))
}

fn as_text(measured: &[MeasuredMemory], batches: &[u32]) -> String {
    let row = |memory: &MeasuredMemory| {
        let by_batch = memory.batches.iter().map(|batch| units::bytes(batch.bytes));
        [
            memory.variant.clone(),
            format!("{} of {}", memory.partition + 1, memory.of),
            units::count(memory.parameters),
            units::bytes(memory.loaded_bytes),
            by_batch.collect::<Vec<_>>().join(", "),
        ]
    };
    let sizes: Vec<String> = batches.iter().map(u32::to_string).collect();
    let running = format!("running batches of {}", sizes.join(", "));
    table(
        [
            ("variant", Align::Left),
            ("partition", Align::Left),
            ("weights", Align::Right),
            ("loaded", Align::Right),
            (running.as_str(), Align::Right),
        ],
        measured.iter().map(row),
    )
}

/// Measures one partition of a variant in a process of its own.
///
/// # Errors
/// When the process does not start, or with its message when it fails.
pub(crate) fn in_subprocess(
    app: &Path,
    variant: &str,
    partition: Partition,
    batches: &[u32],
) -> anyhow::Result<MeasuredMemory> {
    let batches: Vec<String> = batches.iter().map(u32::to_string).collect();
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let output = Command::new(program)
        .args(["profile", "memory"])
        .arg("--app")
        .arg(app)
        .args(["--variant", variant, "--json", "--batches", &batches.join(",")])
        .args(["--partition", &format!("{}/{}", partition.index, partition.of)])
        .output()
        .context("the process that measures memory cannot be started")?;
    ensure!(
        output.status.success(),
        "memory of `{variant}`: {}",
        problem(&String::from_utf8_lossy(&output.stderr))
    );
    serde_json::from_slice(&output.stdout)
        .context("the process that measures memory printed an invalid report")
}

/// Returns the message of the JSON error on standard error; the whole text if there is none, for instance after a crash.
fn problem(stderr: &str) -> String {
    let mut errors = stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let message = errors.find_map(|value| Some(value.get("error")?.get("message")?.as_str()?.to_owned()));
    message.unwrap_or_else(|| stderr.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_is_the_message_of_the_error_or_everything() {
        let error = "WARN slow\n{\"error\":{\"code\":null,\"message\":\"out of memory\"}}\n";
        assert_eq!(problem(error), "out of memory");
        assert_eq!(problem("Killed\n"), "Killed");
    }
}
