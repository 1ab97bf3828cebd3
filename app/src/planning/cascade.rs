//! Plans cascades from a profile.

mod text;

use kaskade_planners::cascade::{CascadeOptions, CascadePlan, Objective, plan_cascade};
use kaskade_planners::thresholds::{CostBasis, Minimise, NonInferiorityTest, Point};
use kaskade_policy::linear_fit;
use kaskade_policy::plan::Replica;
use kaskade_policy::profile::Profile;

pub use self::text::as_text;
use crate::charts::graph::{self, Graph, NamedPoint};
use crate::config::App;
use crate::planning::{PlanningError, initial};
use crate::report::units;

/// Builder of a confidence cascade plan from a profile; created by [`cascade`](super::cascade()).
///
/// The same profile, settings and seed give the same plan.
#[derive(Debug, Clone)]
#[must_use = "a cascade is planned by `plan`"]
pub struct CascadePlanner<'a> {
    profile: &'a Profile,
    app: Option<&'a App>,
    batch: Option<u32>,
    objective: Option<Objective>,
    options: CascadeOptions,
}

impl<'a> CascadePlanner<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            app: None,
            batch: None,
            objective: None,
            options: CascadeOptions::default(),
        }
    }

    /// Places the plan on the workers and devices of an app, with the app's batching. Without an app, the plan has one
    /// worker `local` on the CPU.
    pub fn app(mut self, app: &'a App) -> Self {
        self.app = Some(app);
        self.options.batching = app.batching.into();
        self
    }

    /// Sets the objective. The default is the app's guarantee, or without one the accuracy of the best variant at the
    /// lowest energy ([`Objective::Ap`]).
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = Some(objective);
        self
    }

    /// Sets the cost to minimise; by default joules per request.
    pub fn minimise(mut self, minimise: Minimise) -> Self {
        self.options.minimise = minimise;
        self
    }

    /// Sets the batch size for which costs are taken; by default the app's largest batch.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Sets the non-inferiority test that the named points must pass.
    pub fn safety_margin(mut self, margin: NonInferiorityTest) -> Self {
        self.options.safety_margin = margin;
        self
    }

    /// Sets whether skip connections are tried.
    pub fn skips(mut self, skips: bool) -> Self {
        self.options.skips = skips;
        self
    }

    /// Sets whether stages of a certified cascade may use a learned deferral score instead of their confidence; by
    /// default they may.
    pub fn learn_scores(mut self, learn: bool) -> Self {
        self.options.learn_scores = learn;
        self
    }

    /// Sets the accuracy that skip connections may cost at given thresholds, in [0, 1].
    pub fn skip_loss(mut self, loss: f64) -> Self {
        self.options.skip_loss = loss;
        self
    }

    /// Sets the seed of the random part of the search.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// Returns the batch size for which costs are taken.
    pub fn costs_at(&self) -> u32 {
        let of_app = || self.app.map(|app| app.batching.max_batch.get());
        self.batch.or_else(of_app).unwrap_or(self.options.batch)
    }

    /// Plans the cascade.
    ///
    /// # Errors
    /// [`PlanningError`] if the profile or a setting is unusable, or the profile belongs to another app.
    pub fn plan(&self) -> Result<CascadePlan, PlanningError> {
        // Check first, since planning may take minutes.
        if let Some(app) = self.app.filter(|app| self.profile.app != app.name.as_str()) {
            return Err(PlanningError::OtherProfile {
                profile: self.profile.app.clone(),
                app: app.name.to_string(),
            });
        }
        let guaranteed = || self.app?.guarantee?.certify().map(Objective::Certified);
        let objective = self.objective.clone().or_else(guaranteed);
        let options = CascadeOptions {
            batch: self.costs_at(),
            objective: objective.unwrap_or(Objective::Ap),
            ..self.options.clone()
        };
        let mut planned = plan_cascade(self.profile, &options)?;
        let Some(app) = self.app else {
            return Ok(planned);
        };
        let variants = planned.plan.variants.iter().map(|variant| variant.name.as_str());
        let placement = initial::placement(app, &variants.collect::<Vec<_>>());
        let holding = |replica: Replica| {
            let checkpoint = self.profile.checkpoint(&replica.variant);
            replica.with_checkpoint(checkpoint)
        };
        planned.plan.placement = placement.into_iter().map(holding).collect();
        planned.plan.validate()?;
        initial::check(app, &planned.plan)?;
        Ok(planned)
    }
}

/// Returns the accuracy-energy graph of a family: its frontier, its models, AP and EO.
pub fn graph(profile: &Profile, planned: &CascadePlan, batch: u32) -> Graph {
    let basis = planned.estimates.basis;
    let point = |point: &Point| graph::Point {
        cost: point.energy_j,
        accuracy: point.accuracy,
    };
    let last = profile.variants.len().saturating_sub(1);
    let models = profile.variants.iter().enumerate().map(|(place, variant)| {
        let cost = linear_fit::per_request(&variant.costs, batch, |cost| match basis {
            CostBasis::Energy => cost.energy_j,
            CostBasis::Latency => Some(cost.latency_s),
            CostBasis::Money => variant
                .money
                .map(|money| money.per_request * f64::from(cost.batch)),
        });
        let right = variant.validation.correct.iter().filter(|right| **right).count();
        NamedPoint {
            name: if place == last {
                format!("{} (largest)", variant.name)
            } else {
                variant.name.clone()
            },
            at: graph::Point {
                cost: cost.unwrap_or(f64::NAN),
                accuracy: right as f64 / profile.samples.max(1) as f64,
            },
        }
    });
    let mark = |name: &str, at: &Point| NamedPoint {
        name: name.to_owned(),
        at: point(at),
    };
    Graph {
        title: match basis {
            CostBasis::Money => format!("{}: accuracy against cost, validation set", profile.app),
            _ => format!("{}: accuracy against energy, validation set", profile.app),
        },
        axis: match basis {
            CostBasis::Energy => format!("energy per request ({})", profile.energy_source),
            CostBasis::Latency if planned.minimised == Minimise::Latency => "seconds per request".to_owned(),
            CostBasis::Latency => "seconds per request, standing in for unknown energy".to_owned(),
            CostBasis::Money => format!("money per request ({})", units::money_sources(profile)),
        },
        unit: unit(basis),
        frontier: planned.frontier.points.iter().map(point).collect(),
        models: models.collect(),
        marks: vec![mark("EO", &planned.eo), mark("AP", &planned.ap)],
    }
}

fn unit(basis: CostBasis) -> &'static str {
    match basis {
        CostBasis::Energy => "J",
        CostBasis::Latency => "s",
        CostBasis::Money => "",
    }
}

/// Plans of the named points of a family, with its graph.
#[non_exhaustive]
pub struct Cascades {
    /// The graph.
    pub graph: Graph,
    /// Accuracy-preserving plan.
    pub ap: CascadePlan,
    /// Energy-optimising plan.
    pub eo: CascadePlan,
}

/// Plans both named cascades of an app.
///
/// # Errors
/// As [`CascadePlanner::plan`].
pub fn cascades(app: &App, profile: &Profile, seed: u64) -> Result<Cascades, PlanningError> {
    let planner = CascadePlanner::new(profile).app(app).seed(seed);
    let ap = planner.clone().objective(Objective::Ap).plan()?;
    let eo = planner.clone().objective(Objective::Eo).plan()?;
    Ok(Cascades {
        graph: graph(profile, &ap, planner.costs_at()),
        ap,
        eo,
    })
}

#[cfg(test)]
mod tests;
