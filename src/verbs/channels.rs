//! `kaskade channels`: how long messages take from stage to stage, for `kaskade plan placement`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::scalar::Size;
use kaskade_app::measure::channels;
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::{self, units};
use kaskade_app::serving;
use kaskade_planners::placement::{Channel, Channels};
use kaskade_policy::fit::LinearFit;

use crate::output;

/// Bytes per second that no copying reaches.
const UNSEEN: f64 = 1e13;

/// Measures how long a message takes from stage to stage, by its size: inside a process, between processes of this host over a broker,
/// and over the network where a nats-server there is named. `kaskade plan placement --channels` reads what it writes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nats-server of this host. Without one, the small broker of this process.
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// A nats-server over the network; its channel is stated and not measured where absent.
    #[arg(long, value_name = "URL")]
    network: Option<String>,
    /// The largest message; what a broker does not carry whole is left out.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    largest: Size,
    /// Messages of each size; their median counts.
    #[arg(long, value_name = "N", default_value = "200")]
    rounds: NonZeroU32,
    /// Where to write the channels.
    #[arg(long, value_name = "FILE", default_value = "channels.json")]
    out: PathBuf,
    /// Print the channels as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures, writes and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let measured = serving::runtime()?.block_on(measure(args))?;
    report::write_file(&args.out, &(serde_json::to_string_pretty(&measured)? + "\n"))?;
    if args.json {
        return output::print_json(&measured);
    }
    output::print(&as_text(&measured))?;
    output::print(&format!("\nwritten to {}", args.out.display()))
}

async fn measure(args: &Args) -> anyhow::Result<Channels> {
    let largest = usize::try_from(args.largest.bytes()).unwrap_or(usize::MAX);
    let sizes = channels::sizes(largest);
    anyhow::ensure!(!sizes.is_empty(), "`--largest` must be at least 256 bytes");
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
        say("no `--network`: its channel is stated, 300 us and 10 Gbit/s");
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
            ("of no size", Align::Right),
            ("on top of that", Align::Right),
            ("R^2", Align::Right),
            ("the largest took", Align::Right),
        ],
        ways.map(|(name, channel)| row(name, channel)),
    )
}

fn row(name: &str, channel: &Channel) -> [String; 6] {
    // What is handed over and not copied takes no longer the larger it is.
    let per_second = |rate: f64| {
        if rate.is_finite() && (0.0..UNSEEN).contains(&rate) {
            format!("{}/s", units::bytes(rate as u64))
        } else {
            "nothing".to_owned()
        }
    };
    match channel {
        Channel::Given {
            latency_s,
            bytes_per_s,
        } => [
            name.to_owned(),
            "stated".to_owned(),
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
