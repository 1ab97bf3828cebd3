//! `cargo xtask faults`: every fault that a deployment meets, made for real, and an oracle that counts what became of every request.
//!
//! | module | does |
//! |---|---|
//! | `rig` | starts a nats-server and processes of an app, and kills, stops and drains them |
//! | `proxy` | a wire to the server that can be cut |
//! | `monitor` | asks the server what it holds for its clients |
//! | `oracle` | sends requests, and demands one terminal reply each within its budget |
//! | `verdict` | what is demanded of a run, and what it showed |
//! | `scenarios` | the faults |
//! | `report` | the table, and docs/reliability.md |

mod monitor;
mod oracle;
mod proxy;
mod report;
mod rig;
mod scenarios;
pub(crate) mod soaking;
mod verdict;

use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::{bail, ensure};

use scenarios::Scenario;
use verdict::Verdict;

/// What is run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only faults whose names contain one of these.
    names: Vec<String>,
    /// Name them, and run none.
    #[arg(long)]
    list: bool,
    /// Write what was seen into docs/reliability.md.
    #[arg(long)]
    write: bool,
    /// How often a fault may be run until its promises hold. Some are about time, and a machine that others share can stand still
    /// for longer than they allow; every run is printed.
    #[arg(long, default_value = "1")]
    attempts: NonZeroU32,
}

/// Runs them one after the other; fails if any promise was broken.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let wanted =
        |name: &str| args.names.is_empty() || args.names.iter().any(|part| name.contains(part.as_str()));
    let chosen: Vec<_> = scenarios::all()
        .into_iter()
        .filter(|one| wanted(one.name))
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no fault is called so; `cargo xtask faults --list` names them"
    );
    if args.list {
        for one in &chosen {
            println!("{:<28} {}", one.name, one.what);
        }
        return Ok(());
    }
    ensure!(
        !args.write || args.names.is_empty(),
        "docs/reliability.md holds all faults; leave the names out"
    );
    let mut rows = Vec::new();
    for one in chosen {
        let mut verdict = attempt(&one)?;
        for _ in 1..args.attempts.get() {
            if verdict.broken.is_empty() {
                break;
            }
            verdict = attempt(&one)?;
        }
        rows.push((one, verdict));
    }
    if args.write {
        report::write(&rows)?;
    }
    let broken = rows
        .iter()
        .filter(|(_, verdict)| !verdict.broken.is_empty())
        .count();
    if broken > 0 {
        bail!("{broken} of {} faults broke a promise", rows.len());
    }
    println!("{} faults, and every promise held", rows.len());
    Ok(())
}

fn attempt(one: &Scenario) -> anyhow::Result<Verdict> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let verdict = runtime
        .block_on((one.run)())
        .unwrap_or_else(|error| Verdict::broken(format!("it could not be run: {error:#}")));
    runtime.shutdown_background();
    println!("{}", report::line(one, &verdict, begun.elapsed()));
    Ok(verdict)
}
