//! Energy counters read by several processes: RAPL counts a whole host, NVML a whole GPU, regardless of the process
//! that uses it.

use std::collections::BTreeMap;

use super::NodeRow;

/// Divides the reading of a shared counter among its processes by their processor time. The largest reading is used,
/// because the reports are from different moments.
pub(super) fn divided(mut nodes: Vec<NodeRow>) -> Vec<NodeRow> {
    /// Sums of a counter: largest reading in watts, processor time per second, number of processes.
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
