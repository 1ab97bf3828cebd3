//! The plan of an app with one model.

use std::num::NonZeroU32;

use kaskade_policy::plan::{
    Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica, Sharing,
    Stage, Wiring,
};

/// Returns the plan of an app with one model, which answers every request.
pub fn single(app: &str, variant: &str, worker: &str, replicas: NonZeroU32, batching: Batching) -> Plan {
    Plan {
        version: PLAN_VERSION,
        app: app.to_owned(),
        made_by: "single".to_owned(),
        variants: vec![PlannedVariant {
            name: variant.to_owned(),
            calibration: None,
        }],
        placement: (0..replicas.get())
            .map(|index| Replica {
                id: format!("{variant}-{index}"),
                variant: variant.to_owned(),
                worker: worker.to_owned(),
                device: "cpu".to_owned(),
                partition: None,
            })
            .collect(),
        sharing: Sharing::default(),
        dropping: Dropping::None,
        slo: None,
        certificate: None,
        gears: vec![Gear {
            name: "only".to_owned(),
            load: LoadRange::ALL,
            expected: None,
            wiring: Wiring {
                entry: Edge::to(variant),
                ensemble: Vec::new(),
                stages: vec![Stage {
                    name: variant.to_owned(),
                    task: None,
                    variant: variant.to_owned(),
                    partition: None,
                    budget_us: None,
                    profiled: None,
                    exit: Exit::Reply,
                    batching,
                }],
            },
        }],
    }
}
