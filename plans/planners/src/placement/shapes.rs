//! The combinations of replicas and partitions (lines 5 to 7 of Algorithm 3).
//!
//! Zero waiting between stages requires `(R_i S_i)` in proportion to `rho_i l_i` (§V-C). One number is free, the common
//! scale; as it grows, one `R_i` after another grows by one. So for every choice of partitions there is a line of combinations, from
//! the smallest on, and the work of an instance falls along it.

use super::curves::Curves;
use super::flow::Flow;
use super::options::PlacementOptions;
use super::problem::{Cluster, Costs, InstanceClass, Pair, ROUNDING, excess};

/// Growth of combinations per step if not every one is examined.
const STRIDE: f64 = 1.15;

/// Replicas and partitions by model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReplicaPartition {
    pub(super) replicas: Vec<u32>,
    pub(super) partitions: Vec<u32>,
}

impl ReplicaPartition {
    pub(super) fn instances(&self) -> u64 {
        let pairs = self.replicas.iter().zip(&self.partitions);
        pairs
            .map(|(replicas, partitions)| u64::from(*replicas) * u64::from(*partitions))
            .sum()
    }
}

/// The parts of combinations.
#[derive(Debug, Clone)]
pub(super) struct Models<'a> {
    pub(super) flow: &'a Flow,
    pub(super) curves: &'a [Curves],
    /// `rho_i l_i`, seconds of a device per request of the app.
    pub(super) demand: Vec<f64>,
    /// Requests of one period.
    pub(super) batch: f64,
    /// Most partitions by model.
    pub(super) most: Vec<u32>,
}

/// Combinations with the same partitions.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Line {
    /// Smallest first.
    pub(super) shapes: Vec<ReplicaPartition>,
    /// The first one after which some were left out.
    pub(super) skipped_after: Option<ReplicaPartition>,
}

/// Why the sums of a combination rule it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaks {
    /// Eq. 3.
    Memory,
    /// Eq. 4.
    Work,
}

/// The kinds and costs of a combination.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parts {
    pub(super) kinds: Vec<InstanceClass>,
    pub(super) pairs: Vec<Pair>,
    pub(super) chains: Vec<Costs>,
}

impl<'a> Models<'a> {
    pub(super) fn new(flow: &'a Flow, curves: &'a [Curves], options: &PlacementOptions) -> Self {
        let batch = f64::from(options.batch);
        let demand = flow.reach.iter().zip(curves).map(|(reach, curves)| {
            curves
                .latency
                .per_period(reach * batch, f64::from(curves.largest))
                / batch
        });
        let most = curves
            .iter()
            .map(|curves| options.most_partitions(&curves.variant));
        Self {
            demand: demand.collect(),
            batch,
            most: most.collect(),
            flow,
            curves,
        }
    }

    /// Requests of a period that each copy of a model gets: `rho_i b / R_i`.
    pub(super) fn requests(&self, model: usize, replicas: u32) -> f64 {
        let reach = self.flow.reach.get(model).copied().unwrap_or(0.0);
        reach * self.batch / f64::from(replicas.max(1))
    }

    /// Largest batch of a copy: all that it gets in a period, or as many as were measured.
    pub(super) fn largest_batch(&self, model: usize, replicas: u32) -> u32 {
        let most = self.curves.get(model).map_or(1, |curves| curves.largest);
        (self.requests(model, replicas).ceil() as u32).clamp(1, most.max(1))
    }

    /// Bytes of each partition of a copy, in its largest batch.
    pub(super) fn memory(&self, model: usize, replicas: u32, partitions: u32) -> f64 {
        let batch = f64::from(self.largest_batch(model, replicas));
        let memory = self
            .curves
            .get(model)
            .map_or(0.0, |curves| curves.memory.held(batch));
        memory / f64::from(partitions.max(1))
    }

    /// Kernel time of a copy, over all of its partitions, per period, seconds.
    pub(super) fn kernel(&self, model: usize, replicas: u32) -> f64 {
        let requests = self.requests(model, replicas);
        self.curves.get(model).map_or(0.0, |curves| {
            curves.kernel.per_period(requests, f64::from(curves.largest))
        })
    }

    /// Minimum extra cost of the hidden states of a model that no device holds, compared with one device, seconds per period: several
    /// copies send as much, in messages that are no larger.
    pub(super) fn least_cut(&self, model: usize, cluster: &Cluster) -> f64 {
        let Some(curves) = self.curves.get(model) else {
            return 0.0;
        };
        let devices = curves.memory.held(1.0) / cluster.largest_memory() * (1.0 - ROUNDING);
        let costs = costs(&curves.hidden, self.requests(model, 1), f64::from(curves.largest));
        let apart = if cluster.is_flat() {
            costs.network
        } else {
            costs.host
        };
        (devices.ceil() - 1.0).max(0.0) * (apart - costs.device)
    }

    /// Kernel time of a request of the app, over all models, in the best batches: no combination needs less, seconds.
    pub(super) fn least_kernel(&self) -> f64 {
        let models = 0..self.curves.len();
        models.map(|model| self.kernel(model, 1) / self.batch).sum()
    }

    /// The combinations with these partitions that carry the load of periods this long and fit in total, smallest first: all of them, or
    /// about `most`, the smallest one by one and the others at growing distances. `broken` receives every one that does not fit.
    pub(super) fn line(
        &self,
        partitions: &[u32],
        period_s: f64,
        cluster: &Cluster,
        most: usize,
        mut broken: impl FnMut(Breaks),
    ) -> Line {
        let mut line = Line::default();
        let mut replicas = self.smallest(partitions, period_s, cluster);
        for step in 1.. {
            let shape = ReplicaPartition {
                replicas: replicas.clone(),
                partitions: partitions.to_vec(),
            };
            match self.breaks(&shape, period_s, cluster) {
                None => line.shapes.push(shape.clone()),
                Some(why) => {
                    broken(why);
                    // More copies need more memory in sum, and work in sum does not fall.
                    if self.is_too_much(&shape, period_s, cluster) {
                        break;
                    }
                }
            }
            let Some(grows) = self.next_to_grow(&replicas, partitions) else {
                break;
            };
            if step < most.div_ceil(2) {
                if let Some(count) = replicas.get_mut(grows) {
                    *count += 1;
                }
            } else {
                self.grow_by(STRIDE, grows, &mut replicas, partitions);
                line.skipped_after.get_or_insert(shape);
            }
        }
        line
    }

    /// Everything grows by a factor, and this model by one copy at the least.
    fn grow_by(&self, factor: f64, grows: usize, replicas: &mut [u32], partitions: &[u32]) {
        let next = replicas
            .get(grows)
            .zip(partitions.get(grows))
            .zip(self.demand.get(grows));
        let Some(((copies, of), demand)) = next else {
            return;
        };
        let scale = factor * (f64::from(*copies) + 0.5) * f64::from(*of) / demand;
        let each = replicas.iter_mut().zip(partitions).zip(&self.demand);
        for ((copies, of), demand) in each {
            *copies = (*copies).max((scale * demand / f64::from(*of)).round() as u32);
        }
    }

    /// The first combination of the line in which no instance has more work than the fastest device may do.
    fn smallest(&self, partitions: &[u32], period_s: f64, cluster: &Cluster) -> Vec<u32> {
        let room = cluster.most_work();
        let models = || partitions.iter().zip(&self.demand).enumerate();
        let needed: Vec<u32> = models()
            .map(|(model, (partitions, _))| {
                let fits = |replicas: u32| {
                    let work = self.kernel(model, replicas) / period_s / f64::from(*partitions);
                    excess(work, room) <= 0.0
                };
                first_that(fits)
            })
            .collect();
        let scale = models()
            .zip(&needed)
            .filter(|((_, (_, demand)), needed)| **demand > 0.0 && **needed > 1)
            .map(|((_, (partitions, demand)), needed)| {
                (f64::from(*needed) - 0.5) * f64::from(*partitions) / demand
            })
            .fold(0.0, f64::max);
        models()
            .zip(&needed)
            .map(|((_, (partitions, demand)), needed)| {
                let rounded = (scale * demand / f64::from(*partitions)).round();
                (rounded as u32).max(*needed).max(1)
            })
            .collect()
    }

    /// The model whose rounded number of copies grows first as everything does.
    fn next_to_grow(&self, replicas: &[u32], partitions: &[u32]) -> Option<usize> {
        let scale = |model: usize| {
            let (replicas, partitions) = (*replicas.get(model)?, *partitions.get(model)?);
            let demand = self.demand.get(model).filter(|demand| **demand > 0.0)?;
            Some((f64::from(replicas) + 0.5) * f64::from(partitions) / demand)
        };
        let grows = (0..replicas.len()).filter_map(|model| Some((model, scale(model)?)));
        grows.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(model, _)| model)
    }

    /// The sums of a combination: bytes, and work on devices of speed 1.
    fn sums(&self, shape: &ReplicaPartition, period_s: f64) -> (f64, f64) {
        let models = shape.replicas.iter().zip(&shape.partitions).enumerate();
        models.fold((0.0, 0.0), |(memory, work), (model, (replicas, partitions))| {
            let copies = f64::from(*replicas);
            let bytes = self.memory(model, *replicas, *partitions) * f64::from(*partitions);
            (
                memory + copies * bytes,
                work + copies * self.kernel(model, *replicas) / period_s,
            )
        })
    }

    /// Load that a combination carries if work could be divided arbitrarily, except the work of single instances, requests/s.
    pub(super) fn fluid_bound(&self, shape: &ReplicaPartition, cluster: &Cluster) -> f64 {
        // In periods as long as there are requests in them, one comes every second.
        let period_s = self.batch;
        let (_, work) = self.sums(shape, period_s);
        let models = shape.replicas.iter().zip(&shape.partitions).enumerate();
        let instances = models.map(|(model, (replicas, partitions))| {
            self.kernel(model, *replicas) / period_s / f64::from(*partitions)
        });
        let largest = instances.fold(0.0, f64::max);
        (cluster.work() / work).min(cluster.most_work() / largest)
    }

    fn is_too_much(&self, shape: &ReplicaPartition, period_s: f64, cluster: &Cluster) -> bool {
        let (memory, work) = self.sums(shape, period_s);
        excess(memory, cluster.memory()) > 0.0 || excess(work, cluster.work()) > 0.0
    }

    /// The first equation that a combination breaks in an instance or in sum.
    fn breaks(&self, shape: &ReplicaPartition, period_s: f64, cluster: &Cluster) -> Option<Breaks> {
        let models = shape.replicas.iter().zip(&shape.partitions).enumerate();
        for (model, (replicas, partitions)) in models {
            let memory = self.memory(model, *replicas, *partitions);
            if excess(memory, cluster.largest_memory()) > 0.0 {
                return Some(Breaks::Memory);
            }
            let work = self.kernel(model, *replicas) / period_s / f64::from(*partitions);
            if excess(work, cluster.most_work()) > 0.0 {
                return Some(Breaks::Work);
            }
        }
        let (memory, work) = self.sums(shape, period_s);
        if excess(memory, cluster.memory()) > 0.0 {
            return Some(Breaks::Memory);
        }
        (excess(work, cluster.work()) > 0.0).then_some(Breaks::Work)
    }

    /// The kinds of a combination, and what goes between them per period.
    pub(super) fn parts(&self, shape: &ReplicaPartition, period_s: f64) -> Parts {
        let mut kinds = Vec::new();
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let mut chains = Vec::new();
        for (model, (replicas, partitions)) in shape.replicas.iter().zip(&shape.partitions).enumerate() {
            let memory = self.memory(model, *replicas, *partitions);
            let work = self.kernel(model, *replicas) / period_s / f64::from(*partitions);
            ends.push((kinds.len(), kinds.len() + *partitions as usize - 1));
            kinds.extend((0..*partitions).map(|part| InstanceClass {
                model,
                part,
                copies: *replicas,
                memory,
                work,
            }));
            let requests = self.requests(model, *replicas);
            let curves = self.curves.get(model);
            chains.push(curves.map_or_else(Costs::default, |curves| {
                costs(&curves.hidden, requests, f64::from(curves.largest))
            }));
        }
        let pair = |edge: &super::flow::FlowEdge| {
            let (from, to) = (ends.get(edge.from)?, ends.get(edge.to)?);
            let copies = |model: usize| shape.replicas.get(model).map(|copies| f64::from(*copies));
            let pairs = copies(edge.from)? * copies(edge.to)?;
            let requests = edge.share * self.batch / pairs;
            let curves = self.curves.get(edge.from)?;
            (requests > 0.0).then_some(Pair {
                from: from.1,
                to: to.0,
                costs: costs(&curves.forward, requests, f64::from(curves.largest)),
            })
        };
        let pairs = self.flow.edges.iter().filter_map(pair).collect();
        Parts { kinds, pairs, chains }
    }
}

fn costs(transfers: &super::curves::Transfers, requests: f64, largest: f64) -> Costs {
    Costs {
        device: transfers.same_device.per_period(requests, largest),
        host: transfers.same_host.per_period(requests, largest),
        network: transfers.network.per_period(requests, largest),
    }
}

/// The smallest number, at least 1, for which something holds that holds for all larger ones.
fn first_that(holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0_u32, 1_u32);
    while !holds(high) && high < u32::MAX / 2 {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The choices of partitions: all of them if there are at most `most`; otherwise the fewest partitions that fit in memory, and all that
/// differ from those in one model or in two. With it, how many there are at all.
pub(super) fn cuts(fewest: &[u32], most: &[u32], limit: u64) -> (Vec<Vec<u32>>, f64) {
    let ranges: Vec<(u32, u32)> = fewest.iter().copied().zip(most.iter().copied()).collect();
    let all: f64 = ranges
        .iter()
        .map(|(low, high)| f64::from(high + 1 - low.min(high)))
        .product();
    if all <= limit as f64 {
        return (product(&ranges), all);
    }
    let mut cuts = vec![fewest.to_vec()];
    for (one, (low, high)) in ranges.iter().enumerate() {
        for cut in low + 1..=*high {
            let mut changed = fewest.to_vec();
            set(&mut changed, one, cut);
            cuts.push(changed.clone());
            for (other, (low, high)) in ranges.iter().enumerate().skip(one + 1) {
                for cut in low + 1..=*high {
                    set(&mut changed, other, cut);
                    cuts.push(changed.clone());
                }
                set(&mut changed, other, *low);
            }
        }
    }
    cuts.truncate(usize::try_from(limit).unwrap_or(usize::MAX).max(1));
    (cuts, all)
}

fn set(cut: &mut [u32], place: usize, value: u32) {
    if let Some(found) = cut.get_mut(place) {
        *found = value;
    }
}

fn product(ranges: &[(u32, u32)]) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = vec![Vec::new()];
    for (low, high) in ranges {
        let longer = |cut: Vec<u32>| {
            (*low..=*high).map(move |value| {
                let mut cut = cut.clone();
                cut.push(value);
                cut
            })
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

#[cfg(test)]
mod tests;
