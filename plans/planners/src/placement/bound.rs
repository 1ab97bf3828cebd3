//! Lower bound of the overhead of all placements of a combination.
//!
//! If everything went over the network, the overhead would be the sum of the network costs. Whatever shares a device or a host saves the
//! difference. An instance can only share a device with as many of its neighbours as fit beside it: a knapsack, and its fractional
//! optimum is more than any placement saves at this instance. Summed over the instances that counts every saving twice.

use super::problem::{Cluster, Costs, InstanceClass, Pair, ROUNDING};

/// A neighbour kind: how many instances of it an instance has to do with, what each needs, and what each saves.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    count: f64,
    memory: f64,
    work: f64,
    /// Saving if the neighbour is on the same device, compared with another host.
    device: f64,
    /// Saving if the neighbour is on the same host.
    host: f64,
}

/// A lower bound of the overhead, seconds per period, from kinds alone: the same whatever the number of instances.
pub(super) fn overhead(cluster: &Cluster, kinds: &[InstanceClass], pairs: &[Pair], chains: &[Costs]) -> f64 {
    let nearest = nearest(kinds, pairs, chains);
    let chained: f64 = kinds
        .iter()
        .filter(|kind| kind.part == 0)
        .map(|first| chain(cluster, kinds, first, chains))
        .fold(0.0, |sum, cost| sum + cost);
    (between(cluster, kinds, pairs) + chained)
        .max(nearest)
        .max(nearest + least_parted(cluster, kinds, pairs, chains))
}

/// Cost if all instances are on one device: a lower bound for more copies or partitions.
pub(super) fn nearest(kinds: &[InstanceClass], pairs: &[Pair], chains: &[Costs]) -> f64 {
    let copies = |kind: usize| kinds.get(kind).map_or(0.0, |kind| f64::from(kind.copies));
    let paired = pairs
        .iter()
        .map(|pair| copies(pair.from) * copies(pair.to) * pair.costs.device);
    let followers = kinds.iter().filter(|kind| kind.part > 0);
    let chained = followers
        .map(|kind| f64::from(kind.copies) * chains.get(kind.model).map_or(0.0, |costs| costs.device));
    paired.chain(chained).fold(0.0, |sum, cost| sum + cost)
}

/// Cost between the partitions of a model's copies: a chain that is longer than a device holds is cut.
fn chain(cluster: &Cluster, kinds: &[InstanceClass], first: &InstanceClass, chains: &[Costs]) -> f64 {
    let partitions = kinds.iter().filter(|kind| kind.model == first.model).count() as f64;
    let Some(costs) = chains.get(first.model).filter(|_| partitions > 1.0) else {
        return 0.0;
    };
    let held = holds(cluster.largest_memory(), first.memory).min(holds(cluster.most_work(), first.work));
    let cuts = (partitions / held.max(1.0)).ceil() - 1.0;
    let cut = costs.host.min(costs.network);
    let cut = if cluster.is_flat() { costs.network } else { cut };
    f64::from(first.copies) * ((partitions - 1.0 - cuts) * costs.device + cuts * cut)
}

/// Number of equal items that fit.
fn holds(room: f64, need: f64) -> f64 {
    ((room * (1.0 + ROUNDING)) / need.max(f64::MIN_POSITIVE)).floor()
}

/// Lower bound for the cost of splitting a connected group of instances that exceeds the capacity of some number of devices: the least
/// latency between two devices is paid at least that many times.
fn least_parted(cluster: &Cluster, kinds: &[InstanceClass], pairs: &[Pair], chains: &[Costs]) -> f64 {
    if !is_of_one_piece(kinds, pairs) {
        return 0.0;
    }
    let sum = |need: fn(&InstanceClass) -> f64| {
        kinds
            .iter()
            .map(|kind| f64::from(kind.copies) * need(kind))
            .sum::<f64>()
    };
    let by_memory = sum(|kind| kind.memory) / cluster.largest_memory();
    let by_work = sum(|kind| kind.work) / cluster.most_work();
    let devices = (by_memory.max(by_work) * (1.0 - ROUNDING)).ceil();
    let chained = kinds
        .iter()
        .filter(|kind| kind.part > 0)
        .filter_map(|kind| chains.get(kind.model));
    let all = pairs.iter().map(|pair| &pair.costs).chain(chained);
    let parted = all.map(|costs| {
        let apart = if cluster.is_flat() {
            costs.network
        } else {
            costs.host
        };
        apart - costs.device
    });
    let least = parted.fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        (devices - 1.0).max(0.0) * least
    } else {
        0.0
    }
}

/// Whether everything has to do with everything, be it by way of others.
fn is_of_one_piece(kinds: &[InstanceClass], pairs: &[Pair]) -> bool {
    let mut reached = vec![false; kinds.len()];
    let mut waiting = vec![0];
    while let Some(at) = waiting.pop() {
        if reached
            .get_mut(at)
            .is_none_or(|reached| std::mem::replace(reached, true))
        {
            continue;
        }
        let paired = pairs
            .iter()
            .filter_map(|pair| match (pair.from == at, pair.to == at) {
                (true, _) => Some(pair.to),
                (_, true) => Some(pair.from),
                _ => None,
            });
        waiting.extend(paired);
        let follows = |from: usize, to: usize| match (kinds.get(from), kinds.get(to)) {
            (Some(from), Some(to)) => from.model == to.model && from.part + 1 == to.part,
            _ => false,
        };
        waiting.extend((follows(at, at + 1)).then_some(at + 1));
        waiting.extend((at > 0 && follows(at - 1, at)).then(|| at - 1));
    }
    // A chain of several copies hangs together only by what comes before or after it.
    let alone = |kind: &InstanceClass| kind.copies > 1 && pairs.is_empty();
    reached.iter().all(|reached| *reached) && !kinds.iter().any(alone)
}

/// Cost between models: the network cost of all transfers, less the most that sharing a device can save.
fn between(cluster: &Cluster, kinds: &[InstanceClass], pairs: &[Pair]) -> f64 {
    let mut network = 0.0;
    let mut around: Vec<Vec<Neighbour>> = vec![Vec::new(); kinds.len()];
    for pair in pairs {
        for (one, other) in [(pair.from, pair.to), (pair.to, pair.from)] {
            if let (Some(kind), Some(list)) = (kinds.get(other), around.get_mut(one)) {
                list.push(Neighbour {
                    count: f64::from(kind.copies),
                    memory: kind.memory,
                    work: kind.work,
                    device: pair.costs.network - pair.costs.device,
                    host: pair.costs.network - pair.costs.host,
                });
            }
        }
        let copies = |kind: usize| kinds.get(kind).map_or(0.0, |kind| f64::from(kind.copies));
        network += copies(pair.from) * copies(pair.to) * pair.costs.network;
    }
    let saved: f64 = kinds
        .iter()
        .zip(&around)
        .map(|(kind, around)| f64::from(kind.copies) * most_saved(cluster, kind, around))
        .sum();
    network - saved / 2.0
}

/// The most that an instance of a kind can save by having neighbours beside it.
fn most_saved(cluster: &Cluster, kind: &InstanceClass, around: &[Neighbour]) -> f64 {
    let (memory, work) = (cluster.largest_memory(), cluster.most_work());
    let on_device = |saving: fn(&Neighbour) -> f64| {
        let by_memory = knapsack(
            around,
            memory,
            memory - kind.memory,
            |neighbour| neighbour.memory,
            saving,
        );
        let by_work = knapsack(around, work, work - kind.work, |neighbour| neighbour.work, saving);
        by_memory.min(by_work)
    };
    if cluster.is_flat() {
        return on_device(|neighbour| neighbour.device);
    }
    // On the host all might be, by what is known here; on the device only what fits.
    let on_host: f64 = around
        .iter()
        .map(|neighbour| neighbour.count * neighbour.host)
        .sum();
    on_host + on_device(|neighbour| neighbour.device - neighbour.host)
}

/// The optimum of the fractional knapsack: the best savings per need first.
fn knapsack(
    around: &[Neighbour],
    total: f64,
    mut room: f64,
    need: impl Fn(&Neighbour) -> f64,
    saving: impl Fn(&Neighbour) -> f64,
) -> f64 {
    // What exceeds the room by rounding still fits; what is larger than all of it fits nowhere beside this instance.
    room = room.max(0.0) + total * ROUNDING;
    let mut sorted: Vec<&Neighbour> = around.iter().filter(|one| need(one) <= room).collect();
    let worth = |neighbour: &Neighbour| saving(neighbour) / need(neighbour).max(f64::MIN_POSITIVE);
    sorted.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let mut saved = 0.0;
    for neighbour in sorted {
        let all = need(neighbour) * neighbour.count;
        let share = if all <= room { 1.0 } else { room / all };
        saved += share * neighbour.count * saving(neighbour);
        room -= share * all;
    }
    saved
}
