//! The inputs of a placement, and their consequences for any cluster.

use super::error::PlacementError;
use super::options::PlacementOptions;
use super::problem::{Cluster, excess};
use super::shapes::{Models, ReplicaPartition};
use super::solve::Solved;

/// A combination that carries a load, with the placement that shows it.
pub(super) type FeasiblePartition = (ReplicaPartition, Solved);

/// The inputs of a placement.
pub(super) struct Case<'a> {
    pub(super) models: Models<'a>,
    pub(super) options: &'a PlacementOptions,
}

impl Case<'_> {
    /// Most partitions of a model on a cluster.
    pub(super) fn partitions(&self, cluster: &Cluster, model: usize) -> u32 {
        let most = self.models.most.get(model).copied().unwrap_or(1);
        most.min(u32::try_from(cluster.devices.len()).unwrap_or(u32::MAX))
    }

    /// The fewest partitions of every model that fit a device, if one copy of each fits the cluster.
    pub(super) fn fits_at_all(&self, cluster: &Cluster) -> Result<Vec<u32>, PlacementError> {
        let largest = cluster.largest_memory();
        let (mut fewest, mut needed) = (Vec::new(), 0.0);
        for (model, curves) in self.models.curves.iter().enumerate() {
            let (alone, most) = (curves.memory.held(1.0), self.partitions(cluster, model));
            needed += alone;
            let fits = |partitions: &u32| excess(alone / f64::from(*partitions), largest) <= 0.0;
            let Some(partitions) = (1..=most).find(fits) else {
                return Err(PlacementError::TooLarge {
                    variant: curves.variant.clone(),
                    partitions: most,
                    needed_bytes: alone / f64::from(most),
                    device_bytes: largest as u64,
                });
            };
            fewest.push(partitions);
        }
        if excess(needed, cluster.memory()) > 0.0 {
            return Err(PlacementError::NoMemory {
                needed_bytes: needed,
                device_bytes: cluster.memory(),
                devices: cluster.devices.len(),
            });
        }
        Ok(fewest)
    }
}
