//! Builds the plan of a cascade by hand: one gear, stages in order, each with a threshold.

use super::{
    Band, Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica,
    Sharing, Stage, Wiring,
};
use crate::confidence::{Calibration, Estimator};
use crate::invalid::Invalid;

/// Name of the worker of a process that serves the whole app.
pub const SOLE_WORKER: &str = "local";

impl Plan {
    /// Starts a cascade: each stage answers if its confidence reaches a threshold, and escalates otherwise.
    ///
    /// ```
    /// use kaskade_policy::plan::Plan;
    ///
    /// let plan = Plan::cascade("parity")
    ///     .stage("guess", "tiny-model")
    ///     .below(0.5)
    ///     .then("round", "large-model")
    ///     .build()?;
    /// assert_eq!(Plan::from_json(&plan.to_json()?)?, plan);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cascade(app: impl Into<String>) -> CascadeBuilder {
        CascadeBuilder {
            app: app.into(),
            made_by: "by hand".to_owned(),
        }
    }

    /// A plan of one gear for every load, with the default sharing, no dropping and no objective; its `made_by` is `by hand`.
    pub fn one_gear(
        app: impl Into<String>,
        variants: Vec<PlannedVariant>,
        placement: Vec<Replica>,
        wiring: Wiring,
    ) -> Self {
        Self {
            version: PLAN_VERSION,
            app: app.into(),
            made_by: "by hand".to_owned(),
            variants,
            placement,
            sharing: Sharing::default(),
            dropping: Dropping::None,
            slo: None,
            certificate: None,
            certified: None,
            gears: vec![Gear {
                name: "only".to_owned(),
                load: LoadRange::ALL,
                expected: None,
                wiring,
            }],
        }
    }
}

/// A cascade without stages; [`CascadeBuilder::stage`] adds the first.
#[derive(Debug, Clone)]
#[must_use = "a plan is made by `stage(..).build()`"]
pub struct CascadeBuilder {
    app: String,
    made_by: String,
}

impl CascadeBuilder {
    /// Sets the field `made_by` of the plan; the default is `by hand`.
    pub fn made_by(mut self, made_by: impl Into<String>) -> Self {
        self.made_by = made_by.into();
        self
    }

    /// Adds the entry stage, which runs `variant`.
    pub fn stage(self, name: impl Into<String>, variant: impl Into<String>) -> StageBuilder {
        let empty = Draft {
            app: self.app,
            made_by: self.made_by,
            variants: Vec::new(),
            stages: Vec::new(),
        };
        empty.with_stage(name.into(), variant.into())
    }
}

/// A cascade that ends in the stage added last. The setters apply to that stage.
///
/// Each variant gets one replica on the worker [`SOLE_WORKER`], on the device `cpu`, with the id `VARIANT-0`. Stages that
/// run the same variant share its replicas.
#[derive(Debug, Clone)]
#[must_use = "a plan is made by `build`"]
pub struct StageBuilder {
    draft: Draft,
    name: String,
    /// Index in the draft's variants.
    variant: usize,
    batching: Batching,
}

/// A cascade whose last stage escalates below a threshold; [`Deferral::then`] adds the next stage.
#[derive(Debug, Clone)]
#[must_use = "`then` adds the stage to escalate to"]
pub struct Deferral {
    stage: StageBuilder,
    threshold: f64,
    /// A lower threshold, and the stage to escalate to below it.
    skip: Option<(f64, String)>,
}

/// The stages before the last, and all variants.
#[derive(Debug, Clone)]
struct Draft {
    app: String,
    made_by: String,
    variants: Vec<VariantDraft>,
    stages: Vec<Stage>,
}

#[derive(Debug, Clone)]
struct VariantDraft {
    name: String,
    worker: String,
    device: String,
    replicas: u32,
    /// Replaces worker, device and number of replicas.
    placement: Option<Vec<Replica>>,
    calibration: Option<Calibration>,
}

impl Draft {
    fn with_stage(mut self, name: String, variant: String) -> StageBuilder {
        let known = self.variants.iter().position(|draft| draft.name == variant);
        let index = known.unwrap_or(self.variants.len());
        if known.is_none() {
            self.variants.push(VariantDraft {
                name: variant,
                worker: SOLE_WORKER.to_owned(),
                device: "cpu".to_owned(),
                replicas: 1,
                placement: None,
                calibration: None,
            });
        }
        StageBuilder {
            draft: self,
            name,
            variant: index,
            batching: Batching::default(),
        }
    }
}

impl StageBuilder {
    /// Escalates an answer whose confidence is below `threshold`, in [0, 1].
    pub fn below(self, threshold: f64) -> Deferral {
        Deferral {
            stage: self,
            threshold,
            skip: None,
        }
    }

    /// Sets when a queue of the stage becomes a batch; the default is [`Batching::default`].
    pub fn batching(mut self, batching: Batching) -> Self {
        self.batching = batching;
        self
    }

    /// Sets the worker that hosts the variant. A name that no process has leaves the replicas to custom stages, which
    /// attach under the replicas' ids.
    pub fn worker(self, worker: impl Into<String>) -> Self {
        let worker = worker.into();
        self.set(|variant| variant.worker = worker)
    }

    /// Sets the device of the variant on its worker: `cpu`, `cuda:0`, ...
    pub fn device(self, device: impl Into<String>) -> Self {
        let device = device.into();
        self.set(|variant| variant.device = device)
    }

    /// Sets the number of replicas of the variant, at least 1; their ids count from `VARIANT-0`.
    pub fn replicas(self, replicas: u32) -> Self {
        self.set(|variant| variant.replicas = replicas)
    }

    /// Sets the replicas of the variant one by one, in place of [`worker`](Self::worker), [`device`](Self::device) and
    /// [`replicas`](Self::replicas).
    pub fn placement(self, placement: Vec<Replica>) -> Self {
        self.set(|variant| variant.placement = Some(placement))
    }

    /// Sets how the variant's outputs become a confidence. By default a variant with a threshold gives its own: the output
    /// `confidence`, a scalar in [0, 1].
    pub fn calibration(self, calibration: Calibration) -> Self {
        self.set(|variant| variant.calibration = Some(calibration))
    }

    /// Checks the plan and returns it.
    ///
    /// # Errors
    /// [`Invalid`]: a name that is not a subject token, a repeated stage, a threshold or another number outside its range.
    pub fn build(self) -> Result<Plan, Invalid> {
        let plan = self.build_unchecked();
        plan.validate()?;
        Ok(plan)
    }

    /// Returns the plan without checking it; [`Plan::validate`] does.
    pub fn build_unchecked(self) -> Plan {
        let draft = self.into_draft(Exit::Reply);
        let stages = draft.stages;
        let placement = draft.variants.iter().flat_map(VariantDraft::placement).collect();
        let wiring = Wiring {
            entry: Edge::to(stages.first().map_or("", |stage| stage.name.as_str())),
            ensemble: Vec::new(),
            stages,
        };
        let variants = draft.variants.into_iter();
        let variants = variants.map(|variant| variant.planned(&wiring.stages)).collect();
        Plan {
            made_by: draft.made_by,
            ..Plan::one_gear(draft.app, variants, placement, wiring)
        }
    }

    fn set(mut self, change: impl FnOnce(&mut VariantDraft)) -> Self {
        if let Some(variant) = self.draft.variants.get_mut(self.variant) {
            change(variant);
        }
        self
    }

    /// The draft with the last stage, which has this exit.
    fn into_draft(mut self, exit: Exit) -> Draft {
        let variant = self.draft.variants.get(self.variant);
        let variant = variant.map_or("", |variant| variant.name.as_str());
        let stage = Stage::new(self.name, variant, exit, self.batching);
        self.draft.stages.push(stage);
        self.draft
    }
}

impl Deferral {
    /// Escalates an answer whose confidence is below this lower threshold to a later stage than the next. A second call replaces
    /// the first.
    pub fn skip_below(mut self, threshold: f64, stage: impl Into<String>) -> Self {
        self.skip = Some((threshold, stage.into()));
        self
    }

    /// Adds the stage that gets the escalated requests, which runs `variant`.
    pub fn then(self, name: impl Into<String>, variant: impl Into<String>) -> StageBuilder {
        let name = name.into();
        let next_from = self.skip.as_ref().map_or(0.0, |(threshold, _)| *threshold);
        let skip = self.skip.map(|(_, stage)| Band::forward(0.0, Edge::to(stage)));
        let next = Band::forward(next_from, Edge::to(name.as_str()));
        let bands = skip.into_iter().chain([next, Band::reply(self.threshold)]);
        let exit = Exit::Bands {
            bands: bands.collect(),
        };
        self.stage.into_draft(exit).with_stage(name, variant.into())
    }
}

impl VariantDraft {
    fn placement(&self) -> Vec<Replica> {
        let replica = |index| {
            Replica::whole(
                format!("{}-{index}", self.name),
                &self.name,
                &self.worker,
                &self.device,
            )
        };
        let given = self.placement.clone();
        given.unwrap_or_else(|| (0..self.replicas).map(replica).collect())
    }

    /// Calibrates the variant, if one of its stages needs it.
    fn planned(self, stages: &[Stage]) -> PlannedVariant {
        let mut of_variant = stages.iter().filter(|stage| stage.variant == self.name);
        let defers = of_variant.any(|stage| !stage.exit.always_replies());
        let given = Calibration::uncalibrated(Estimator::Given);
        PlannedVariant {
            calibration: self.calibration.or_else(|| defers.then_some(given)),
            name: self.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalid::Problem;

    fn parity() -> StageBuilder {
        Plan::cascade("parity")
            .stage("guess", "tiny")
            .below(0.5)
            .then("round", "large")
    }

    #[test]
    fn the_replicas_of_the_entry_say_what_runs_at_once() {
        let mut plan = parity().build().unwrap();
        let max_batch = plan.gears[0].wiring.stages[0].batching.max_batch as usize;
        assert_eq!(plan.runs_at_once(), max_batch);
        let another = Replica {
            id: "guess-1".to_owned(),
            ..plan.placement[0].clone()
        };
        plan.placement.push(another);
        assert_eq!(plan.runs_at_once(), 2 * max_batch);
        // A request waits for both members.
        plan.gears[0].wiring.ensemble = vec![Edge::to("round")];
        assert_eq!(plan.runs_at_once(), max_batch);
    }

    #[test]
    fn two_stages_make_a_valid_plan_that_survives_json() {
        let plan = parity().build().unwrap();
        plan.validate().unwrap();
        assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
        let [gear] = plan.gears.as_slice() else {
            panic!("{:?}", plan.gears)
        };
        assert_eq!(gear.wiring.entry, Edge::to("guess"));
        let exits: Vec<&Exit> = gear.wiring.stages.iter().map(|stage| &stage.exit).collect();
        let bands = vec![Band::forward(0.0, Edge::to("round")), Band::reply(0.5)];
        assert_eq!(exits, [&Exit::Bands { bands }, &Exit::Reply]);
        let replicas: Vec<(&str, &str, &str)> = plan
            .placement
            .iter()
            .map(|replica| {
                (
                    replica.id.as_str(),
                    replica.worker.as_str(),
                    replica.device.as_str(),
                )
            })
            .collect();
        assert_eq!(
            replicas,
            [("tiny-0", SOLE_WORKER, "cpu"), ("large-0", SOLE_WORKER, "cpu")]
        );
    }

    #[test]
    fn only_a_variant_that_defers_is_calibrated_by_default() {
        let plan = parity().build().unwrap();
        let estimators: Vec<Option<Estimator>> = plan
            .variants
            .iter()
            .map(|variant| variant.calibration.map(|fitted| fitted.estimator))
            .collect();
        assert_eq!(estimators, [Some(Estimator::Given), None]);
    }

    #[test]
    fn the_least_confident_answers_skip_a_stage() {
        let skipping = |threshold, stage: &str| {
            let first = Plan::cascade("three").stage("a", "small").below(0.5);
            let second = first.skip_below(threshold, stage).then("b", "medium");
            second.below(0.7).then("c", "large").build()
        };
        let plan = skipping(0.2, "c").unwrap();
        let bands = vec![
            Band::forward(0.0, Edge::to("c")),
            Band::forward(0.2, Edge::to("b")),
            Band::reply(0.5),
        ];
        assert_eq!(plan.gears[0].wiring.stages[0].exit, Exit::Bands { bands });
        assert!(skipping(0.6, "c").is_err(), "the bands are not ascending");
        assert!(skipping(0.2, "d").is_err(), "no such stage");
    }

    #[test]
    fn setters_apply_to_the_last_stage() {
        let batching = Batching {
            max_batch: 4,
            ..Batching::default()
        };
        let calibration = Calibration {
            estimator: Estimator::Margin,
            temperature: 2.0,
        };
        let plan = Plan::cascade("three")
            .stage("a", "small")
            .calibration(calibration)
            .batching(batching)
            .below(0.9)
            .then("b", "medium")
            .replicas(2)
            .below(0.7)
            .then("c", "large")
            .worker("far")
            .device("cuda:0")
            .build()
            .unwrap();
        assert_eq!(plan.variants[0].calibration, Some(calibration));
        let stages = &plan.gears[0].wiring.stages;
        assert_eq!(
            (stages[0].batching, stages[1].batching),
            (batching, Batching::default())
        );
        let ids: Vec<&str> = plan.placement.iter().map(|replica| replica.id.as_str()).collect();
        assert_eq!(ids, ["small-0", "medium-0", "medium-1", "large-0"]);
        assert_eq!(
            (
                plan.placement[3].worker.as_str(),
                plan.placement[3].device.as_str()
            ),
            ("far", "cuda:0")
        );
        assert_eq!(plan.placement[0].worker, SOLE_WORKER);
    }

    #[test]
    fn stages_of_one_variant_share_its_replicas() {
        let plan = Plan::cascade("twice")
            .stage("first", "same")
            .below(0.5)
            .then("second", "same")
            .build()
            .unwrap();
        assert_eq!((plan.variants.len(), plan.placement.len()), (1, 1));
    }

    #[test]
    fn a_single_stage_replies() {
        let plan = Plan::cascade("one").stage("only", "model").build().unwrap();
        assert_eq!(plan.gears[0].wiring.stages[0].exit, Exit::Reply);
        assert_eq!(plan.variants[0].calibration, None);
    }

    #[test]
    fn mistakes_are_named_by_the_validation() {
        let repeated = Plan::cascade("x")
            .stage("a", "m")
            .below(0.5)
            .then("a", "n")
            .build();
        assert!(matches!(repeated.unwrap_err().problem, Problem::Twice { .. }));
        let dotted = Plan::cascade("a.b").stage("a", "m").build().unwrap_err();
        assert_eq!(dotted.path, "app");
        for threshold in [f64::NAN, 1.5, -0.1] {
            let wrong = Plan::cascade("x")
                .stage("a", "m")
                .below(threshold)
                .then("b", "n")
                .build();
            assert!(wrong.is_err(), "{threshold}");
        }
        let none = Plan::cascade("x")
            .stage("a", "m")
            .replicas(0)
            .build()
            .unwrap_err();
        assert!(
            matches!(none.problem, Problem::NoReplica { .. } | Problem::Empty),
            "{none}"
        );
    }
}
