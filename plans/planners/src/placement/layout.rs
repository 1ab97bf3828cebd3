//! A mutable placement: the device of every instance, the capacity left on every device, and the cost of a move.

use super::problem::{Costs, Instance, Problem, excess};

/// The device of an instance that is nowhere.
const NOWHERE: usize = usize::MAX;

/// A placement of some or all instances.
#[derive(Debug, Clone)]
pub(super) struct Layout<'p> {
    problem: &'p Problem<'p>,
    placed: Vec<usize>,
    /// Memory that the instances of each device need.
    memory: Vec<f64>,
    work: Vec<f64>,
    /// Instances of each device, and each instance's index there.
    hosted: Vec<Vec<usize>>,
    seat: Vec<usize>,
    /// Number of instances, by device and kind, and by host and kind.
    on_device: Vec<u32>,
    on_host: Vec<u32>,
    /// For each kind, the kinds that it exchanges data with.
    around: Vec<Vec<(usize, Costs)>>,
    used: usize,
}

impl<'p> Layout<'p> {
    /// Creates an empty layout.
    pub(super) fn new(problem: &'p Problem<'p>) -> Self {
        let devices = problem.cluster.devices.len();
        let kinds = problem.kinds.len();
        let mut around = vec![Vec::new(); kinds];
        for pair in &problem.pairs {
            for (one, other) in [(pair.from, pair.to), (pair.to, pair.from)] {
                if let Some(list) = around.get_mut(one) {
                    list.push((other, pair.costs));
                }
            }
        }
        Self {
            problem,
            placed: vec![NOWHERE; problem.instances.len()],
            memory: vec![0.0; devices],
            work: vec![0.0; devices],
            hosted: vec![Vec::new(); devices],
            seat: vec![0; problem.instances.len()],
            on_device: vec![0; devices * kinds],
            on_host: vec![0; problem.cluster.hosts * kinds],
            around,
            used: 0,
        }
    }

    /// The devices by instance.
    pub(super) fn placed(&self) -> &[usize] {
        &self.placed
    }

    /// The device of an instance.
    pub(super) fn device(&self, instance: usize) -> Option<usize> {
        self.placed
            .get(instance)
            .copied()
            .filter(|device| *device != NOWHERE)
    }

    /// The instances of a device.
    pub(super) fn hosted(&self, device: usize) -> &[usize] {
        self.hosted.get(device).map_or(&[], Vec::as_slice)
    }

    /// Devices that host something.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// The kinds that a kind has to do with.
    pub(super) fn around(&self, kind: usize) -> &[(usize, Costs)] {
        self.around.get(kind).map_or(&[], Vec::as_slice)
    }

    fn instance(&self, number: usize) -> Option<&'p Instance> {
        self.problem.instances.get(number)
    }

    /// Puts an instance that is nowhere on a device.
    pub(super) fn put(&mut self, instance: usize, device: usize) {
        self.count(instance, device, true);
        if let Some(placed) = self.placed.get_mut(instance) {
            *placed = device;
        }
        if let (Some(hosted), Some(seat)) = (self.hosted.get_mut(device), self.seat.get_mut(instance)) {
            *seat = hosted.len();
            hosted.push(instance);
            self.used += usize::from(hosted.len() == 1);
        }
    }

    /// Takes an instance away from its device.
    pub(super) fn take(&mut self, instance: usize) {
        let Some(device) = self.device(instance) else {
            return;
        };
        self.count(instance, device, false);
        if let Some(placed) = self.placed.get_mut(instance) {
            *placed = NOWHERE;
        }
        let seat = self.seat.get(instance).copied().unwrap_or(0);
        if let Some(hosted) = self.hosted.get_mut(device) {
            if seat < hosted.len() {
                hosted.swap_remove(seat);
            }
            self.used -= usize::from(hosted.is_empty());
            if let Some(moved) = hosted.get(seat)
                && let Some(place) = self.seat.get_mut(*moved)
            {
                *place = seat;
            }
        }
    }

    fn count(&mut self, instance: usize, device: usize, comes: bool) {
        let kinds = self.problem.kinds.len();
        let Some(kind) = self.instance(instance).map(|instance| instance.kind) else {
            return;
        };
        let host = self
            .problem
            .cluster
            .devices
            .get(device)
            .map_or(0, |device| device.host);
        let counts = [
            self.on_device.get_mut(device * kinds + kind),
            self.on_host.get_mut(host * kinds + kind),
        ];
        for count in counts.into_iter().flatten() {
            *count = if comes {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        }
        let needs = self
            .problem
            .kinds
            .get(kind)
            .map_or((0.0, 0.0), |kind| (kind.memory, kind.work));
        let sign = if comes { 1.0 } else { -1.0 };
        let sums = [
            (self.memory.get_mut(device), needs.0),
            (self.work.get_mut(device), needs.1),
        ];
        for (sum, need) in sums {
            if let Some(sum) = sum {
                *sum += sign * need;
            }
        }
    }

    /// Cost of placing an unplaced instance on a device, given the placed others, seconds per period. Other unplaced
    /// instances add the same on every device.
    pub(super) fn cost(&self, instance: usize, device: usize) -> f64 {
        let (Some(found), Some(at)) = (self.instance(instance), self.problem.cluster.devices.get(device))
        else {
            return 0.0;
        };
        let kinds = self.problem.kinds.len();
        let mut cost = 0.0;
        for (other, costs) in self.around(found.kind) {
            let here = self.on_device.get(device * kinds + other).copied().unwrap_or(0);
            let near = self.on_host.get(at.host * kinds + other).copied().unwrap_or(0);
            let all = self.problem.kinds.get(*other).map_or(0, |kind| kind.copies);
            let (here, near, all) = (f64::from(here), f64::from(near), f64::from(all));
            cost += here * costs.device + (near - here) * costs.host + (all - near) * costs.network;
        }
        let model = self.problem.kinds.get(found.kind).map_or(0, |kind| kind.model);
        let costs = self.problem.chains.get(model).copied().unwrap_or_default();
        for neighbour in [found.before, found.after].into_iter().flatten() {
            if let Some(other) = self.device(neighbour) {
                cost += costs.of(self.problem.cluster.route(device, other));
            }
        }
        cost
    }

    /// Relative overload of a device with an instance more or less.
    pub(super) fn excess(&self, device: usize, comes: Option<usize>, goes: Option<usize>) -> f64 {
        let needs = |instance: Option<usize>| {
            let kind = instance.and_then(|instance| self.problem.kind_of(instance));
            kind.map_or((0.0, 0.0), |kind| (kind.memory, kind.work))
        };
        let (more, less) = (needs(comes), needs(goes));
        let (Some(memory), Some(work), Some(device)) = (
            self.memory.get(device),
            self.work.get(device),
            self.problem.cluster.devices.get(device),
        ) else {
            return f64::INFINITY;
        };
        excess(memory + more.0 - less.0, device.memory) + excess(work + more.1 - less.1, device.work)
    }

    /// Returns the load of a device relative to its capacity.
    pub(super) fn fill(&self, device: usize) -> f64 {
        let (Some(memory), Some(work), Some(device)) = (
            self.memory.get(device),
            self.work.get(device),
            self.problem.cluster.devices.get(device),
        ) else {
            return 0.0;
        };
        (memory / device.memory).max(work / device.work)
    }
}
