//! Energy counters that several processes read: RAPL counts a whole host, NVML a whole GPU, whatever process uses it.

use std::collections::BTreeMap;

use super::NodeRow;

/// Divides what processes with the same counter read among them, by their processor time. The largest reading counts, because reports are not
/// of the same moment.
pub(super) fn divided(mut nodes: Vec<NodeRow>) -> Vec<NodeRow> {
    /// Of a counter: the largest reading in watts, processor time per second, processes.
    type Sum = (Option<f64>, f64, usize);
    let mut counters: BTreeMap<String, Sum> = BTreeMap::new();
    for node in &nodes {
        if let Some(counter) = &node.counter {
            let (watts, cores, count) = counters.entry(counter.clone()).or_default();
            *watts = match (*watts, node.watts) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            };
            *cores += node.cores.unwrap_or_default();
            *count += 1;
        }
    }
    for node in &mut nodes {
        let sum = node.counter.as_ref().and_then(|counter| counters.get(counter));
        let Some((watts, cores, count)) = sum else {
            continue;
        };
        let share = if *cores > 0.0 {
            node.cores.unwrap_or_default() / cores
        } else {
            1.0 / *count as f64
        };
        node.watts = watts.map(|watts| watts * share);
    }
    nodes
}
