//! `cargo xtask faults`: injects faults into a deployment of real processes; an oracle counts what became of every request.
//!
//! | module | does |
//! |---|---|
//! | `rig` | starts a nats-server and the processes of an app |
//! | `proxy` | a TCP proxy before the server that can be silenced or closed |
//! | `monitor` | reads the subscriptions, consumers and streams of the server |
//! | `oracle` | what the test kit's oracle sends, and how it reads replies |
//! | `shipped` | the same load, sent by the client that Kaskade ships |
//! | `verdict` | the demands on a run, and its figures |
//! | `scenarios` | the faults |
//! | `soaking` | a steady load under which no resource may grow |
//! | `report` | the table, and docs/evidence/results/faults.md |

mod monitor;
mod oracle;
mod proxy;
mod report;
mod rig;
mod scenarios;
mod shipped;
pub(crate) mod soaking;
mod verdict;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use scenarios::Scenario;
use verdict::Verdict;

/// Longest time that a fault may take; the longest takes about a minute on an idle machine.
const LIMIT: Duration = Duration::from_mins(5);

/// Selects faults, and how they run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only faults whose names contain one of these.
    names: Vec<String>,
    /// List the faults and run none.
    #[arg(long)]
    list: bool,
    /// Write the results into docs/evidence/results/faults.md.
    #[arg(long)]
    write: bool,
    /// How often a fault may run until its promises hold. Some promises bound times, which a busy machine may exceed; every
    /// run is printed.
    #[arg(long, default_value = "1")]
    attempts: NonZeroU32,
}

/// Runs the faults one after the other; fails if a promise was broken.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let wanted =
        |name: &str| args.names.is_empty() || args.names.iter().any(|part| name.contains(part.as_str()));
    let chosen: Vec<_> = scenarios::all()
        .into_iter()
        .filter(|one| wanted(one.name))
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no fault has such a name; `cargo xtask faults --list` lists them"
    );
    if args.list {
        for one in &chosen {
            println!("{:<28} {}", one.name, one.what);
        }
        return Ok(());
    }
    ensure!(
        !args.write || args.names.is_empty(),
        "docs/evidence/results/faults.md holds all faults: `--write` takes no names"
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
    let skipped = rows
        .iter()
        .filter(|(_, verdict)| verdict.skipped.is_some())
        .count();
    if skipped > 0 {
        println!("!! {skipped} faults were not run");
    }
    ensure!(skipped < rows.len(), "no fault was run");
    println!("{} faults, and every promise held", rows.len() - skipped);
    Ok(())
}

fn attempt(one: &Scenario) -> anyhow::Result<Verdict> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let verdict = runtime.block_on(within(LIMIT, (one.run)()));
    runtime.shutdown_background();
    println!("{}", report::line(one, &verdict, begun.elapsed()));
    Ok(verdict)
}

/// Runs a fault to its end, for `limit` at most.
async fn within(limit: Duration, run: impl Future<Output = anyhow::Result<Verdict>>) -> Verdict {
    match tokio::time::timeout(limit, run).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Verdict::broken(format!("it could not be run: {error:#}")),
        Err(_) => Verdict::broken(format!("it did not end within {limit:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fault_that_hangs_is_broken() {
        let verdict = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(verdict.broken, ["it did not end within 1ms"]);
        let verdict = within(LIMIT, std::future::ready(Ok(Verdict::default()))).await;
        assert!(verdict.broken.is_empty());
    }
}
