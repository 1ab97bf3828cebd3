//! The app of the deployments and its plans: a cascade of two models.

use std::num::NonZeroU32;

use kaskade::policy::confidence::{Calibration, Estimator};
use kaskade::policy::plan::{
    Band, Batching, Edge, Exit, Gear, LoadRange, Plan, PlannedVariant, Replica, Stage, Target,
};
use kaskade_actors::plan;

/// The app that all processes serve.
pub(crate) const APP: &str = "breaking";

/// Name of the small model.
pub(crate) const SMALL: &str = "small";
/// Name of the large model.
pub(crate) const LARGE: &str = "large";

/// A cascade of two models. Each worker hosts the variants listed with it.
pub(crate) fn plan(workers: &[(&str, &[&str])]) -> Plan {
    let batching = Batching {
        min_queue: 1,
        max_batch: 8,
        max_wait_us: 1_000,
    };
    let mut plan = plan::single(APP, SMALL, "", NonZeroU32::MIN, batching);
    let stage = |name: &str, exit| Stage::new(name, name, exit, batching);
    let pass_on = Band {
        from: 0.0,
        to: Target::Stage(Edge::to(LARGE)),
    };
    let reply = Band {
        from: 0.5,
        to: Target::Reply,
    };
    plan.variants = [SMALL, LARGE].map(variant).to_vec();
    plan.placement = workers
        .iter()
        .flat_map(|(worker, variants)| variants.iter().map(|variant| replica(worker, variant)))
        .collect();
    if let Some(gear) = plan.gears.first_mut() {
        gear.wiring.stages = vec![
            stage(
                SMALL,
                Exit::Bands {
                    bands: vec![pass_on, reply],
                },
            ),
            stage(LARGE, Exit::Reply),
        ];
    }
    plan
}

/// Adds a second gear from `from_qps` on, which waits for larger batches.
pub(crate) fn geared(mut plan: Plan, from_qps: f64) -> Plan {
    let mut upper: Vec<Gear> = plan.gears.clone();
    for gear in &mut plan.gears {
        gear.load = LoadRange {
            to_qps: Some(from_qps),
            ..LoadRange::ALL
        };
    }
    for gear in &mut upper {
        "upper".clone_into(&mut gear.name);
        gear.load = LoadRange {
            from_qps,
            ..LoadRange::ALL
        };
        for stage in &mut gear.wiring.stages {
            stage.batching.min_queue = 2;
        }
    }
    plan.gears.extend(upper);
    plan
}

fn variant(name: &str) -> PlannedVariant {
    PlannedVariant {
        name: name.to_owned(),
        calibration: Some(Calibration {
            estimator: Estimator::MaxSquared,
            temperature: 1.0,
        }),
    }
}

fn replica(worker: &str, variant: &str) -> Replica {
    Replica {
        id: format!("{variant}-{worker}"),
        variant: variant.to_owned(),
        worker: worker.to_owned(),
        device: "cpu".to_owned(),
        partition: None,
        checkpoint: None,
    }
}
