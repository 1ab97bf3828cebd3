//! Exhaustive search, as a baseline for the planner.

use super::problem::Problem;
use super::solve::Solved;

/// The best of all placements that meet equations 3 and 4; `None` if none does.
pub(super) fn best(problem: &Problem<'_>) -> Option<Solved> {
    let devices = problem.cluster.devices.len();
    let mut placed = vec![0; problem.instances.len()];
    let mut best: Option<Solved> = None;
    loop {
        if problem.overload(&placed) <= 0.0 {
            let overhead = problem.overhead(&placed);
            if best.as_ref().is_none_or(|best| overhead < best.overhead) {
                best = Some(Solved {
                    placed: placed.clone(),
                    overhead,
                });
            }
        }
        // The next number in base `devices`.
        let Some(place) = placed.iter().position(|device| device + 1 < devices) else {
            return best;
        };
        placed.iter_mut().take(place).for_each(|device| *device = 0);
        if let Some(device) = placed.get_mut(place) {
            *device += 1;
        }
    }
}
