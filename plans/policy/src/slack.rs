//! How long the rest of a path takes after each stage of a wiring, for dropping by slack
//! ([`Dropping::Slack`](crate::plan::Dropping::Slack)).
//!
//! The slack of a request is the time until its answer must be ready, less the time of every task that it still has to pass. A budget for
//! each task apart, as Loki's, drops requests that an earlier task has made time for, and keeps ones that a later task has no time for.

use std::collections::BTreeMap;

use crate::plan::{Edge, Exit, Plan, Stage, Target, Wiring};

/// Returns the time after each stage of a wiring until the answer, by the place of the stage, microseconds.
///
/// It is the time of the longest way: for every edge on it, one message of `hop_us` and the profiled batch of the variant that runs
/// next, weighed by the shares of the edge's replicas. Queues are not in it: that is what slack is for. A stage without a profile takes no
/// time.
pub fn remaining_times_us(plan: &Plan, wiring: &Wiring, hop_us: u64) -> Vec<u64> {
    let variants: BTreeMap<&str, &str> = plan
        .placement
        .iter()
        .map(|replica| (replica.id.as_str(), replica.variant.as_str()))
        .collect();
    let places: BTreeMap<&str, usize> = wiring
        .stages
        .iter()
        .enumerate()
        .map(|(place, stage)| (stage.name.as_str(), place))
        .collect();
    let mut after = vec![0; wiring.stages.len()];
    // Edges lead to later stages.
    for (place, stage) in wiring.stages.iter().enumerate().rev() {
        let from = |stage: &Stage| {
            let rest = places
                .get(stage.name.as_str())
                .and_then(|place| after.get(*place));
            run_us(stage).saturating_add(rest.copied().unwrap_or(0))
        };
        let edge_us = |edge: &Edge| hop_us.saturating_add(mean_us(wiring, edge, &variants, from));
        let longest = edges(&stage.exit).into_iter().map(edge_us).max().unwrap_or(0);
        if let Some(after) = after.get_mut(place) {
            *after = longest;
        }
    }
    after
}

/// Profiled time of a batch at a stage, microseconds; 0 without a profile.
fn run_us(stage: &Stage) -> u64 {
    stage.profiled.map_or(0, |profiled| profiled.run_us)
}

/// Mean time of the stages that an edge leads to, by its shares, microseconds.
fn mean_us(wiring: &Wiring, edge: &Edge, variants: &BTreeMap<&str, &str>, us: impl Fn(&Stage) -> u64) -> u64 {
    let (mut sum, mut shares) = (0.0, 0.0);
    for (replica, share) in &edge.shares {
        let variant = variants.get(replica.as_str());
        if let Some(stage) = variant.and_then(|variant| wiring.stage_for(edge, variant)) {
            sum += share * us(stage) as f64;
            shares += share;
        }
    }
    if shares > 0.0 {
        return (sum / shares) as u64;
    }
    let named = wiring.stages.iter().find(|stage| stage.name == edge.stage);
    named.map_or(0, us)
}

fn edges(exit: &Exit) -> Vec<&Edge> {
    match exit {
        Exit::Reply => Vec::new(),
        Exit::Next { to } => vec![to],
        Exit::FanOut { children } => children.iter().map(|child| &child.to).collect(),
        Exit::Bands { bands } => bands
            .iter()
            .filter_map(|band| match &band.to {
                Target::Reply => None,
                Target::Stage(edge) => Some(edge),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Child, Profiled};

    /// A detector, and two tasks behind it of which the second has a slow and a fast variant.
    fn plan() -> Plan {
        let mut plan = Plan::cascade("traffic")
            .stage("detect", "detect")
            .below(0.5)
            .then("cars", "cars")
            .below(0.5)
            .then("faces-slow", "faces-slow")
            .below(0.5)
            .then("faces-fast", "faces-fast")
            .build_unchecked();
        let wiring = &mut plan.gears[0].wiring;
        let tasks = [("detect", 10), ("cars", 20), ("faces", 40), ("faces", 8)];
        for (stage, (task, run_us)) in wiring.stages.iter_mut().zip(tasks) {
            stage.task = Some(task.to_owned());
            stage.profiled = Some(Profiled {
                run_us,
                accuracy: 0.9,
            });
            stage.exit = Exit::Reply;
        }
        let ids: BTreeMap<String, String> = plan
            .placement
            .iter()
            .map(|replica| (replica.variant.clone(), replica.id.clone()))
            .collect();
        let faces = Edge {
            shares: BTreeMap::from([
                (ids["faces-slow"].clone(), 0.25),
                (ids["faces-fast"].clone(), 0.75),
            ]),
            ..Edge::to("faces-slow")
        };
        let child = |to| Child {
            to,
            multiplicity: 1.0,
        };
        wiring.stages[0].exit = Exit::FanOut {
            children: vec![child(Edge::to("cars")), child(faces)],
        };
        plan
    }

    #[test]
    fn the_longest_way_counts_by_the_shares_of_its_edge() {
        let plan = plan();
        assert_eq!(
            remaining_times_us(&plan, &plan.gears[0].wiring, 0),
            [20, 0, 0, 0],
            "the cars take longer than 16"
        );
        let mut slower = plan.clone();
        slower.gears[0].wiring.stages[2].profiled = Some(Profiled {
            run_us: 400,
            accuracy: 0.9,
        });
        assert_eq!(
            remaining_times_us(&slower, &slower.gears[0].wiring, 5),
            [111, 0, 0, 0]
        );
    }
}
