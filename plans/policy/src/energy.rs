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

/// Divides the joules of a process that runs several models among them in proportion to their busy time, idle energy included.
/// Empty if the joules are unknown; 0 for all models while none has run.
pub fn energy_by_variant<'a>(joules: Option<f64>, busy_s: &BTreeMap<&'a str, f64>) -> BTreeMap<&'a str, f64> {
    let all: f64 = busy_s.values().sum();
    let per_second = joules
        .filter(|joules| joules.is_finite() && *joules >= 0.0)
        .map(|joules| if all > 0.0 { joules / all } else { 0.0 });
    let shares = per_second.map(|each| busy_s.iter().map(move |(model, busy)| (*model, busy * each)));
    shares.into_iter().flatten().collect()
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
        let shares = energy_by_variant(Some(8.0), &busy);
        assert_eq!(shares, BTreeMap::from([("large", 6.0), ("small", 2.0)]));
        assert!(energy_by_variant(None, &busy).is_empty());
        assert!(energy_by_variant(Some(f64::NAN), &busy).is_empty());
        let idle = BTreeMap::from([("large", 0.0)]);
        assert_eq!(
            energy_by_variant(Some(8.0), &idle),
            BTreeMap::from([("large", 0.0)])
        );
    }

    #[test]
    fn the_unknown_stays_unknown() {
        assert_eq!(modelled_joules(f64::NAN, 0.0, MODEL), None);
        assert_eq!(modelled_joules(1.0, -1.0, MODEL), None);
        assert_eq!(joules_per_request(None, 10), None);
        assert_eq!(joules_per_request(Some(5.0), 0), None);
        assert_eq!(joules_per_request(Some(f64::INFINITY), 1), None);
    }

    #[test]
    fn joules_are_shared_by_the_requests() {
        assert_eq!(joules_per_request(Some(8.0), 4), Some(2.0));
    }
}
