//! The dashboard's data of an app as JSON: first a full snapshot, then the changes.
//!
//! Updates are numbered and each applies to the previous one; a reader that missed one requests a new snapshot. The
//! size of an update therefore depends on the changes, not on the number of replicas or the length of the history.

use std::collections::BTreeSet;

use kaskade_policy::plan::{Edge, Exit, Gear, Target};
use serde::Serialize;
use serde_json::{Value, json};

use super::{RouteCounts, SILENT, State};

/// Largest number of replicas listed; the others are counted.
const LISTED: usize = 2_000;

/// Largest number of errors shown.
const SHOWN_ERRORS: usize = 20;

/// A listed replica. Serialised as an array, because there may be thousands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Row(String, String, String, &'static str, u32, u32);

impl Row {
    /// Returns whether both rows are of the same replica, regardless of its state.
    fn is(&self, other: &Self) -> bool {
        (&self.0, &self.1, &self.2) == (&other.0, &other.1, &other.2)
    }
}

/// The listed replicas, and the number of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listed {
    rows: Vec<Row>,
    more: usize,
    /// Number of ingresses, which send states instead of heartbeats.
    ingresses: usize,
}

impl Listed {
    /// Returns all fields as JSON.
    fn all(&self) -> Value {
        json!({"rows": self.rows, "more": self.more, "ingresses": self.ingresses})
    }
}

impl State {
    /// Returns a snapshot, with the number of the newest update that it includes.
    pub(super) fn snapshot(&mut self, app: &str) -> (u64, String) {
        if self.listed.rows.is_empty() {
            self.listed = self.replicas();
        }
        let mut all = self.current(app);
        if let Some(fields) = all.as_object_mut() {
            let history: Vec<_> = self.history.iter().collect();
            fields.insert("history".to_owned(), json!(history));
            fields.insert("replicas".to_owned(), self.listed.all());
        }
        (self.update, all.to_string())
    }

    /// Returns the changes since the last call, with their update number.
    pub(super) fn next_update(&mut self, app: &str) -> (u64, String) {
        let now = self.replicas();
        let before = std::mem::replace(&mut self.listed, now);
        let now = &self.listed;
        let same = now.more == before.more
            && now.ingresses == before.ingresses
            && now.rows.len() == before.rows.len()
            && now
                .rows
                .iter()
                .zip(&before.rows)
                .all(|(now, before)| now.is(before));
        let mut changed = self.current(app);
        if let Some(fields) = changed.as_object_mut() {
            fields.insert("point".to_owned(), json!(self.history.back()));
            if same {
                let rows = now.rows.iter().zip(&before.rows).enumerate();
                let rows = rows.filter(|(_, (now, before))| now != before);
                let rows: Vec<Value> = rows
                    .map(|(index, (now, _))| json!([index, now.3, now.4, now.5]))
                    .collect();
                fields.insert("changed".to_owned(), rows.into());
            } else {
                fields.insert("replicas".to_owned(), now.all());
            }
        }
        self.update += 1;
        (self.update, changed.to_string())
    }

    /// Discards the state that readers know, once there are no readers.
    pub(super) fn forget_readers(&mut self) {
        self.listed = Listed::default();
    }

    /// Returns the fields of every update.
    fn current(&self, app: &str) -> Value {
        let routes = self.recent_routes();
        json!({
            "app": app,
            "snapshot": self.snapshot,
            "plan": self.plan(&routes),
            "shifts": self.shifts,
            "errors": self.errors.iter().rev().take(SHOWN_ERRORS).collect::<Vec<_>>(),
            "last_error": self.last_error,
            "mean_confidence": (routes.confidence.1 > 0).then(|| routes.confidence.0 / routes.confidence.1 as f64),
            "exits": routes.exits,
        })
    }

    fn plan(&self, routes: &RouteCounts) -> Value {
        let Some((epoch, plan)) = self.plans.admitted() else {
            return Value::Null;
        };
        let current = self.plans.gear(epoch);
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
            "edges": gear.map(|gear| edges(gear, routes)),
        })
    }

    fn replicas(&self) -> Listed {
        let unavailable: BTreeSet<&String> = self.unavailable.values().flat_map(|(_, names)| names).collect();
        let mut listed = Listed {
            ingresses: self.unavailable.len(),
            ..Listed::default()
        };
        for received in self.actors.values() {
            let silent = received.at.elapsed() >= SILENT;
            for replica in &received.beat.replicas {
                if listed.rows.len() >= LISTED {
                    listed.more += 1;
                    continue;
                }
                let state = if silent {
                    "silent"
                } else if received.beat.leaving {
                    "leaving"
                } else if replica.unavailable || unavailable.contains(&replica.id) {
                    "unavailable"
                } else {
                    "live"
                };
                listed.rows.push(Row(
                    replica.id.clone(),
                    replica.variant.clone(),
                    received.beat.actor.clone(),
                    state,
                    replica.queue,
                    replica.in_flight,
                ));
            }
        }
        listed
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

/// Returns the edges of a wiring: source, target, confidence range, and number of recent requests.
fn edges(gear: &Gear, routes: &RouteCounts) -> Vec<Value> {
    let mut edges = Vec::new();
    let mut add = |from: &str, to: &Edge, below: Option<(f64, f64)>| {
        let count = routes.edges.get(from).and_then(|edges| edges.get(&to.stage));
        edges.push(json!({
            "from": from,
            "to": to.stage,
            "band": below.map(|(from, until)| [from, until]),
            "count": count.copied().unwrap_or(0),
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

#[cfg(test)]
mod tests;
