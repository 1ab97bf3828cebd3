//! One combination of replicas and partitions: the instances, the devices, and what it costs to part them (eq. 2 to 4).
//!
//! Instances of one class, a partition of a model, are alike. Traffic between models is shared evenly, so a pair of classes gives the cost
//! of every pair of their instances; only the partitions of one copy are neighbours of each other alone.

use super::channel::Route;
use super::options::PlacementOptions;

/// Relative tolerance of sums: solvers of linear programs are no more exact than that.
pub(super) const ROUNDING: f64 = 1e-6;

/// Tolerance within which two overheads are equal.
pub(super) const SLACK: f64 = 1e-9;

/// Transfer time per period between two instances, seconds, by where they are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Costs {
    pub(super) device: f64,
    pub(super) host: f64,
    pub(super) network: f64,
}

impl Costs {
    pub(super) fn of(self, route: Route) -> f64 {
        match route {
            Route::SameDevice => self.device,
            Route::SameHost => self.host,
            Route::Network => self.network,
        }
    }
}

/// A partition of a model; its copies are its instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct InstanceClass {
    pub(super) model: usize,
    pub(super) part: u32,
    /// Number of instances.
    pub(super) copies: u32,
    /// Bytes of each.
    pub(super) memory: f64,
    /// Kernel time of each over the length of a period, on a device of speed 1.
    pub(super) work: f64,
}

/// Transfers from every instance of one class to every instance of another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) costs: Costs,
}

/// An instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) kind: usize,
    pub(super) copy: u32,
    /// The instance of the previous partition of the same copy.
    pub(super) before: Option<usize>,
    /// The instance of the next partition of the same copy.
    pub(super) after: Option<usize>,
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Device {
    pub(super) host: usize,
    pub(super) memory: f64,
    /// Work that the device may do per period: the bound on utilisation times its speed.
    pub(super) work: f64,
}

/// The devices, and which of them are on one host.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cluster {
    pub(super) devices: Vec<Device>,
    pub(super) hosts: usize,
}

impl Cluster {
    /// The first `count` devices of the options.
    pub(super) fn new(options: &PlacementOptions, count: usize) -> Self {
        let mut hosts: Vec<&str> = Vec::new();
        let mut numbers = std::collections::BTreeMap::new();
        let devices = options.devices.iter().take(count).map(|device| {
            let host = *numbers.entry(device.worker.as_str()).or_insert_with(|| {
                hosts.push(&device.worker);
                hosts.len() - 1
            });
            Device {
                host,
                memory: device.memory_bytes as f64,
                work: options.utilisation * device.speed,
            }
        });
        let devices = devices.collect();
        Self {
            devices,
            hosts: hosts.len(),
        }
    }

    pub(super) fn memory(&self) -> f64 {
        self.devices.iter().map(|device| device.memory).sum()
    }

    pub(super) fn work(&self) -> f64 {
        self.devices.iter().map(|device| device.work).sum()
    }

    pub(super) fn largest_memory(&self) -> f64 {
        self.devices
            .iter()
            .map(|device| device.memory)
            .fold(0.0, f64::max)
    }

    pub(super) fn most_work(&self) -> f64 {
        self.devices.iter().map(|device| device.work).fold(0.0, f64::max)
    }

    /// Whether no host has more than one device: then nothing ever goes over a host's bus.
    pub(super) fn is_flat(&self) -> bool {
        self.hosts == self.devices.len()
    }

    /// The connection between two devices.
    pub(super) fn route(&self, a: usize, b: usize) -> Route {
        if a == b {
            return Route::SameDevice;
        }
        let host = |device: usize| self.devices.get(device).map(|device| device.host);
        if host(a) == host(b) {
            Route::SameHost
        } else {
            Route::Network
        }
    }
}

/// One combination on a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) kinds: Vec<InstanceClass>,
    pub(super) instances: Vec<Instance>,
    pub(super) pairs: Vec<Pair>,
    /// Data that each partition of a copy sends to the next one, by model.
    pub(super) chains: Vec<Costs>,
}

impl<'a> Problem<'a> {
    /// The instances of these kinds, which are in order of models and partitions.
    pub(super) fn new(
        cluster: &'a Cluster,
        kinds: Vec<InstanceClass>,
        pairs: Vec<Pair>,
        chains: Vec<Costs>,
    ) -> Self {
        let mut instances: Vec<Instance> = Vec::new();
        let mut first_of_kind = Vec::with_capacity(kinds.len());
        for (number, kind) in kinds.iter().enumerate() {
            let first = instances.len();
            let before: Option<usize> = (kind.part > 0).then(|| first_of_kind.last().copied()).flatten();
            let same = |other: &InstanceClass| other.model == kind.model && other.part == kind.part + 1;
            let is_followed = kinds.get(number + 1).is_some_and(same);
            let copies = kind.copies as usize;
            instances.extend((0..copies).map(|copy| Instance {
                kind: number,
                copy: copy as u32,
                before: before.map(|before| before + copy),
                after: is_followed.then_some(first + copies + copy),
            }));
            first_of_kind.push(first);
        }
        Self {
            cluster,
            kinds,
            instances,
            pairs,
            chains,
        }
    }

    /// Cost of a placement, seconds of transfer per period (eq. 2). `placed` has the device of each instance.
    pub(super) fn overhead(&self, placed: &[usize]) -> f64 {
        self.edges()
            .map(|(from, to, costs)| match (placed.get(from), placed.get(to)) {
                (Some(a), Some(b)) => costs.of(self.cluster.route(*a, *b)),
                _ => f64::INFINITY,
            })
            // From 0 on, since the sum of nothing is the negative one.
            .fold(0.0, |sum, cost| sum + cost)
    }

    /// Every pair of instances of which one sends to the other, with what that costs.
    pub(super) fn edges(&self) -> impl Iterator<Item = (usize, usize, Costs)> {
        let chained = self
            .instances
            .iter()
            .enumerate()
            .filter_map(|(number, instance)| {
                let model = self.kinds.get(instance.kind)?.model;
                Some((number, instance.after?, *self.chains.get(model)?))
            });
        let paired = self.pairs.iter().flat_map(move |pair| {
            let to = self.of_kind(pair.to);
            self.of_kind(pair.from)
                .flat_map(move |from| to.clone().map(move |to| (from, to, pair.costs)))
        });
        chained.chain(paired)
    }

    /// The instances of a kind.
    pub(super) fn of_kind(&self, kind: usize) -> std::ops::Range<usize> {
        let start = self.instances.partition_point(|instance| instance.kind < kind);
        let end = self.instances.partition_point(|instance| instance.kind <= kind);
        start..end
    }

    pub(super) fn kind_of(&self, instance: usize) -> Option<&InstanceClass> {
        self.kinds.get(self.instances.get(instance)?.kind)
    }

    /// The overload of the devices, relative to their capacity, summed; 0 if the placement meets
    /// equations 3 and 4.
    pub(super) fn overload(&self, placed: &[usize]) -> f64 {
        let mut used = vec![(0.0, 0.0); self.cluster.devices.len()];
        for (instance, device) in placed.iter().enumerate() {
            if let (Some(kind), Some((memory, work))) = (self.kind_of(instance), used.get_mut(*device)) {
                *memory += kind.memory;
                *work += kind.work;
            }
        }
        let over = used.iter().zip(&self.cluster.devices);
        over.map(|((memory, work), device)| excess(*memory, device.memory) + excess(*work, device.work))
            .sum()
    }
}

/// Returns the relative excess over the limit; 0 within rounding.
pub(super) fn excess(used: f64, capacity: f64) -> f64 {
    let over = used / capacity - 1.0;
    if over > ROUNDING { over } else { 0.0 }
}
