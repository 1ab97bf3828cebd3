//! `kaskade selftest`: checks results and speed of a device.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::ensure;
use clap::builder::PossibleValuesParser;
use kaskade::models::WeightType;
use kaskade::models::device::DeviceChoice;
use kaskade::models::power::PowerConfig;
use kaskade::models::selftest::{
    Decoded, LanguageReport, Measured, NETWORKS, Section, SelftestExtent, SelftestOptions, SelftestPart,
    SelftestReport, families, selftest,
};
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;

use crate::args::Overwrite;
use crate::output;

/// Tests a device: model families against known answers, throughput, transfers and energy readings.
///
/// Throughput is measured by batch size. The self-test needs no files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device: `cpu`, `cuda` or `cuda:1`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    /// Tests to run.
    #[arg(long, value_enum, default_value = "standard")]
    suite: Suite,
    /// Part to run; may be repeated [default: all].
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Part>,
    /// Network to time; may be repeated [default: those of the suite].
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(NETWORKS))]
    network: Vec<String>,
    /// Batch size to time; may be repeated [default: those of the suite].
    #[arg(long, value_name = "N")]
    batch: Vec<NonZeroUsize>,
    /// Type of the weights of timed networks.
    #[arg(long, value_name = "TYPE", default_value_t = WeightType::F32)]
    dtype: WeightType,
    /// Checkpoint to compare; may be repeated [default: all].
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(families()), hide_possible_values = true)]
    family: Vec<String>,
    /// Measuring time of each shape and batch size.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    measure_for: HumanDuration,
    /// Time limit of the suite; the report lists tests that did not run [default: unlimited].
    #[arg(long, value_name = "TIME")]
    limit: Option<HumanDuration>,
    /// Report file to write, JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
    /// Print the report as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Suite {
    /// Parity, the smallest network, small transfers: seconds on a CPU.
    Quick,
    /// Every network; on a CPU, at batch sizes 1, 8 and 32.
    Standard,
    /// Every network at every batch size.
    Full,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Part {
    /// Encoders and image networks against known answers.
    Parity,
    /// Language models against known answers, and their speed.
    Language,
    /// Speed of encoders and image networks.
    Throughput,
    /// Bandwidth to the device and back.
    Transfers,
}

impl From<Part> for SelftestPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Parity => Self::Parity,
            Part::Language => Self::Language,
            Part::Throughput => Self::Throughput,
            Part::Transfers => Self::Transfers,
        }
    }
}

/// Runs the suite; fails if the device does not pass.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite.check(args.out.as_deref())?;
    let options = SelftestOptions {
        device: args.device,
        extent: match args.suite {
            Suite::Quick => SelftestExtent::Quick,
            Suite::Standard => SelftestExtent::Standard,
            Suite::Full => SelftestExtent::Full,
        },
        budget: args.measure_for.duration(),
        limit: args.limit.map(HumanDuration::duration),
        power: PowerConfig::default(),
        parts: args.part.iter().copied().map(SelftestPart::from).collect(),
        networks: args.network.clone(),
        batches: args.batch.iter().map(|batch| batch.get()).collect(),
        dtype: args.dtype,
        families: args.family.clone(),
    };
    let report = selftest(&options, &mut |line| {
        if !args.quiet {
            say(line);
        }
    });
    if let Some(path) = &args.out {
        output::write_measured(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&as_text(&report))?;
    }
    ensure!(
        report.passed,
        "`{}` does not pass the self-test; the report names the failed parts",
        args.device
    );
    Ok(())
}

/// Renders a report as text.
fn as_text(report: &SelftestReport) -> String {
    let mut parts = vec![section_text("device", &report.device, |device| {
        device.description.clone()
    })];
    parts.push(section_text("parity", &report.parity, |parity| {
        let rows = parity.rows.iter().map(|row| {
            let difference = row
                .max_abs_diff
                .map_or_else(|| "-".to_owned(), |difference| format!("{difference:.1e}"));
            let verdict = match (&row.error, row.passed) {
                (Some(error), _) => error.clone(),
                (None, true) => "passed".to_owned(),
                (None, false) => "FAILED".to_owned(),
            };
            [
                row.name.to_owned(),
                row.cases.to_string(),
                difference,
                format!("{:.0e}", row.bound),
                verdict,
            ]
        });
        let heads = [
            ("family", Align::Left),
            ("cases", Align::Right),
            ("largest difference", Align::Right),
            ("allowed", Align::Right),
            ("", Align::Left),
        ];
        format!("\n{}", table(heads, rows))
    }));
    parts.push(section_text("language", &report.language, language_text));
    parts.push(section_text("throughput", &report.throughput, |throughput| {
        let rows = throughput.points.iter().map(|point| {
            let shape = format!("{} {}", point.shape.network.name, point.shape.extent);
            let figure = |text: &dyn Fn(&Measured) -> String| match &point.measured {
                Section::Done(measured) => text(measured),
                Section::Failed(reason) | Section::Skipped(reason) => reason.clone(),
            };
            [
                shape,
                point.batch.to_string(),
                figure(&|measured| units::seconds(measured.median_s)),
                figure(&|measured| format!("{:.1} /s", measured.items_per_s)),
                figure(&|measured| units::joules(measured.joules_per_item)),
            ]
        });
        let heads = [
            ("network", Align::Left),
            ("batch", Align::Right),
            ("median", Align::Right),
            ("items", Align::Right),
            ("joules/item", Align::Right),
        ];
        format!("\n{}", table(heads, rows))
    }));
    parts.push(section_text("transfers", &report.transfers, |transfers| {
        let rows = transfers.iter().map(|transfer| {
            let size = bytesize::ByteSize::b(transfer.bytes as u64)
                .display()
                .iec()
                .to_string();
            [
                format!("{:?}", transfer.direction),
                size,
                units::seconds(transfer.median_s),
                format!("{:.2} GB/s", transfer.bytes_per_s / 1e9),
                if transfer.intact { "intact" } else { "CORRUPT" }.to_owned(),
            ]
        });
        let heads = [
            ("direction", Align::Left),
            ("size", Align::Right),
            ("median", Align::Right),
            ("bandwidth", Align::Right),
            ("", Align::Left),
        ];
        format!("\n{}", table(heads, rows))
    }));
    parts.push(section_text("energy", &report.energy, |energy| {
        format!(
            "{} ({})",
            units::joules(energy.total.joules_total),
            energy.total.source
        )
    }));
    let verdict = if report.passed { "passed" } else { "FAILED" };
    parts.push(format!("{verdict} in {}", units::seconds(report.seconds)));
    parts.join("\n")
}

/// Renders the tables of the language engine.
fn language_text(language: &LanguageReport) -> String {
    let rows = language.rows.iter().map(|row| {
        let verdict = match (&row.error, row.passed) {
            (Some(error), _) => error.clone(),
            (None, true) => "passed".to_owned(),
            (None, false) => "FAILED".to_owned(),
        };
        [
            row.name.to_owned(),
            row.max_abs_diff
                .map_or_else(|| "-".to_owned(), |difference| format!("{difference:.1e}")),
            format!("{:.0e}", row.bound),
            format!("{} of {}", row.equal_answers, row.cases),
            format!("{} of {}", row.equal_streamed, row.cases),
            verdict,
        ]
    });
    let heads = [
        ("decoder", Align::Left),
        ("largest difference", Align::Right),
        ("allowed", Align::Right),
        ("equal answers", Align::Right),
        ("streamed", Align::Right),
        ("", Align::Left),
    ];
    let parity = table(heads, rows);
    let rows = language.decoding.iter().map(|point| {
        let figure = |text: &dyn Fn(&Decoded) -> String| match &point.measured {
            Section::Done(decoded) => text(decoded),
            Section::Failed(reason) | Section::Skipped(reason) => reason.clone(),
        };
        [
            point.network.to_owned(),
            point.batch.to_string(),
            figure(&|decoded| units::seconds(decoded.step_s)),
            figure(&|decoded| format!("{:.1} /s", decoded.tokens_per_s)),
            figure(&|decoded| format!("{:.1} GB/s", decoded.weight_bytes_per_s / 1e9)),
        ]
    });
    let heads = [
        ("decoding with", Align::Left),
        ("batch", Align::Right),
        ("step", Align::Right),
        ("tokens", Align::Right),
        ("weights read", Align::Right),
    ];
    format!("\n{parity}\n{}", table(heads, rows))
}

/// Renders a section, or the reason why it is missing.
fn section_text<T>(name: &str, section: &Section<T>, text: impl Fn(&T) -> String) -> String {
    match section {
        Section::Done(result) => format!("{name}: {}", text(result)),
        Section::Failed(reason) => format!("{name}: FAILED: {reason}"),
        Section::Skipped(reason) => format!("{name}: not run: {reason}"),
    }
}
