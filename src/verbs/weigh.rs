//! `kaskade weigh`: what a model, or a slice of it, takes of its device's memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use kaskade::models::Slice;
use kaskade_app::config::App;
use kaskade_app::family::Family;
use kaskade_app::measure::memory::{self, Weighed};
use kaskade_app::report::progress::Progress;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;

use crate::output;

/// Measures the memory of an app's variants by batch size, whole or cut by layers, each in a process of its own. Requests are made up, as
/// long as the model takes them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// A variant; all of them where absent.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Partitions to cut it into.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    partitions: u32,
    /// Batch sizes to measure.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batches: Vec<u32>,
    /// One slice, measured in this very process: its place, from 0, and how many there are.
    #[arg(long, value_name = "INDEX/OF", hide = true, requires = "variant", value_parser = slice)]
    slice: Option<Slice>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn slice(text: &str) -> Result<Slice, String> {
    let numbers = text
        .split_once('/')
        .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    let (index, of) = numbers.ok_or("expected INDEX/OF, such as 0/2")?;
    Slice::new(index, of).map_err(|error| error.to_string())
}

/// Measures and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    let family = Family::of(&app);
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
    if let (Some(slice), [member]) = (args.slice, members.as_slice()) {
        return output::print_json(&memory::here(member, slice, &batches)?);
    }
    let of = usize::try_from(args.partitions).context("more partitions than this machine counts")?;
    let mut progress = Progress::begin("memory".to_owned(), (members.len() * of) as u64, args.json);
    let mut weighed = Vec::new();
    for member in members {
        for index in 0..of {
            let slice = Slice::new(index, of)?;
            weighed.push(apart(&args.app, &member.name, slice, &batches)?);
            progress.advance(1);
        }
    }
    progress.end("measured");
    if args.json {
        return output::print_json(&weighed);
    }
    output::print(&as_text(&weighed, &batches))
}

fn as_text(weighed: &[Weighed], batches: &[u32]) -> String {
    let row = |weighed: &Weighed| {
        let by_batch = weighed
            .batches
            .iter()
            .map(|measured| units::bytes(measured.bytes));
        [
            weighed.variant.clone(),
            format!("{} of {}", weighed.slice + 1, weighed.of),
            units::count(weighed.parameters),
            units::bytes(weighed.loaded_bytes),
            by_batch.collect::<Vec<_>>().join(", "),
        ]
    };
    let sizes: Vec<String> = batches.iter().map(u32::to_string).collect();
    let running = format!("running batches of {}", sizes.join(", "));
    table(
        [
            ("variant", Align::Left),
            ("slice", Align::Left),
            ("weights", Align::Right),
            ("loaded", Align::Right),
            (running.as_str(), Align::Right),
        ],
        weighed.iter().map(row),
    )
}

/// Measures one slice of a variant in a process that does nothing else.
///
/// # Errors
/// What that process says.
pub(crate) fn apart(app: &Path, variant: &str, slice: Slice, batches: &[u32]) -> anyhow::Result<Weighed> {
    let batches: Vec<String> = batches.iter().map(u32::to_string).collect();
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let told = Command::new(program)
        .arg("weigh")
        .arg("--app")
        .arg(app)
        .args(["--variant", variant, "--json", "--batches", &batches.join(",")])
        .args(["--slice", &format!("{}/{}", slice.index(), slice.of())])
        .output()
        .context("a process to measure memory in cannot be started")?;
    let said = String::from_utf8_lossy(&told.stderr);
    // It says who it is, as this process will.
    let said = said.trim();
    let said = said.strip_prefix("kaskade: ").unwrap_or(said);
    ensure!(told.status.success(), "memory of `{variant}`: {said}");
    serde_json::from_slice(&told.stdout).context("the process that measured memory said something else")
}
