//! A plan made ready to be simulated.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::Compiled;
use super::config::{self, SimConfig, SimError};
use super::control::IndexedReplicaEvent;
use super::run_tables::RunTables;

use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use kaskade_policy::shifting::Shifter;

/// A plan, a profile and a configuration, compiled: names are numbers, and the path of every validation sample is known.
#[derive(Debug, Clone)]
pub struct Simulator {
    pub(super) plan: Arc<Compiled>,
    pub(super) tables: RunTables,
    pub(super) shifter: Shifter,
    pub(super) config: SimConfig,
    pub(super) timeline: Vec<IndexedReplicaEvent>,
    pub(super) down: Vec<u32>,
}

impl Simulator {
    /// Compiles a plan.
    ///
    /// # Errors
    /// A [`SimError`] that names the first thing that does not fit.
    pub fn new(plan: &Plan, profile: &Profile, config: &SimConfig) -> Result<Self, SimError> {
        config.check(plan.gears.len())?;
        let mut tables = RunTables::default();
        let compiled = Compiled::new(plan, profile, config, &mut tables)?;
        let ids = tables.replicas.iter().map(|replica| replica.id.as_str());
        let ids: BTreeMap<&str, u32> = ids.zip(0..).collect();
        let find = |field: &'static str, id: &String| {
            ids.get(id.as_str())
                .copied()
                .ok_or_else(|| SimError::NoSuchReplica {
                    field,
                    replica: id.clone(),
                })
        };
        let happening = |event: &config::ReplicaEvent| {
            Ok(IndexedReplicaEvent {
                at: event.at_us,
                replica: find("timeline", &event.replica)?,
                change: event.change,
            })
        };
        let mut timeline = config
            .timeline
            .iter()
            .map(happening)
            .collect::<Result<Vec<_>, SimError>>()?;
        timeline.sort_by_key(|happening| happening.at);
        let down = config.initially_down.iter();
        let down = down
            .map(|id| find("initially_down", id))
            .collect::<Result<_, _>>()?;
        let mut shifter = Shifter::new(&plan.gears, config.shift.unwrap_or_default());
        shifter.set_gear(config.start_gear);
        Ok(Self {
            shifter,
            config: config.clone(),
            timeline,
            down,
            plan: Arc::new(compiled),
            tables,
        })
    }

    /// The names of the variants, as observers number them.
    pub fn variants(&self) -> &[String] {
        &self.tables.variants.list
    }
}
