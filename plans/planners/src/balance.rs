//! The load balancer (Loki §5.1): which requests go to which workers, the most accurate first.
//!
//! `MostAccurateFirst` (Algorithm 1) fills the workers of a task in the order of their single-model accuracies, from the root to the
//! sinks, and what capacity is left over goes into backup tables for rerouting. The paper runs it per worker. Here it runs per
//! variant, and the workers of a variant share its requests evenly. The result is the same: they are as accurate, as fast and make
//! as many requests as each other, so which of them a request meets changes neither the path's accuracy nor what
//! arrives downstream, and the sums over the paper's worker tables of a variant are this one's. What is gained is that it takes
//! as long for a thousand workers as for ten.
//!
//! One rule is added. A configuration's workers are whole, so the best variants have a little more capacity than planned, and
//! Algorithm 1 would fill it. But a better detector finds more, so that sends more downstream than the plan has room for,
//! and the workers there fall behind. So the planned loads are filled first, and the excess is spread in proportion to the excess;
//! at the planned demand no worker is overloaded.

use std::collections::BTreeMap;

use serde::Serialize;

use kaskade_policy::pipeline::{Pipeline, TaskTree};

/// Capacity below this share of the whole is not left over but rounding.
const NOTHING_LEFT: f64 = 1e-6;

/// Bisections of a capacity: to a thousandth of the root's.
const CAPACITY_STEPS: u32 = 10;

/// The instances of one variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Instances {
    /// Task of the variant.
    pub task: String,
    /// Name of the variant.
    pub variant: String,
    /// Most requests in a batch, `y(i, k)`.
    pub batch: u32,
    /// Workers that run it, `x(i, k)`.
    pub count: u32,
    /// Profiled time of such a batch, microseconds, `l(i, k)`.
    pub latency_us: f64,
    /// Capacity of one instance, requests/s, `q(i, k, y)`.
    pub qps: f64,
    /// Load that is planned for all instances, requests/s.
    pub load_qps: f64,
}

impl Instances {
    /// Returns the capacity of all instances, requests/s.
    pub(crate) fn capacity_qps(&self) -> f64 {
        f64::from(self.count) * self.qps
    }
}

/// The variants that serve a pipeline, ready to be balanced, again and again.
#[derive(Debug, Clone)]
pub struct Balancer {
    hosts: Vec<Host>,
    /// Indices of each task's hosts, the most accurate first.
    tasks: Vec<Vec<usize>>,
    /// Tasks, the root's first.
    order: Vec<usize>,
    tree: TaskTree,
    profiled: Option<BTreeMap<Vec<(usize, usize)>, f64>>,
}

#[derive(Debug, Clone)]
struct Host {
    place: (usize, usize),
    accuracy: f64,
    /// Requests/s.
    capacity: f64,
    /// Requests/s that the plan gives it, at most its capacity.
    planned: f64,
    /// Requests to each child task per request, in the tree's order.
    children: Vec<(usize, f64)>,
}

/// Load of a host, requests/s.
#[derive(Debug, Clone, Copy)]
struct State {
    incoming: f64,
    /// Unused capacity.
    left: f64,
    /// Unused part of the planned load.
    planned: f64,
}

impl State {
    fn of(host: &Host) -> Self {
        Self {
            incoming: 0.0,
            left: host.capacity,
            planned: host.planned,
        }
    }

    /// Takes as much of what is sent as is planned, or as there is capacity.
    fn take(&mut self, sent: f64, planned: bool) -> f64 {
        let taken = sent.min(if planned { self.planned } else { self.left });
        self.incoming += taken;
        self.left -= taken;
        self.planned -= taken.min(self.planned);
        taken
    }
}

/// The shares of one sender over the workers of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The sending variant, a place in the list of instances; `None` for the ingress.
    pub from: Option<usize>,
    /// The task that it is sent to.
    pub to: usize,
    /// Requests/s.
    pub qps: f64,
    /// The receiving variants, places in the list of instances, with their shares; these sum to 1.
    pub shares: Vec<(usize, f64)>,
}

/// Routing tables and backups for one demand.
#[derive(Debug, Clone, PartialEq)]
pub struct Balanced {
    /// One table per sender and task.
    pub tables: Vec<Table>,
    /// Variants of each task with unused capacity: indices in the list of instances, the most accurate first, with requests/s.
    pub backups: Vec<Vec<(usize, f64)>>,
    /// Requests/s, over all tasks, for which there was no capacity. They are distributed nevertheless.
    pub unserved_qps: f64,
    /// Expected system accuracy by these tables, in [0, 1].
    pub accuracy: f64,
}

impl Balancer {
    /// Prepares instances of a checked pipeline. Instances of unknown tasks and variants serve nothing.
    pub fn new(pipeline: &Pipeline, instances: &[Instances]) -> Self {
        let tree = TaskTree::new(pipeline).unwrap_or_default();
        let hosts: Vec<Host> = instances.iter().map(|own| host(pipeline, &tree, own)).collect();
        let mut tasks = vec![Vec::new(); pipeline.tasks.len()];
        for (place, host) in hosts.iter().enumerate() {
            if let Some(task) = tasks.get_mut(host.place.0) {
                task.push(place);
            }
        }
        let accuracy = |place: &usize| hosts.get(*place).map_or(0.0, |host| host.accuracy);
        for task in &mut tasks {
            task.sort_by(|one, other| accuracy(other).total_cmp(&accuracy(one)));
        }
        Self {
            order: tree.order.clone(),
            profiled: pipeline.profiled(),
            hosts,
            tasks,
            tree,
        }
    }

    /// Forgets the planned loads: Algorithm 1 to the letter.
    #[cfg(test)]
    pub(crate) fn by_capacity_alone(mut self) -> Self {
        for host in &mut self.hosts {
            host.planned = 0.0;
        }
        self
    }

    /// The largest demand at the root, requests/s, for which every task has capacity by the tables of that demand.
    pub(crate) fn capacity_qps(&self) -> f64 {
        let root = self.order.first().and_then(|root| self.tasks.get(*root));
        let roots = root.into_iter().flatten();
        let roots = roots.filter_map(|place| self.hosts.get(*place));
        let (mut low, mut high) = (0.0, roots.map(|host| host.capacity).sum::<f64>());
        for _ in 0..CAPACITY_STEPS {
            let middle = f64::midpoint(low, high);
            if self.balance(middle).unserved_qps > NOTHING_LEFT * middle {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }

    /// `MostAccurateFirst` for this many requests/s at the root.
    pub fn balance(&self, demand_qps: f64) -> Balanced {
        let mut state: Vec<State> = self.hosts.iter().map(State::of).collect();
        let mut tables = Vec::with_capacity(1 + 2 * self.hosts.len());
        let mut unserved = 0.0;
        let mut send = |from: Option<usize>, to: usize, qps: f64, state: &mut [State]| {
            let shares = self.fill(to, qps, state, &mut unserved);
            Table {
                from,
                to,
                qps,
                shares,
            }
        };
        if let Some(root) = self.order.first() {
            tables.push(send(None, *root, demand_qps, &mut state));
        }
        for task in &self.order {
            for place in self.tasks.get(*task).into_iter().flatten() {
                let Some(host) = self.hosts.get(*place) else {
                    continue;
                };
                let arriving = state.get(*place).map_or(0.0, |state| state.incoming);
                for (child, multiplicity) in &host.children {
                    tables.push(send(Some(*place), *child, arriving * multiplicity, &mut state));
                }
            }
        }
        let mut balanced = Balanced {
            backups: self
                .tasks
                .iter()
                .map(|hosts| self.backups(hosts, &state))
                .collect(),
            tables,
            unserved_qps: unserved,
            accuracy: 0.0,
        };
        balanced.accuracy = self.accuracy(&balanced.tables);
        balanced
    }

    /// Fills the hosts of a task with what is sent to it, the most accurate first: first what was planned, then what is left.
    fn fill(&self, to: usize, qps: f64, state: &mut [State], unserved: &mut f64) -> Vec<(usize, f64)> {
        let hosts = self.tasks.get(to).map_or(&[][..], Vec::as_slice);
        let mut outgoing = qps;
        let mut routed: Vec<(usize, f64)> = hosts.iter().map(|place| (*place, 0.0)).collect();
        for planned in [true, false] {
            for (place, routed) in &mut routed {
                if let Some(state) = state.get_mut(*place).filter(|_| outgoing > 0.0) {
                    let taken = state.take(outgoing, planned);
                    *routed += taken;
                    outgoing -= taken;
                }
            }
        }
        // A remainder from rounding is not overload.
        if outgoing > NOTHING_LEFT * qps {
            *unserved += outgoing;
        }
        let served: f64 = routed.iter().map(|(_, routed)| routed).sum();
        if served > 0.0 {
            routed.retain(|(_, routed)| *routed > 0.0);
            for (_, routed) in &mut routed {
                *routed /= served;
            }
            return routed;
        }
        self.unfilled(hosts, state)
    }

    /// Shares where nothing is sent, or nothing is free. A request may still come by rerouting, or by a change of the load between
    /// two runs: it goes to the most accurate variant with something left, or else to all in proportion.
    fn unfilled(&self, hosts: &[usize], state: &[State]) -> Vec<(usize, f64)> {
        let capacity = |place: &usize| self.hosts.get(*place).map_or(0.0, |host| host.capacity);
        let free = |place: &&usize| {
            let left = state.get(**place).map_or(0.0, |state| state.left);
            left > NOTHING_LEFT * capacity(place)
        };
        if let Some(place) = hosts.iter().find(free) {
            return vec![(*place, 1.0)];
        }
        let all: f64 = hosts.iter().map(capacity).sum();
        let even = 1.0 / hosts.len().max(1) as f64;
        let share = |place: &usize| if all > 0.0 { capacity(place) / all } else { even };
        hosts.iter().map(|place| (*place, share(place))).collect()
    }

    fn backups(&self, hosts: &[usize], state: &[State]) -> Vec<(usize, f64)> {
        let free = |place: &usize| {
            let (left, host) = (state.get(*place)?.left, self.hosts.get(*place)?);
            (left > NOTHING_LEFT * host.capacity).then_some((*place, left))
        };
        hosts.iter().filter_map(free).collect()
    }

    /// Mean over the sinks of the paths' accuracies, by their shares.
    fn accuracy(&self, tables: &[Table]) -> f64 {
        let mut sum = 0.0;
        for sink in &self.tree.sinks {
            let trail = self.tree.trail(*sink);
            sum += self.below(tables, None, &trail, 1.0, &mut Vec::new());
        }
        sum / self.tree.sinks.len().max(1) as f64
    }

    /// Expected accuracy of what one sender sends along a trail; `product` is that of the accuracies before.
    fn below(
        &self,
        tables: &[Table],
        from: Option<usize>,
        trail: &[usize],
        product: f64,
        places: &mut Vec<(usize, usize)>,
    ) -> f64 {
        let Some((task, rest)) = trail.split_first() else {
            let profiled = self.profiled.as_ref().and_then(|profiled| profiled.get(places));
            return profiled.copied().unwrap_or(product);
        };
        let table = tables
            .iter()
            .find(|table| table.from == from && table.to == *task);
        let mut sum = 0.0;
        for (place, share) in table.into_iter().flat_map(|table| &table.shares) {
            if let Some(host) = self.hosts.get(*place) {
                places.push(host.place);
                sum += share * self.below(tables, Some(*place), rest, product * host.accuracy, places);
                places.pop();
            }
        }
        sum
    }
}

fn host(pipeline: &Pipeline, tree: &TaskTree, own: &Instances) -> Host {
    let unknown = Host {
        place: (usize::MAX, usize::MAX),
        accuracy: 0.0,
        capacity: 0.0,
        planned: 0.0,
        children: Vec::new(),
    };
    let found = pipeline.variant(&own.variant);
    let Some((place, task)) = found.and_then(|place| Some((place, pipeline.tasks.get(place.0)?))) else {
        return unknown;
    };
    let Some(variant) = task.variants.get(place.1) else {
        return unknown;
    };
    let child = |child: &usize| {
        let multiplicity = variant.multiplicity(&pipeline.tasks.get(*child)?.name);
        (multiplicity > 0.0).then_some((*child, multiplicity))
    };
    Host {
        place,
        accuracy: variant.accuracy,
        capacity: own.capacity_qps(),
        planned: own.load_qps.min(own.capacity_qps()),
        children: tree.children(place.0).iter().filter_map(child).collect(),
    }
}

#[cfg(test)]
mod tests;
