//! A first placement: the largest instances first, each where it adds least.

use super::layout::Layout;
use super::problem::Problem;

/// Tie-breakers between devices that are not overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefer {
    /// Short ways; of equal ones, the fuller device.
    Nearness,
    /// The fuller device: tight packing finds room where other orders do not.
    Fullness,
}

/// A placement of everything, which may ask devices for more than they have.
pub(super) fn place<'p>(problem: &'p Problem<'p>, prefer: Prefer) -> Layout<'p> {
    let cluster = problem.cluster;
    let (memory, work) = (cluster.largest_memory(), cluster.most_work());
    let size = |instance: &usize| {
        problem
            .kind_of(*instance)
            .map_or(0.0, |kind| (kind.memory / memory).max(kind.work / work))
    };
    let mut order: Vec<usize> = (0..problem.instances.len()).collect();
    order.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let mut layout = Layout::new(problem);
    for instance in order {
        let rate = |device: usize| {
            let excess = layout.excess(device, Some(instance), None);
            let cost = match prefer {
                Prefer::Nearness => layout.cost(instance, device),
                Prefer::Fullness => 0.0,
            };
            (excess, cost, -layout.fill(device))
        };
        let mut best: Option<(usize, (f64, f64, f64))> = None;
        for device in 0..cluster.devices.len() {
            let rated = rate(device);
            if best.is_none_or(|(_, best)| is_less(rated, best)) {
                best = Some((device, rated));
            }
        }
        if let Some((device, _)) = best {
            layout.put(instance, device);
        }
    }
    layout
}

fn is_less(a: (f64, f64, f64), b: (f64, f64, f64)) -> bool {
    a.0.total_cmp(&b.0)
        .then(a.1.total_cmp(&b.1))
        .then(a.2.total_cmp(&b.2))
        .is_lt()
}
