//! `kaskade selftest`: whether a device computes what it should, and how fast.

use anyhow::ensure;
use kaskade::config::scalar::Span;
use kaskade::models::selftest::Section;
use kaskade::models::{DeviceChoice, SelftestExtent, SelftestOptions, SelftestReport, selftest};

use crate::report::progress::say;
use crate::report::table::{Align, table};
use crate::report::{self, units};

/// Compares every family of models with known answers on a device, and measures throughput, transfers, memory and energy. Needs
/// nothing but this binary (and, for a GPU, the driver and CUDA's run-time libraries). Ends with 1 when a comparison fails.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The device: `cpu`, `cuda` or `cuda:1`.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// How much of the suite runs; `quick` takes seconds on a processor.
    #[arg(long, value_enum, default_value = "standard")]
    extent: Extent,
    /// Time for all measurements of throughput together; what is not reached by then says so.
    #[arg(long, value_name = "TIME")]
    limit: Option<Span>,
    /// Leave out the comparison with torch.
    #[arg(long)]
    no_torch: bool,
    /// Print the whole report as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Extent {
    Quick,
    Standard,
    Full,
}

/// Runs the suite and prints what came of it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut options = SelftestOptions {
        device: args.device,
        extent: match args.extent {
            Extent::Quick => SelftestExtent::Quick,
            Extent::Standard => SelftestExtent::Standard,
            Extent::Full => SelftestExtent::Full,
        },
        ..SelftestOptions::default()
    };
    options.limit = args.limit.map(|limit| limit.duration()).or(options.limit);
    if args.no_torch {
        options.python = None;
    }
    let report = selftest(&options, &mut say);
    if args.json {
        report::print_json(&report)?;
    } else {
        report::print(&as_text(&report))?;
    }
    ensure!(
        report.passed,
        "the self-test failed on {}; --json says where",
        args.device
    );
    Ok(())
}

/// The report for people: a line per family and per point of throughput.
fn as_text(report: &SelftestReport) -> String {
    let mut text = match &report.device {
        Section::Done(device) => format!("{}\n", device.description),
        Section::Failed(reason) | Section::Skipped(reason) => format!("no device: {reason}\n"),
    };
    text.push_str(&section(&report.parity, |parity| {
        table(
            [
                ("family", Align::Left),
                ("cases", Align::Right),
                ("largest difference", Align::Right),
                ("bound", Align::Right),
                ("", Align::Left),
            ],
            parity.rows.iter().map(|row| {
                let difference = row
                    .max_abs_diff
                    .map_or_else(|| "-".to_owned(), |diff| format!("{diff:.1e}"));
                let verdict = row
                    .error
                    .clone()
                    .unwrap_or_else(|| if row.passed { "ok" } else { "FAILED" }.to_owned());
                [
                    row.name.to_owned(),
                    row.cases.to_string(),
                    difference,
                    format!("{:.0e}", row.bound),
                    verdict,
                ]
            }),
        )
    }));
    text.push_str(&section(&report.throughput, |throughput| {
        table(
            [
                ("shape", Align::Left),
                ("batch", Align::Right),
                ("median", Align::Right),
                ("items/s", Align::Right),
                ("of torch's", Align::Right),
            ],
            throughput.points.iter().map(|point| {
                let (median, rate) = match &point.measured {
                    Section::Done(measured) => (
                        units::seconds(measured.median_s),
                        format!("{:.0}", measured.items_per_s),
                    ),
                    Section::Failed(reason) | Section::Skipped(reason) => (reason.clone(), "-".to_owned()),
                };
                let ratio = units::times(point.ratio_to_torch);
                [
                    point.shape.to_string(),
                    point.batch.to_string(),
                    median,
                    rate,
                    ratio,
                ]
            }),
        )
    }));
    text.push_str(if report.passed { "passed" } else { "FAILED" });
    text
}

fn section<T>(section: &Section<T>, show: impl FnOnce(&T) -> String) -> String {
    match section {
        Section::Done(done) => format!("{}\n", show(done)),
        Section::Failed(reason) => format!("failed: {reason}\n"),
        Section::Skipped(reason) => format!("left out: {reason}\n"),
    }
}
