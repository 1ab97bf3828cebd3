//! Converts a placement to a chart.

use kaskade_planners::placement::{DeviceLoad, Placement};

use super::text::bytes;
use crate::charts::deployment::{Deployment, Device, Edge, Host, Instance, Model};
use crate::report::units;

/// Returns the chart description of a placement.
pub fn of(placed: &Placement) -> Deployment {
    let models = placed.models.iter().map(|model| Model {
        name: model.variant.clone(),
        says: vec![
            format!("reach {:.1} %", 100.0 * model.reach),
            format!("R {} \u{d7} S {}", model.replicas, model.partitions),
            format!("{} each", bytes(model.memory_bytes)),
        ],
    });
    let edges = placed.flow.edges.iter().filter(|edge| edge.share > 0.0);
    Deployment {
        title: format!(
            "{}: {:.1} requests/s on {} of {} devices",
            placed.plan.app,
            placed.qps,
            placed.used(),
            placed.devices.len()
        ),
        says: format!(
            "{} of transfers per request; {}",
            units::seconds(placed.overhead_per_request_s()),
            super::proof(placed)
        ),
        models: models.collect(),
        edges: edges
            .map(|edge| Edge {
                from: edge.from,
                to: edge.to,
                says: format!("{:.1} %", 100.0 * edge.share),
            })
            .collect(),
        hosts: hosts(placed),
    }
}

/// Returns the devices grouped by worker, in order.
fn hosts(placed: &Placement) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for load in &placed.devices {
        let device = device(placed, load);
        match hosts.iter_mut().find(|host| host.name == load.worker) {
            Some(host) => host.devices.push(device),
            None => hosts.push(Host {
                name: load.worker.clone(),
                devices: vec![device],
            }),
        }
    }
    hosts
}

fn device(placed: &Placement, load: &DeviceLoad) -> Device {
    let instances = load.instances.iter().filter_map(|id| {
        let replica = placed.plan.placement.iter().find(|replica| replica.id == *id)?;
        let mut models = placed.models.iter();
        let model = models.position(|model| model.variant == replica.variant)?;
        let memory = placed.models.get(model)?.memory_bytes;
        Some(Instance {
            name: id.clone(),
            model,
            memory: memory / load.capacity_bytes.max(1) as f64,
        })
    });
    Device {
        name: load.device.clone(),
        utilisation: load.utilisation,
        instances: instances.collect(),
    }
}
