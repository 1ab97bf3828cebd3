//! The runs of a simulator.

use kaskade_policy::profile::Profile;

use super::Engine;
use crate::controller::Controller;
use crate::observer::Observer;
use crate::replan::Replanning;
use crate::report::Report;
use crate::simulator::Simulator;

impl Simulator {
    /// Simulates the service from an idle start until every request has its outcome. `arrivals` are the times at which
    /// clients send their requests, microseconds, ascending; one that goes back in time counts as simultaneous with the one before it.
    /// Every run starts from the beginning and gives the same report.
    pub fn run(&self, arrivals: impl Iterator<Item = u64>, observer: &mut impl Observer) -> Report {
        Engine::new(self, None, observer).run(arrivals)
    }

    /// Simulates like [`Simulator::run`], with a controller that plans again while the service runs. `profile` is the one that the
    /// simulator was made with: new plans are compiled against it.
    pub fn run_controlled(
        &self,
        arrivals: impl Iterator<Item = u64>,
        observer: &mut impl Observer,
        profile: &Profile,
        controller: &mut dyn Controller,
    ) -> Report {
        let replanning = Replanning::new(profile, controller);
        Engine::new(self, Some(replanning), observer).run(arrivals)
    }
}
