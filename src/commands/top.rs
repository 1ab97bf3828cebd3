//! `kaskade top`: shows a running app, on a terminal as a dashboard.
//!
//! | module | holds |
//! |---|---|
//! | [`feed`] | what the app's processes publish at its broker |
//! | [`view`] | what is known of the app at one moment |
//! | [`screen`] | the dashboard: pages, drawn from a view |
//! | [`terminal`] | the terminal: keys, drawing, leaving it as it was |
//! | [`plain`] | the plain form, for scripts and pipes |

mod feed;
mod plain;
mod screen;
mod terminal;
mod view;

use std::io::IsTerminal as _;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::ensure;
use kaskade_actors::{Code, Fault};
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::serving;

use self::feed::{Event, Feed};
use self::screen::Key;
use self::terminal::Terminal;
use self::view::View;
use crate::app_address::{Target, TargetArgs};
use crate::args::Broker;
use crate::failure::Usage;
use crate::output;

/// First refreshes, which are not shown: a rate needs two reports, and the ingresses are asked at every refresh.
const WARM_UP: u32 = 2;

/// Time without any message of the app after which it counts as absent: its processes send ten heartbeats per second.
const ABSENT: Duration = Duration::from_secs(3);

/// Shows a live dashboard of a running app.
///
/// It has requests per second, latency, the stages with their thresholds and the share of every edge, energy and cost per request (idle
/// processes included), and the load, queue and power of every variant and replica. Tab and the arrow keys move through it; q quits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Time between two refreshes.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: HumanDuration,
    /// Number of refreshes [default: unlimited].
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU32>,
    /// Print tables, one refresh after the other, as without a terminal and with `TERM=dumb`.
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print every refresh as one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Form of the refreshes.
enum Shown {
    Plain,
    Json,
    Screen(Box<Terminal>),
}

/// Refreshes until the number of refreshes is reached, or the user leaves.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    ensure!(
        !args.interval.duration().is_zero(),
        Usage::new("`--interval` must be above zero")
    );
    serving::runtime()?.block_on(watch(&target, args))
}

async fn watch(target: &Target, args: &Args) -> anyhow::Result<()> {
    let mut feed = Feed::subscribe(target).await?;
    let mut view = View::new(target.name());
    // A terminal without control sequences can only be written to line by line.
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let on_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !is_dumb;
    let mut shown = if args.json {
        Shown::Json
    } else if args.plain || !on_terminal {
        Shown::Plain
    } else {
        Shown::Screen(Box::new(Terminal::open()?))
    };
    // A dashboard stays: the app may start while it is open.
    let on_screen = matches!(shown, Shown::Screen(_));
    let mut is_there = false;
    let deadline = tokio::time::Instant::now() + ABSENT;
    let mut period = tokio::time::interval(args.interval.duration());
    let mut refreshes = 0_u32;
    loop {
        tokio::select! {
            event = feed.next() => match event? {
                Some(event) => {
                    // The broker reports "no responders" in the same inbox; that is not a message of the app.
                    is_there |= !matches!(event, Event::Nothing);
                    view.take(event);
                }
                None => return Ok(()),
            },
            () = tokio::time::sleep_until(deadline), if !is_there && !on_screen => {
                feed.close().await;
                return Err(absent(target.name()).into());
            }
            key = key(&mut shown) => {
                let Shown::Screen(terminal) = &mut shown else { continue };
                match key {
                    Some(Key::Leave) | None => break,
                    Some(key) => terminal.press(key),
                }
                terminal.draw(&view)?;
            }
            _ = period.tick() => {
                if !is_there && !on_screen && refreshes >= WARM_UP {
                    feed.ask().await?;
                    continue;
                }
                view.refresh();
                if refreshes > WARM_UP || on_screen {
                    show(&view, &mut shown)?;
                }
                if args.count.is_some_and(|count| refreshes >= count.get().saturating_add(WARM_UP)) {
                    break;
                }
                refreshes = refreshes.saturating_add(1);
                feed.ask().await?;
            }
        }
    }
    drop(shown);
    feed.close().await;
    Ok(())
}

/// The fault of an app from which no message arrives and of which no plan is stored.
fn absent(app: &str) -> Fault {
    let message = format!("no process serves app `{app}` on this broker; start it, or correct the name");
    Fault::new(Code::UnknownApp, message)
}

/// The next key; never without a screen.
async fn key(shown: &mut Shown) -> Option<Key> {
    match shown {
        Shown::Screen(terminal) => terminal.key().await,
        Shown::Plain | Shown::Json => {
            std::future::pending::<Duration>().await;
            None
        }
    }
}

fn show(view: &View, shown: &mut Shown) -> anyhow::Result<()> {
    match shown {
        Shown::Json => output::print(&serde_json::to_string(&view.snapshot)?),
        Shown::Plain => output::print(&format!("{}\n", plain::as_text(&view.snapshot))),
        Shown::Screen(terminal) => terminal.draw(view),
    }
}
