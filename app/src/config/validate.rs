//! Validates an app: contradictions between its values, and files that cannot be used.

use std::collections::BTreeSet;
use std::path::Path;

use kaskade_models::class_names::comparable_name;
use kaskade_models::device::DeviceChoice;
use kaskade_models::{CoreShare, WeightType};
use kaskade_policy::confidence::Estimator;
use kaskade_policy::text_metrics::Metric;

use super::App;
use super::durable::DurableConfig;
use super::pipeline::run_time_problems;
use super::scalar::SubjectToken;
use super::task::Task;
use super::variant::{PlanSource, VariantConfig};

/// Largest number of threads that process messages.
const MAX_SHARDS: u32 = 64;
/// Largest number of cores of a replica.
const MAX_CORES: usize = 1024;

impl App {
    /// Returns all contradictions between values and all unusable files, each beginning with the path of the value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.planning_problems();
        problems.extend(self.missing_profiles());
        if let PlanSource::File(path) = &self.plan
            && !path.is_file()
        {
            problems.push(format!(
                "plan.file: `{}` is not there; `kaskade plan` writes one",
                path.display()
            ));
        }
        problems
    }

    /// Returns [`App::problems`] except missing data files and a missing plan: a stored plan, or one from a flag, may
    /// be served.
    pub(super) fn serving_problems(&self) -> Vec<String> {
        let mut problems = self.contradictions();
        problems.extend(self.missing_profiles());
        problems
    }

    /// Returns [`App::problems`] except missing plans and profiles, which profiling and planning write.
    pub(super) fn planning_problems(&self) -> Vec<String> {
        let mut problems = self.contradictions();
        problems.extend(self.data.missing_files());
        problems
    }

    /// Returns a problem for every missing profile that a planner needs.
    fn missing_profiles(&self) -> impl Iterator<Item = String> {
        let of_gears = self.planner.as_ref().map(|config| ("planner", &config.profile));
        let pipeline = self.pipeline.as_ref();
        let pipeline = pipeline.and_then(|config| config.planner.and(config.profile.as_ref()));
        let of_pipeline = pipeline.map(|profile| ("pipeline", profile));
        let profiles = of_gears.into_iter().chain(of_pipeline);
        let missing = profiles.filter(|(_, profile)| !profile.is_file());
        missing.map(|(at, profile)| {
            format!(
                "{at}.profile: `{}` is not there; `kaskade profile` writes one",
                profile.display()
            )
        })
    }

    /// Returns all contradictions between values, and unusable files that Kaskade does not write itself.
    fn contradictions(&self) -> Vec<String> {
        let mut problems = self.list_problems();
        for (index, variant) in self.variants.iter().enumerate() {
            problems.extend(self.variant_problems(index, variant));
        }
        problems.extend(self.data.problems());
        problems.extend(self.task_problems());
        problems.extend(self.class_problems());
        problems.extend(self.plan_problems());
        problems.extend(self.telemetry.problems());
        problems.extend(self.ingress.problem());
        problems.extend(self.gateway.problems());
        problems.extend(self.generation.problems());
        problems.extend(self.durable.iter().flat_map(DurableConfig::problems));
        problems.extend(self.nats.problems());
        if self.batching.min_queue > self.batching.max_batch {
            problems.push(format!(
                "batching.min_queue: {} is more than max_batch, {}; such a batch never fills",
                self.batching.min_queue, self.batching.max_batch
            ));
        }
        problems
    }

    /// Returns the problems of the lists of variants and workers, and of the number of shards.
    fn list_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.variants.is_empty() {
            problems
                .push("variants: is empty; name at least one model, here or in a `family` file".to_owned());
        }
        if self.workers.is_empty() {
            problems.push("workers: is empty; name at least one worker, or leave it out".to_owned());
        }
        if self.shards.is_some_and(|shards| shards.get() > MAX_SHARDS) {
            problems.push(format!("shards: at most {MAX_SHARDS} are possible"));
        }
        for (index, worker) in self.workers.iter().enumerate() {
            if worker.cores.is_some_and(|cores| cores.get() > MAX_CORES) {
                problems.push(format!(
                    "workers[{index}].cores: at most {MAX_CORES} are possible"
                ));
            }
        }
        let variants = self.variants.iter().map(|variant| &variant.name);
        problems.extend(repeated("variants", variants));
        let workers = self.workers.iter().map(|worker| &worker.name);
        problems.extend(repeated("workers", workers));
        problems
    }

    /// Returns the settings that the task does not allow.
    fn task_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let of_entities = self.data.metric == Metric::EntityF1;
        let exact = self.data.metric == Metric::Exact;
        if !exact && of_entities != (self.task == Task::TokenClassification) {
            problems.push(
                "data.metric: answers of `token_classification` are compared by `exact` or `entity_f1`, and only they by `entity_f1`"
                    .to_owned(),
            );
        }
        if self.task == Task::TokenClassification && self.estimator() != Estimator::Given {
            problems.push(
                "confidence: a token classifier gives its own, that of its least certain token; leave it out"
                    .to_owned(),
            );
        }
        if self.task == Task::Generation && self.estimator() != Estimator::Given {
            problems.push(
                "confidence: a language model gives its own, from the strongest tokens of every step; leave it out"
                    .to_owned(),
            );
        }
        let escalates = self.planner.is_some() || matches!(self.plan, PlanSource::File(_));
        if escalates && !self.task.has_confidence() {
            problems.push(
                "task: answers of this task have no confidence, which a cascade needs; serve one variant with \
                 `plan = { single = \"NAME\" }`, without `planner`"
                    .to_owned(),
            );
        }
        problems
    }

    /// Returns the problems of the class names.
    fn class_problems(&self) -> Vec<String> {
        if self.classes.is_empty() {
            return Vec::new();
        }
        if !matches!(self.task, Task::Classification | Task::MultiLabel) || self.pipeline.is_some() {
            return vec![
                "classes: only the tasks `classification` and `multi_label` have them, without a pipeline; leave it out".to_owned(),
            ];
        }
        let mut seen = BTreeSet::new();
        let repeated = self.classes.iter().enumerate();
        let repeated = repeated.filter(|(_, name)| !seen.insert(comparable_name(name)));
        repeated
            .map(|(class, name)| {
                format!("classes[{class}]: `{name}` is used twice; every class needs a name of its own")
            })
            .collect()
    }

    /// Returns the problems of the plan, the planners and the guarantee.
    fn plan_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let PlanSource::Single(name) = &self.plan
            && !self.variants.iter().any(|variant| variant.name == *name)
        {
            problems.push(format!("plan.single: `{name}` is none of the variants"));
        }
        if let Some(planner) = &self.planner {
            problems.extend(run_time_problems(&planner.run_times, "planner"));
        }
        if let Some(pipeline) = &self.pipeline {
            problems.extend(pipeline.problems(self));
        }
        if let Some(guarantee) = &self.guarantee {
            problems.extend(guarantee.problems(self.pipeline.is_some()));
        }
        problems
    }
}

impl App {
    /// Checks that a variant has exactly one source, and that it is usable.
    fn variant_problems(&self, index: usize, variant: &VariantConfig) -> Vec<String> {
        let at = format!("variants[{index}]");
        let mut problems = Vec::new();
        if variant.price.is_some_and(|price| !price.is_sound()) {
            problems.push(format!(
                "{at}.price: every amount must be finite and not negative"
            ));
        }
        if variant.dtype.is_some() && variant.dir.is_none() {
            problems.push(format!(
                "{at}.dtype: only checkpoints of `dir` have weights to convert; leave it out"
            ));
        }
        // A plan may place the variant on any worker.
        let mut devices = self.workers.iter().map(|worker| self.device_on(worker, variant));
        let runs_on_cpu = if self.workers.is_empty() {
            self.device_of(variant) == DeviceChoice::Cpu
        } else {
            devices.any(|device| device == DeviceChoice::Cpu)
        };
        if variant.dtype.is_some_and(WeightType::is_quantised) && !runs_on_cpu {
            problems.push(format!(
                "{at}.dtype: q8_0 and q4_0 need the device `cpu`; choose f32, bf16 or f16, or leave it out"
            ));
        }
        if variant.cores.is_some() && variant.dir.is_none() {
            problems.push(format!(
                "{at}.cores: only checkpoints of `dir` have threads of their own; leave it out"
            ));
        }
        if variant.aggregation_strategy.is_some()
            && (variant.dir.is_none() || self.task != Task::TokenClassification)
        {
            problems.push(format!(
                "{at}.aggregation_strategy: only checkpoints of `dir` for the task `token_classification` have one; leave it out"
            ));
        }
        if variant.file.is_some() && self.task == Task::TokenClassification {
            problems.push(format!(
                "{at}.file: ONNX files give no entities; use `dir`, or `remote` with `kind = \"oip\"`"
            ));
        }
        if variant.cores.is_some_and(|cores| cores.get() > MAX_CORES) {
            problems.push(format!("{at}.cores: at most {MAX_CORES} are possible"));
        }
        if variant.cores.is_some() && self.core_share != CoreShare::WHOLE {
            problems.push(format!(
                "{at}.cores: `core_share` limits every replica to a share of one core; leave one of them out"
            ));
        }
        match (&variant.dir, &variant.file, &variant.remote, variant.attached) {
            (Some(dir), None, None, false) => problems.extend(checkpoint_problem(index, variant, dir)),
            (None, Some(file), None, false) if file.is_dir() => problems.push(format!(
                "{at}.file: `{}` is a folder; name the .onnx file in it",
                file.display()
            )),
            (None, Some(file), None, false) if !file.is_file() => {
                problems.push(format!("{at}.file: `{}` is not there", file.display()));
            }
            (None, Some(_), None, false) if self.task == Task::Generation => problems.push(format!(
                "{at}.file: ONNX files of language models are not served; use `dir`, or `remote`"
            )),
            (None, None, Some(remote), false) => {
                problems.extend(remote.problems(&format!("{at}.remote"), self.task));
            }
            (None, Some(_), None, false) | (None, None, None, true) => {}
            (None, None, None, false) => {
                problems.push(format!(
                    "{at}: give one of `dir`, `file`, `remote` and `attached`"
                ));
            }
            _ => problems.push(format!(
                "{at}: give only one of `dir`, `file`, `remote` and `attached`"
            )),
        }
        problems
    }
}

/// Checks that a variant's directory is a checkpoint of a supported architecture.
fn checkpoint_problem(index: usize, variant: &VariantConfig, path: &Path) -> Option<String> {
    let (name, dir) = (&variant.name, path.display());
    if !kaskade_models::checkpoint::is_checkpoint(path) {
        let why = kaskade_models::checkpoint::why_no_checkpoint(path);
        return Some(format!("variants[{index}].dir: `{dir}` {why}"));
    }
    match kaskade_models::architecture(path) {
        Ok(_) => None,
        Err(error) => Some(format!("variants[{index}].dir: variant `{name}`: {error}")),
    }
}

/// Returns a problem for every repeated name.
fn repeated<'a>(
    list: &'a str,
    names: impl Iterator<Item = &'a SubjectToken>,
) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names
        .enumerate()
        .filter(move |(_, name)| !seen.insert(*name))
        .map(move |(index, name)| format!("{list}[{index}].name: `{name}` is used twice"))
}
