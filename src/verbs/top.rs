//! `kaskade top`: what an app is doing right now.

use std::io::IsTerminal as _;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use async_nats::{Message, service::Stats};
use futures::StreamExt as _;
use kaskade_actors::bus::Bus;
use kaskade_actors::metrics::Snapshot;
use kaskade_actors::wire::{Beat, EnergyReport, GearShift, Message as _};
use kaskade_actors::{ids, subjects};
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving;
use kaskade_app::serving::overview::{Counts, Look, ModelRow, NodeRow, Overview};

use crate::args::Broker;
use crate::output;

/// Looks that are not shown: a rate needs two reports, and the ingresses are asked at every look.
const SILENT_LOOKS: u32 = 2;

/// Shows what an app that is being served is doing: requests, latency, joules per request with idle processes included, and by
/// variant what it runs, how busy it is and what it spends. On a terminal the picture is renewed in place.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Span,
    /// Looks to show; without end where absent.
    #[arg(long, value_name = "LOOKS")]
    looks: Option<NonZeroU32>,
    /// Print every look as one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Looks and shows until it has shown enough.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    ensure!(
        args.broker.connection().url(&app).is_some(),
        "say where the app is served: give `--nats URL`, as `kaskade serve` printed it"
    );
    ensure!(!args.every.duration().is_zero(), "`--every` must be above zero");
    serving::runtime()?.block_on(watch(&app, args))
}

/// Somebody told something.
enum News {
    Beat(Message),
    Energy(Message),
    Gear(Message),
    Stats(Message),
}

async fn watch(app: &App, args: &Args) -> anyhow::Result<()> {
    let names = subjects::App::new(app.name.as_str())?;
    let bus = Bus::connect(args.broker.connection().bus(app, "top")).await?;
    let inbox = bus.client().new_inbox();
    let [_, question, _] = subjects::discovery("STATS", names.name(), &ids::unique_token())?;
    let mut news = futures::stream::select_all([
        bus.subscribe(names.beats(), None).await?.map(News::Beat).boxed(),
        bus.subscribe(names.event(subjects::event::ENERGY)?, None)
            .await?
            .map(News::Energy)
            .boxed(),
        bus.subscribe(names.gear(), None).await?.map(News::Gear).boxed(),
        bus.subscribe(inbox.as_str().into(), None)
            .await?
            .map(News::Stats)
            .boxed(),
    ]);
    let begun = Instant::now();
    let mut overview = Overview::default();
    let mut period = tokio::time::interval(args.every.duration());
    let mut looked = 0_u32;
    loop {
        tokio::select! {
            told = news.next() => match told {
                Some(told) => take(&mut overview, begun.elapsed(), told),
                None => return Ok(()),
            },
            _ = period.tick() => {
                if looked > SILENT_LOOKS {
                    show(&overview.look(names.name(), begun.elapsed()), args.json)?;
                }
                if args.looks.is_some_and(|looks| looked >= looks.get().saturating_add(SILENT_LOOKS)) {
                    bus.close().await;
                    return Ok(());
                }
                looked = looked.saturating_add(1);
                bus.publish(question.clone(), Some(inbox.as_str().into()), None, "".into()).await?;
            }
        }
    }
}

/// What cannot be read is somebody else's, or of another version: there is nothing to show of it.
fn take(overview: &mut Overview, now: std::time::Duration, news: News) {
    match news {
        News::Beat(message) => {
            if let Ok(beat) = Beat::decode(&message.payload) {
                overview.beat(now, beat);
            }
        }
        News::Energy(message) => {
            if let Ok(report) = EnergyReport::decode(&message.payload) {
                overview.energy(now, report);
            }
        }
        News::Gear(message) => {
            if let Ok(shift) = GearShift::decode(&message.payload) {
                overview.shifted(shift);
            }
        }
        News::Stats(message) => {
            if let Some((ingress, counts)) = counts(&message.payload) {
                overview.counts(now, &ingress, counts);
            }
        }
    }
}

/// What an ingress says of itself as a NATS service.
fn counts(payload: &[u8]) -> Option<(String, Counts)> {
    let stats: Stats = serde_json::from_slice(payload).ok()?;
    let endpoint = stats.endpoints.into_iter().next()?;
    let reading: Snapshot = serde_json::from_value(endpoint.data?).ok()?;
    let counts = Counts {
        arrived: reading.arrived,
        answered: reading.answered,
        errors: reading.faults.values().sum(),
        retried: reading.retried,
        processing: endpoint.processing_time,
    };
    Some((stats.id, counts))
}

fn show(look: &Look, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print(&serde_json::to_string(look)?);
    }
    let clear = if std::io::stdout().is_terminal() {
        "\x1b[H\x1b[2J"
    } else {
        ""
    };
    output::print(&format!("{clear}{}\n", as_text(look)))
}

fn as_text(look: &Look) -> String {
    let gear = look
        .gear
        .map_or_else(String::new, |gear| format!(", gear {gear}"));
    let doors = look.doors.map_or_else(
        || "no ingress tells what it does".to_owned(),
        |doors| {
            format!(
                "{:.1} requests/s came, {:.1} answered in {} on average, {:.1} errors, {:.1} sent again",
                doors.arrived_per_s,
                doors.answered_per_s,
                doors
                    .mean_latency_s
                    .map_or_else(|| "-".to_owned(), units::seconds),
                doors.errors_per_s,
                doors.retried_per_s,
            )
        },
    );
    format!(
        "{} · epoch {}{gear}\n{doors}\n{} per request, {} over all processes, idle ones too\n\n{}\n\n{}{}",
        look.app,
        look.epoch,
        units::joules(look.joules_per_request),
        watts(look.watts),
        models(&look.models),
        tokens(&look.models),
        nodes(&look.nodes),
    )
}

fn models(rows: &[ModelRow]) -> String {
    let heads = [
        ("variant", Align::Left),
        ("replicas", Align::Right),
        ("requests/s", Align::Right),
        ("batch", Align::Right),
        ("busy", Align::Right),
        ("queue", Align::Right),
        ("power", Align::Right),
        ("per request", Align::Right),
    ];
    let rows = rows.iter().map(|row| {
        [
            row.variant.clone(),
            row.replicas.to_string(),
            format!("{:.1}", row.requests_per_s),
            row.batch()
                .map_or_else(|| "-".to_owned(), |batch| format!("{batch:.1}")),
            units::percent(row.busy / row.replicas.max(1) as f64),
            row.queue.to_string(),
            watts(row.watts),
            units::joules(row.joules_per_request()),
        ]
    });
    table(heads, rows)
}

/// What language models make; nothing where there is none.
fn tokens(rows: &[ModelRow]) -> String {
    let heads = [
        ("variant", Align::Left),
        ("tokens/s", Align::Right),
        ("to the first", Align::Right),
        ("between two", Align::Right),
        ("per token", Align::Right),
    ];
    let seconds = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), units::seconds);
    let mut rows = rows.iter().filter(|row| row.tokens_per_s > 0.0).peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    let rows = rows.map(|row| {
        [
            row.variant.clone(),
            format!("{:.1}", row.tokens_per_s),
            seconds(row.made.to_first_s()),
            seconds(row.made.between_s()),
            units::joules(row.joules_per_token()),
        ]
    });
    format!("{}\n\n", table(heads, rows))
}

fn nodes(rows: &[NodeRow]) -> String {
    let heads = [
        ("process", Align::Left),
        ("cores", Align::Right),
        ("power", Align::Right),
        ("since its start", Align::Right),
        ("energy source", Align::Left),
    ];
    let rows = rows.iter().map(|row| {
        [
            row.node.clone(),
            row.cores
                .map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}")),
            watts(row.watts),
            units::joules(row.joules),
            row.source.clone(),
        ]
    });
    table(heads, rows)
}

fn watts(power: Option<f64>) -> String {
    power.map_or_else(|| "unknown".to_owned(), |power| units::prefixed(power, "W"))
}
