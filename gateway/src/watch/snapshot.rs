//! What the dashboard shows of an app, as JSON.

use std::collections::BTreeSet;

use kaskade_policy::plan::{Edge, Exit, Gear, Target};
use serde_json::{Value, json};

use super::{SILENT, State, Ways};

/// Replicas that are listed one by one; the others are counted.
const LISTED: usize = 2_000;

impl State {
    /// Returns the snapshot of an app.
    pub(super) fn snapshot(&self, app: &str) -> String {
        let ways = self.recent_ways();
        let history: Vec<_> = self.history.iter().collect();
        json!({
            "app": app,
            "look": self.look,
            "plan": self.plan(&ways),
            "replicas": self.replicas(),
            "history": history,
            "shifts": self.shifts,
            "errors": self.errors.iter().rev().collect::<Vec<_>>(),
            "last_error": self.last_error,
            "mean_confidence": (ways.confidence.1 > 0).then(|| ways.confidence.0 / ways.confidence.1 as f64),
            "exits": ways.exits,
        })
        .to_string()
    }

    fn plan(&self, ways: &Ways) -> Value {
        let Some((epoch, plan)) = &self.plan else {
            return Value::Null;
        };
        let current = self.look.as_ref().and_then(|look| look.gear).unwrap_or(0);
        let gears = plan.gears.iter().map(|gear| {
            json!({
                "name": gear.name,
                "from_qps": gear.load.from_qps,
                "to_qps": gear.load.to_qps,
                "expected": gear.expected,
            })
        });
        let gear = plan.gear(current).or_else(|| plan.gears.first());
        json!({
            "epoch": epoch,
            "made_by": plan.made_by,
            "certificate": plan.certificate,
            "gear": current,
            "gears": gears.collect::<Vec<_>>(),
            "stages": gear.map(stages),
            "edges": gear.map(|gear| edges(gear, ways)),
        })
    }

    fn replicas(&self) -> Value {
        let unavailable: BTreeSet<&String> = self.unavailable.values().flatten().collect();
        let mut rows = Vec::new();
        let mut more = 0_usize;
        for heard in self.actors.values() {
            let silent = heard.at.elapsed() >= SILENT;
            for replica in &heard.beat.replicas {
                if rows.len() >= LISTED {
                    more += 1;
                    continue;
                }
                let state = if silent {
                    "silent"
                } else if heard.beat.leaving {
                    "leaving"
                } else if unavailable.contains(&replica.id) {
                    "unavailable"
                } else {
                    "live"
                };
                // An array, because there may be thousands.
                rows.push(json!([
                    replica.id,
                    replica.variant,
                    heard.beat.actor,
                    state,
                    replica.queue,
                    replica.in_flight
                ]));
            }
        }
        // Ingresses send states, not heartbeats.
        let ingresses = self.unavailable.len();
        json!({"rows": rows, "more": more, "ingresses": ingresses})
    }
}

fn stages(gear: &Gear) -> Vec<Value> {
    let stages = gear.wiring.stages.iter().map(|stage| {
        json!({
            "name": stage.name,
            "variant": stage.variant,
            "task": stage.task,
            "profiled_accuracy": stage.profiled.map(|profiled| profiled.accuracy),
            "max_batch": stage.batching.max_batch,
        })
    });
    stages.collect()
}

/// Returns the edges of a wiring: from, to, the range of confidence that takes them, and the requests of the last seconds that did.
fn edges(gear: &Gear, ways: &Ways) -> Vec<Value> {
    let mut edges = Vec::new();
    let mut add = |from: &str, to: &Edge, below: Option<(f64, f64)>| {
        let key = (from.to_owned(), to.stage.clone());
        edges.push(json!({
            "from": from,
            "to": to.stage,
            "band": below.map(|(from, until)| [from, until]),
            "count": ways.edges.get(&key).copied().unwrap_or(0),
        }));
    };
    for edge in gear.wiring.members() {
        add("", edge, None);
    }
    for stage in &gear.wiring.stages {
        match &stage.exit {
            Exit::Bands { bands } => {
                for (index, band) in bands.iter().enumerate() {
                    let until = bands.get(index + 1).map_or(1.0, |next| next.from);
                    if let Target::Stage(to) = &band.to {
                        add(&stage.name, to, Some((band.from, until)));
                    }
                }
            }
            Exit::FanOut { children } => children
                .iter()
                .for_each(|child| add(&stage.name, &child.to, None)),
            Exit::Next { to } => add(&stage.name, to, None),
            Exit::Reply => {}
        }
    }
    edges
}
