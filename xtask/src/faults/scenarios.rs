//! The faults.

mod adoption;
mod broker;
mod durable;
mod input;
mod load;
mod plans;
mod python;
mod remote;
mod replicas;
mod setup;
mod shards;
mod stalls;
mod upkeep;

use std::pin::Pin;

use super::verdict::Verdict;

/// A fault.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Description of the fault, and of the behaviour that is required.
    pub(super) what: &'static str,
    pub(super) run: fn() -> Run,
}

type Run = Pin<Box<dyn Future<Output = anyhow::Result<Verdict>>>>;

/// Every fault, in the order in which they are run.
pub(super) fn all() -> Vec<Scenario> {
    let groups = [
        replicas::all(),
        shards::all(),
        broker::all(),
        stalls::all(),
        load::all(),
        input::all(),
        plans::all(),
        adoption::all(),
        upkeep::all(),
        setup::all(),
        durable::all(),
        remote::all(),
        python::all(),
    ];
    groups.into_iter().flatten().collect()
}

/// A list of faults from their names, descriptions and functions.
macro_rules! scenarios {
    ($($name:literal $what:literal $run:path;)+) => {
        pub(super) fn all() -> Vec<$crate::faults::scenarios::Scenario> {
            vec![$($crate::faults::scenarios::Scenario {
                name: $name,
                what: $what,
                run: || Box::pin($run()),
            },)+]
        }
    };
}

use scenarios;
