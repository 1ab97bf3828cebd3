//! Joules: arithmetic over what a meter reads. What cannot be known stays unknown and never becomes zero.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stated power of a device, for where nothing can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnergyModel {
    /// Drawn whether it works or not, watts.
    pub idle_watts: f64,
    /// Drawn in addition by each busy core (or by the busy device, counted as one core), watts.
    pub active_watts_per_core: f64,
}

/// Modelled energy of a stretch of wall time with this much busy time, joules, idle included. Unknown if an input is
/// negative or not finite.
pub fn modelled_joules(wall_s: f64, busy_core_s: f64, model: EnergyModel) -> Option<f64> {
    let inputs = [wall_s, busy_core_s, model.idle_watts, model.active_watts_per_core];
    let sound = inputs.iter().all(|input| input.is_finite() && *input >= 0.0);
    sound.then_some(wall_s * model.idle_watts + busy_core_s * model.active_watts_per_core)
}

/// Joules per request, those of idle time included. Unknown if the joules are, or if there was no request to share them.
pub fn joules_per_request(joules: Option<f64>, requests: u64) -> Option<f64> {
    joules
        .filter(|joules| joules.is_finite() && *joules >= 0.0 && requests > 0)
        .map(|joules| joules / requests as f64)
}

/// Joules of a process that runs several models, shared among them by how long each kept it busy, idle time included: whoever is
/// asked most pays for the waiting too. Empty where the joules are unknown; nothing for anybody while none has run.
pub fn attributed<'a>(joules: Option<f64>, busy_s: &BTreeMap<&'a str, f64>) -> BTreeMap<&'a str, f64> {
    let all: f64 = busy_s.values().sum();
    let per_second = joules
        .filter(|joules| joules.is_finite() && *joules >= 0.0)
        .map(|joules| if all > 0.0 { joules / all } else { 0.0 });
    let shares = per_second.map(|each| busy_s.iter().map(move |(model, busy)| (*model, busy * each)));
    shares.into_iter().flatten().collect()
}

/// Joules under power readings `(microseconds, watts)` in order of time, by trapezoids. Unknown with fewer than two
/// readings, with readings out of order, or with one that is negative or not finite.
pub fn integrated_joules(readings: &[(u64, f64)]) -> Option<f64> {
    if readings.len() < 2 {
        return None;
    }
    readings
        .iter()
        .zip(readings.iter().skip(1))
        .try_fold(0.0, |joules, (from, to)| {
            let seconds = to.0.checked_sub(from.0)? as f64 / 1e6;
            let watts = f64::midpoint(from.1, to.1);
            (watts.is_finite() && from.1 >= 0.0 && to.1 >= 0.0).then_some(joules + seconds * watts)
        })
}

/// Joules between two readings of an energy counter in microjoules that wraps after `range` (RAPL's
/// `max_energy_range_uj`), which must happen at most once in between. Unknown if a reading exceeds the range.
pub fn counted_joules(before_uj: u64, after_uj: u64, range_uj: u64) -> Option<f64> {
    if before_uj > range_uj || after_uj > range_uj {
        return None;
    }
    let counted = after_uj
        .checked_sub(before_uj)
        .unwrap_or_else(|| range_uj - before_uj + after_uj);
    Some(counted as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: EnergyModel = EnergyModel {
        idle_watts: 10.0,
        active_watts_per_core: 5.0,
    };

    #[test]
    fn idle_counts_even_when_nothing_runs() {
        assert_eq!(modelled_joules(2.0, 0.0, MODEL), Some(20.0));
        assert_eq!(modelled_joules(2.0, 3.0, MODEL), Some(35.0));
    }

    #[test]
    fn models_share_all_joules_by_their_busy_time() {
        let busy = BTreeMap::from([("large", 3.0), ("small", 1.0)]);
        let shares = attributed(Some(8.0), &busy);
        assert_eq!(shares, BTreeMap::from([("large", 6.0), ("small", 2.0)]));
        assert!(attributed(None, &busy).is_empty());
        assert!(attributed(Some(f64::NAN), &busy).is_empty());
        let idle = BTreeMap::from([("large", 0.0)]);
        assert_eq!(attributed(Some(8.0), &idle), BTreeMap::from([("large", 0.0)]));
    }

    #[test]
    fn the_unknown_stays_unknown() {
        assert_eq!(modelled_joules(f64::NAN, 0.0, MODEL), None);
        assert_eq!(modelled_joules(1.0, -1.0, MODEL), None);
        assert_eq!(joules_per_request(None, 10), None);
        assert_eq!(joules_per_request(Some(5.0), 0), None);
        assert_eq!(joules_per_request(Some(f64::INFINITY), 1), None);
        assert_eq!(integrated_joules(&[(0, 100.0)]), None);
        assert_eq!(integrated_joules(&[(5, 100.0), (0, 100.0)]), None);
        assert_eq!(integrated_joules(&[(0, 100.0), (5, f64::NAN)]), None);
        assert_eq!(counted_joules(11, 5, 10), None);
    }

    #[test]
    fn readings_integrate_and_counters_wrap() {
        let readings = [(0, 100.0), (1_000_000, 200.0), (3_000_000, 200.0)];
        assert_eq!(integrated_joules(&readings), Some(550.0));
        assert_eq!(counted_joules(1_000_000, 3_000_000, 10_000_000), Some(2.0));
        assert_eq!(counted_joules(9_000_000, 3_000_000, 10_000_000), Some(4.0));
        assert_eq!(joules_per_request(Some(8.0), 4), Some(2.0));
    }
}
