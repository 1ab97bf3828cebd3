//! Families of any number of models, to see how planning grows.

use kaskade_planners::cascade::{CascadeOptions, Objective, plan_cascade};
use kaskade_planners::gears::DeviceSpec;
use kaskade_planners::placement::{PlacementError, PlacementObjective, PlacementOptions, plan_placement};
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use kaskade_stated::families::{StatedFamily, StatedModel, gpt};

/// A family between 20 million and 20 billion weights, and a cascade of all of its models.
#[derive(Debug, Clone)]
pub struct SyntheticFamily {
    /// The stated sizes.
    pub family: StatedFamily,
    /// The profile of its figures.
    pub profile: Profile,
    /// The cascade.
    pub cascade: Plan,
}

impl SyntheticFamily {
    /// Makes a family of `models` models, at least two.
    ///
    /// # Errors
    /// When the cascade cannot be planned.
    pub fn new(models: usize) -> anyhow::Result<Self> {
        let model = |number: usize| {
            let share = number as f64 / (models.max(2) - 1) as f64;
            StatedModel {
                name: format!("m{number}"),
                parameters: (2e7 * 1_000_f64.powf(share)) as u64,
                accuracy: 0.6 + 0.35 * share,
                layers: 8 + (share * 56.0) as u32,
                width: 256 + (share * 3_840.0) as u32,
            }
        };
        let family = StatedFamily {
            name: format!("synthetic-{models}"),
            models: (0..models).map(model).collect(),
            ..gpt()
        };
        let profile = family.profile();
        let options = CascadeOptions {
            objective: Objective::Thresholds(vec![0.9; models.saturating_sub(1)]),
            skips: false,
            exact_steps: 1,
            ..CascadeOptions::default()
        };
        let cascade = plan_cascade(&profile, &options)?.plan;
        Ok(Self {
            family,
            profile,
            cascade,
        })
    }

    /// Returns the options for `devices` devices, `on_each_host` of them on each host.
    pub fn options(&self, devices: usize, on_each_host: usize, goal: PlacementObjective) -> PlacementOptions {
        options(&self.family, devices, on_each_host, goal)
    }

    /// Returns the load in requests/s at which the share `busy` of the cluster's capacity is used.
    pub fn load(&self, options: &PlacementOptions, busy: f64) -> f64 {
        busy_load(&self.profile, &self.cascade, options, busy)
    }
}

/// Returns the options of a family's sizes for `devices` devices, `on_each_host` of them on each host.
pub fn options(
    family: &StatedFamily,
    devices: usize,
    on_each_host: usize,
    goal: PlacementObjective,
) -> PlacementOptions {
    let mut specs = DeviceSpec::fleet(devices, family.device.memory_bytes);
    for (number, device) in specs.iter_mut().enumerate() {
        device.worker = format!("w{}", number / on_each_host);
        device.device = format!("cuda:{}", number % on_each_host);
    }
    PlacementOptions {
        request_bytes: family.request_bytes,
        hidden_bytes: family.hidden_bytes(),
        layers: family.layers(),
        ..PlacementOptions::new(specs, goal)
    }
}

/// Returns the load in requests/s at which the share `busy` of the cluster's capacity is used. The capacity is taken from the
/// error for an infeasible load.
pub fn busy_load(profile: &Profile, cascade: &Plan, options: &PlacementOptions, busy: f64) -> f64 {
    let beyond = PlacementOptions {
        goal: PlacementObjective::Carry { qps: 1e12 },
        ..options.clone()
    };
    match plan_placement(profile, cascade, &beyond) {
        Err(PlacementError::Overloaded { max_qps, .. }) => busy * max_qps,
        _ => 1.0,
    }
}
