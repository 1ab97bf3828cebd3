//! Replicas that share a device: growth of the tail latency with their total utilisation (eq. 4).

use kaskade_app::family::Family;
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_app::report::units;
use kaskade_models::CoreShare;
use kaskade_policy::plan::Plan;

use super::Bench;
use crate::reproduction::Claim;

/// Share of a core that each replica may use, and the load of each as a share of its capacity with that share, while replicas share cores.
const SHARE: f64 = 0.25;
const LOADED: f64 = 0.7;

/// Upper bound of the utilisation of the processor's cores by all replicas together, by run.
const ASKED: [f64; 5] = [0.25, 0.5, 0.75, 1.0, 1.5];

impl Bench {
    /// Replicas of the largest variant, each held to a share of a core, ever more of them: what becomes of the tail.
    pub(super) fn colocated(&self, cores: f64) -> anyhow::Result<Claim> {
        let mut member = self.largest()?.clone();
        member.share = CoreShare::try_from(SHARE)?;
        let family = Family {
            members: vec![member.clone()],
            memory: std::collections::BTreeMap::new(),
            cores: std::collections::BTreeMap::new(),
            max_batch: 1,
        };
        let single_s = self
            .profile
            .variants
            .last()
            .and_then(|variant| variant.costs.first())
            .map_or(1e-3, |cost| cost.latency_s);
        let each_qps = LOADED * SHARE / single_s;
        let mut rows = Vec::new();
        for asked in ASKED {
            let replicas = ((asked * cores / SHARE).round() as usize).max(1);
            let plan = copies(&initial::single(&self.app, &member.name), replicas);
            let served = self.serve(&family, &plan, each_qps * replicas as f64)?;
            let tail_ms = served.figures.latency_ms.p95.unwrap_or(f64::NAN);
            let utilisation = replicas as f64 * SHARE / cores;
            say(&format!(
                "live: {replicas} replicas, utilisation {utilisation:.2}: p95 {tail_ms:.1} ms, {:.0} answers/s, errors {:?}",
                served.figures.throughput_per_s, served.figures.errors
            ));
            let refused: u64 = served.figures.errors.values().sum();
            rows.push(Row {
                utilisation,
                replicas,
                tail_ms,
                refused: refused as f64 / served.figures.sent.max(1) as f64,
            });
        }
        Ok(crowded(&rows))
    }
}

/// Returns the plan with this many replicas of its variant.
fn copies(plan: &Plan, replicas: usize) -> Plan {
    let mut plan = plan.clone();
    if let Some(first) = plan.placement.first().cloned() {
        plan.placement = (0..replicas)
            .map(|copy| {
                let mut replica = first.clone();
                replica.id = format!("{}-{copy}", first.variant);
                replica
            })
            .collect();
    }
    plan
}

/// Result of a number of replicas on one device.
struct Row {
    /// Sum of their utilisations of the device.
    utilisation: f64,
    replicas: usize,
    /// 95th percentile of the latency of answered requests, milliseconds.
    tail_ms: f64,
    /// Share of the requests that were refused because a queue was full.
    refused: f64,
}

/// Growth of the tail latency with the replicas' total utilisation, within the bound and beyond it.
fn crowded(rows: &[Row]) -> Claim {
    /// Tails within the bound may differ by this.
    const ALIKE: f64 = 2.0;
    let alone = rows.first().map_or(f64::NAN, |row| row.tail_ms);
    let worst = |within: bool, figure: fn(&Row) -> f64| {
        rows.iter()
            .filter(|row| (row.utilisation <= 0.75) == within)
            .map(figure)
            .fold(0.0, f64::max)
    };
    let (inside, beyond) = (worst(true, |row| row.tail_ms), worst(false, |row| row.tail_ms));
    let (kept, lost) = (worst(true, |row| row.refused), worst(false, |row| row.refused));
    let met = inside <= ALIKE * alone && kept == 0.0 && (beyond > ALIKE * inside || lost > 0.0);
    let described: Vec<String> = rows
        .iter()
        .map(|row| {
            let refused = if row.refused > 0.0 {
                format!(", {} refused", units::percent(row.refused))
            } else {
                String::new()
            };
            format!(
                "{:.2} ({} replicas): p95 {:.1} ms{refused}",
                row.utilisation, row.replicas, row.tail_ms
            )
        })
        .collect();
    Claim {
        name: "live: replicas that share a device keep their tail while their utilisation fits, and lose it beyond".to_owned(),
        paper: "kernel utilisation at most 1 on a device (eq. 4)".to_owned(),
        ours: format!("by the sum of utilisations: {}", described.join("; ")),
        met,
        note: if met {
            format!(
                "each replica gets its own load, {:.0} % of what it carries alone; actors, broker and clients share the cores",
                100.0 * LOADED
            )
        } else {
            format!("worst tail {inside:.1} ms up to 0.75 and {beyond:.1} ms beyond, alone {alone:.1} ms")
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_judged_on_either_side_of_the_bound() {
        let row = |utilisation, tail_ms| Row {
            utilisation,
            replicas: 1,
            tail_ms,
            refused: 0.0,
        };
        let kept = [row(0.25, 10.0), row(0.75, 12.0), row(1.5, 200.0)];
        assert!(crowded(&kept).met);
        let lost_early = [row(0.25, 10.0), row(0.75, 90.0), row(1.5, 200.0)];
        assert!(!crowded(&lost_early).met);
        let never_lost = [row(0.25, 10.0), row(0.75, 12.0), row(1.5, 13.0)];
        assert!(!crowded(&never_lost).met);
        let refused = Row {
            refused: 0.2,
            ..row(1.5, 13.0)
        };
        assert!(crowded(&[row(0.25, 10.0), refused]).met);
    }
}
