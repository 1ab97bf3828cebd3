//! `kaskade top`: shows rates, power and queues of a running app.

use std::io::IsTerminal as _;
use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::ensure;
use async_nats::{Message, service::Stats};
use futures::StreamExt as _;
use kaskade_actors::bus::Bus;
use kaskade_actors::metrics::Snapshot;
use kaskade_actors::wire::{Beat, EnergyReport, GearShift, Message as _, WatchReport};
use kaskade_actors::{ids, subjects};
use kaskade_app::config::scalar::Span;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving;
use kaskade_app::serving::overview::{Counts, Look, ModelRow, NodeRow, Overview};

use super::target::{Target, TargetArgs};
use crate::args::Broker;
use crate::output;

/// First refreshes, which are not shown: a rate needs two reports, and the ingresses are asked at every refresh.
const WARM_UP: u32 = 2;

/// Shows what a running app does: requests per second, latency, joules per request with idle processes included, and the load,
/// queue and power of every variant. On a terminal, each refresh replaces the last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Time between two refreshes.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Span,
    /// Number of refreshes [default: unlimited].
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU32>,
    /// Print every refresh as one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Refreshes until the number of refreshes is reached.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    ensure!(!args.every.duration().is_zero(), "`--every` must be above zero");
    serving::runtime()?.block_on(watch(&target, args))
}

/// A message of one of the app's processes.
enum News {
    Beat(Message),
    Energy(Message),
    Gear(Message),
    Certificates(Message),
    Stats(Message),
}

async fn watch(target: &Target, args: &Args) -> anyhow::Result<()> {
    let names = subjects::App::new(target.name())?;
    let bus = Bus::connect(target.client("top")).await?;
    let inbox = bus.client().new_inbox();
    let [_, question, _] = subjects::discovery("STATS", names.name(), &ids::unique_token())?;
    let mut news = futures::stream::select_all([
        bus.subscribe(names.beats(), None).await?.map(News::Beat).boxed(),
        bus.subscribe(names.event(subjects::event::ENERGY)?, None)
            .await?
            .map(News::Energy)
            .boxed(),
        bus.subscribe(names.gear(), None).await?.map(News::Gear).boxed(),
        bus.subscribe(names.event(subjects::event::WATCH)?, None)
            .await?
            .map(News::Certificates)
            .boxed(),
        bus.subscribe(inbox.as_str().into(), None)
            .await?
            .map(News::Stats)
            .boxed(),
    ]);
    let begun = Instant::now();
    let mut overview = Overview::default();
    let mut period = tokio::time::interval(args.every.duration());
    let mut refreshes = 0_u32;
    loop {
        tokio::select! {
            told = news.next() => match told {
                Some(told) => take(&mut overview, begun.elapsed(), told),
                None => return Ok(()),
            },
            _ = period.tick() => {
                if refreshes > WARM_UP {
                    show(&overview.look(names.name(), begun.elapsed()), args.json)?;
                }
                if args.count.is_some_and(|count| refreshes >= count.get().saturating_add(WARM_UP)) {
                    bus.close().await;
                    return Ok(());
                }
                refreshes = refreshes.saturating_add(1);
                bus.publish(question.clone(), Some(inbox.as_str().into()), None, "".into()).await?;
            }
        }
    }
}

/// Adds a message to the overview; ignores one that cannot be decoded, such as that of another version.
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
        News::Certificates(message) => {
            if let Ok(report) = WatchReport::decode(&message.payload) {
                overview.watched(report);
            }
        }
        News::Stats(message) => {
            if let Some((ingress, counts)) = counts(&message.payload) {
                overview.counts(now, &ingress, counts);
            }
        }
    }
}

/// Returns the id and the counters of an ingress from its statistics as a NATS service.
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
    let ingresses = look.ingresses.map_or_else(
        || "no ingress reports".to_owned(),
        |rates| {
            format!(
                "{:.1} requests/s, {:.1} answered/s in {} on average, {:.1} errors/s, {:.1} retries/s",
                rates.arrived_per_s,
                rates.answered_per_s,
                rates
                    .mean_latency_s
                    .map_or_else(|| "-".to_owned(), units::seconds),
                rates.errors_per_s,
                rates.retried_per_s,
            )
        },
    );
    format!(
        "{} · epoch {}{gear}\n{ingresses}\n{} per request, {} over all processes, idle ones included\n{}\n{}\n\n{}{}",
        look.app,
        look.epoch,
        units::joules(look.joules_per_request),
        watts(look.watts),
        look.certificates.as_ref().map_or_else(String::new, certificates),
        models(&look.models),
        tokens(&look.models),
        nodes(&look.nodes),
    )
}

/// What is known of the certificate of the cascade that runs, as a line.
fn certificates(report: &WatchReport) -> String {
    let Some(running) = report.cascades.get(report.limit as usize) else {
        return String::new();
    };
    let range = |[least, most]: [f64; 2]| format!("{} to {}", units::percent(least), units::percent(most));
    let mut parts = vec![format!(
        "certified cascade {} of {}",
        report.limit + 1,
        report.cascades.len()
    )];
    if running.audited > 0 {
        let allowed = running.may_differ.map_or_else(String::new, |most| {
            format!(", at most {} expected", units::percent(most))
        });
        parts.push(format!(
            "{} of {} audited answers differ from the largest variant's{allowed}",
            range(running.differs),
            running.audited
        ));
    }
    if running.labelled > 0 {
        parts.push(format!(
            "loss {} by {} labels, at most {} certified",
            range(running.loss),
            running.labelled,
            units::percent(running.may_lose)
        ));
    }
    if report.cascades.iter().any(|cascade| cascade.drifted) {
        parts.push("the inputs have drifted".to_owned());
    }
    format!("{}\n", parts.join("; "))
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

/// The table of language models; empty if there is none.
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
