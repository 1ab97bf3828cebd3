//! Plans for the miniature: a cascade of two or three variants in one to three gears. What differs from plan to plan is what a
//! plan may change while requests are under way: wiring, bands, shares, backups and batching; and, in scenarios that move
//! replicas, which worker runs what, under which id, and which variant a stage runs.

use std::collections::BTreeMap;

use kaskade_policy::{
    confidence::{Calibration, Estimator},
    plan::{
        Band, Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica,
        Sharing, Stage, Wiring,
    },
};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::scenario::Scenario;

/// Fixed and per-request time of a batch, microseconds, by variant.
pub(crate) fn run_us(variant: &str, batch: usize) -> u64 {
    let (base, each) = match variant {
        "small" => (1_500, 300),
        "middle" => (3_000, 500),
        _ => (6_000, 800),
    };
    base + each * batch as u64
}

/// The variants of a scenario, smallest first.
pub(crate) fn variants(scenario: &Scenario) -> &'static [&'static str] {
    if scenario.skips {
        &["small", "middle", "large"]
    } else {
        &["small", "large"]
    }
}

/// Processes that host replicas: one of every variant each.
pub(crate) fn hosts(scenario: &Scenario) -> impl Iterator<Item = usize> + Clone {
    let near = scenario.near.then_some(0);
    near.into_iter().chain(scenario.ingresses..scenario.processes())
}

pub(crate) fn replica_id(variant: &str, process: usize) -> String {
    format!("{variant}-{process}")
}

/// Draws another plan.
pub(crate) fn draw(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Plan {
    let variants = variants(scenario);
    let placement = if scenario.moves {
        scattered(scenario, rng)
    } else {
        everywhere(scenario)
    };
    let names = stage_names(scenario, rng);
    let layout = Layout {
        placement: &placement,
        names: &names,
    };
    let gears = rng.random_range(1..=3_usize);
    let mut from_qps = vec![0.0];
    for _ in 1..gears {
        from_qps.push(from_qps.last().copied().unwrap_or(0.0) + rng.random_range(30.0..120.0));
    }
    Plan {
        version: PLAN_VERSION,
        app: "a".to_owned(),
        made_by: "protocol".to_owned(),
        variants: variants
            .iter()
            .map(|name| PlannedVariant {
                name: (*name).to_owned(),
                calibration: Some(Calibration::uncalibrated(Estimator::Given)),
            })
            .collect(),
        placement: placement.clone(),
        sharing: Sharing::Concurrent,
        dropping: Dropping::None,
        slo: None,
        certificate: None,
        certified: None,
        gears: (0..gears)
            .map(|index| Gear {
                name: format!("g{index}"),
                load: LoadRange {
                    from_qps: from_qps[index],
                    to_qps: from_qps.get(index + 1).copied(),
                },
                expected: None,
                wiring: wiring(
                    &layout,
                    &variants[..variants.len().saturating_sub(index).max(1)],
                    rng,
                ),
            })
            .collect(),
    }
}

/// Every variant on every host.
fn everywhere(scenario: &Scenario) -> Vec<Replica> {
    let variants = variants(scenario);
    let on = |process| {
        variants
            .iter()
            .map(move |variant| placed(replica_id(variant, process), variant, process))
    };
    hosts(scenario).flat_map(on).collect()
}

/// The device of a replica that cannot be loaded.
pub(crate) const BROKEN: &str = "broken";

/// One or two replicas of each variant, on any hosts, under ids that do not tell the variant. The second may fail to load.
fn scattered(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Vec<Replica> {
    let hosts: Vec<usize> = hosts(scenario).collect();
    let mut ids: Vec<String> = (0..8).map(|number| format!("r{number}")).collect();
    let mut placement = Vec::new();
    for variant in variants(scenario) {
        for copy in 0..rng.random_range(1..=2) {
            let id = ids.swap_remove(rng.random_range(0..ids.len()));
            let mut replica = placed(id, variant, hosts[rng.random_range(0..hosts.len())]);
            if copy == 1 && rng.random_bool(0.2) {
                // Under an id of its own: while another worker still lists the id, senders would take it for loaded.
                replica.id = format!("broken-{}", placement.len());
                BROKEN.clone_into(&mut replica.device);
            }
            placement.push(replica);
        }
    }
    placement
}

fn placed(id: String, variant: &str, process: usize) -> Replica {
    Replica::whole(id, variant, format!("w{process}"), "cpu")
}

/// The stage that runs each variant.
fn stage_names(scenario: &Scenario, rng: &mut ChaCha8Rng) -> BTreeMap<&'static str, String> {
    let variants = variants(scenario);
    let turn = if scenario.moves {
        rng.random_range(0..variants.len())
    } else {
        0
    };
    let name = |index: usize| variants[(index + turn) % variants.len()].to_owned();
    variants
        .iter()
        .enumerate()
        .map(|(index, variant)| (*variant, name(index)))
        .collect()
}

/// Stages and replicas that the wiring of a plan refers to.
struct Layout<'a> {
    placement: &'a [Replica],
    /// Name of each variant's stage.
    names: &'a BTreeMap<&'static str, String>,
}

/// A cascade of these variants; the higher the gear, the fewer of them.
fn wiring(layout: &Layout<'_>, variants: &[&str], rng: &mut ChaCha8Rng) -> Wiring {
    let stages = variants.iter().enumerate().map(|(index, variant)| {
        let later = &variants[index + 1..];
        Stage::new(
            layout.names[variant].clone(),
            *variant,
            exit(layout, later, rng),
            batching(rng),
        )
    });
    let stages = stages.collect();
    Wiring {
        entry: edge(layout, variants[0], rng),
        ensemble: Vec::new(),
        stages,
    }
}

/// The surer, the nearer: the least sure skips to the last stage.
fn exit(layout: &Layout<'_>, later: &[&str], rng: &mut ChaCha8Rng) -> Exit {
    if later.is_empty() {
        return Exit::Reply;
    }
    let step = rng.random_range(0.1..0.25);
    let mut bands: Vec<Band> = later
        .iter()
        .rev()
        .enumerate()
        .map(|(index, stage)| Band::forward(step * index as f64, edge(layout, stage, rng)))
        .collect();
    bands.push(Band::reply(step * later.len() as f64));
    Exit::Bands { bands }
}

fn edge(layout: &Layout<'_>, variant: &str, rng: &mut ChaCha8Rng) -> Edge {
    let mut edge = Edge::to(layout.names[variant].as_str());
    if rng.random_bool(0.5) {
        return edge;
    }
    let replicas = layout
        .placement
        .iter()
        .filter(|replica| replica.variant == variant);
    let replicas: Vec<String> = replicas.map(|replica| replica.id.clone()).collect();
    let weights: Vec<f64> = replicas.iter().map(|_| rng.random_range(0.2..1.0)).collect();
    let sum: f64 = weights.iter().sum();
    let shares: BTreeMap<String, f64> = replicas
        .iter()
        .cloned()
        .zip(weights.iter().map(|weight| weight / sum))
        .collect();
    edge.shares = shares;
    if rng.random_bool(0.5) {
        edge.backup = replicas;
    }
    edge
}

fn batching(rng: &mut ChaCha8Rng) -> Batching {
    Batching {
        min_queue: rng.random_range(1..=3),
        max_batch: rng.random_range(4..=8),
        max_wait_us: rng.random_range(500..4_000),
    }
}
