//! `kaskade profile channels`: measures transfer times between stages, for `kaskade plan placement`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::scalar::ByteSize;
use kaskade_app::measure::channels;
use kaskade_app::measure::host_load::{self, HostLoad};
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving;
use kaskade_planners::placement::{Channel, Channels};
use kaskade_policy::linear_fit::LinearFit;

use crate::args::Overwrite;
use crate::failure::Usage;
use crate::output;

/// Bytes per second that no copy reaches.
const UNSEEN: f64 = 1e13;

/// Measures the transfer time of messages between stages, by size.
///
/// Channels are within a process, between processes of this host over a broker, and over the network to the nats-server given by
/// `--network`. `kaskade plan placement --channels` reads the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the nats-server on this host [default: an embedded broker].
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// URL of a nats-server on another host [default: figures of a typical network].
    #[arg(long, value_name = "URL")]
    network: Option<String>,
    /// Largest message; sizes above the broker's limit are skipped.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    max_size: ByteSize,
    /// Messages of each size, of which the median is reported.
    #[arg(long, value_name = "N", default_value = "200")]
    rounds: NonZeroU32,
    /// Channels file to write.
    #[arg(long, value_name = "FILE", default_value = "channels.json")]
    out: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print the channels as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures, writes and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite.check([args.out.as_path()])?;
    let host = HostLoad::begin();
    let measured = serving::runtime()?.block_on(measure(args))?;
    if let Some(warning) = host_load::warning(host.other_processes_share()) {
        say(&warning);
    }
    output::write_measured(&args.out, &(serde_json::to_string_pretty(&measured)? + "\n"))?;
    if args.json {
        return output::print_json(&measured);
    }
    output::print(&as_text(&measured))?;
    output::print(&format!("\nwritten to {}", args.out.display()))
}

async fn measure(args: &Args) -> anyhow::Result<Channels> {
    let largest = usize::try_from(args.max_size.bytes()).unwrap_or(usize::MAX);
    let sizes = channels::sizes(largest);
    anyhow::ensure!(
        !sizes.is_empty(),
        Usage::new("`--max-size` must be at least 256 bytes")
    );
    let rounds = args.rounds.get() as usize;
    let bus = |url: Option<&String>| BusConfig {
        url: url.cloned(),
        ..BusConfig::new("channels")
    };
    let same_device = channels::in_process(&sizes, rounds).await?;
    let same_host = channels::over_broker(bus(args.nats.as_ref()), &sizes, rounds).await?;
    let network = if let Some(url) = &args.network {
        channels::over_broker(bus(Some(url)), &sizes, rounds)
            .await
            .with_context(|| format!("over the network, at {url}"))?
    } else {
        say("without `--network`, the network is assumed: 300 us and 10 Gbit/s");
        Channels::stated().network
    };
    Ok(Channels {
        same_device,
        same_host,
        network,
    })
}

fn as_text(measured: &Channels) -> String {
    let ways = [
        ("within a process", &measured.same_device),
        ("on this host", &measured.same_host),
        ("over the network", &measured.network),
    ];
    table(
        [
            ("channel", Align::Left),
            ("sizes", Align::Right),
            ("latency", Align::Right),
            ("bandwidth", Align::Right),
            ("R^2", Align::Right),
            ("largest message", Align::Right),
        ],
        ways.map(|(name, channel)| row(name, channel)),
    )
}

fn row(name: &str, channel: &Channel) -> [String; 6] {
    // A message that is passed without a copy takes the same time at every size.
    let per_second = |rate: f64| {
        if rate.is_finite() && (0.0..UNSEEN).contains(&rate) {
            format!("{}/s", units::bytes(rate as u64))
        } else {
            "unlimited".to_owned()
        }
    };
    match channel {
        Channel::Given {
            latency_s,
            bytes_per_s,
        } => [
            name.to_owned(),
            "assumed".to_owned(),
            units::seconds(*latency_s),
            per_second(*bytes_per_s),
            "-".to_owned(),
            "-".to_owned(),
        ],
        Channel::Measured { samples } => {
            let line = LinearFit::of(samples.iter().map(|sample| (sample.bytes, sample.seconds)));
            let last = samples.last().map_or(0.0, |sample| sample.seconds);
            [
                name.to_owned(),
                samples.len().to_string(),
                line.as_ref()
                    .map_or_else(String::new, |line| units::seconds(line.intercept)),
                line.as_ref()
                    .map_or_else(String::new, |line| per_second(line.slope.recip())),
                line.map_or_else(String::new, |line| format!("{:.3}", line.r2)),
                units::seconds(last),
            ]
        }
    }
}
