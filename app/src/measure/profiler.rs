//! Measures an app as configured in its file.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kaskade_models::Inputs;
use kaskade_policy::profile::{HopTime, Profile};
use kaskade_remote::SpendLimit;

use super::channels::{self, ChannelError};
use super::cost::CostOptions;
use super::host_load::{self, HostLoad};
use super::memory::MeasuredMemory;
use super::pipeline::{Measured, PipelineMeasurement};
use super::serving_overhead::Overhead;
use super::{Judge, MeasureError, MeasureOptions, profile, serving_overhead};
use crate::config::App;
use crate::config::confidence::ConfidenceConfig;
use crate::config::data::DataSet;
use crate::data::Samples;
use crate::data::text_metric::Grading;
use crate::family::{Family, Recording, Source, VariantSpec, listed};
use crate::report::in_one_line;
use crate::report::profile_warnings;
use crate::report::progress::{say, with_progress_line};
use crate::report::units;

/// Samples that are served, again and again, to measure the overhead of serving.
const ASKED: usize = 256;

/// How long each batch size is run in each round.
const MEASURE_FOR: Duration = Duration::from_millis(150);

/// Measures every variant of an app, or its pipeline, on the app's validation set.
///
/// ```no_run
/// use kaskade_app::config::App;
/// use kaskade_app::measure::Profiler;
///
/// let app = App::load("app.toml".as_ref())?;
/// let profile = Profiler::new(&app).rounds(5).run()?;
/// std::fs::write("profile.json", profile.to_json()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "an app is measured by `run`"]
pub struct Profiler<'a> {
    app: &'a App,
    family: Family,
    cost: CostOptions,
    quiet: bool,
    judge: Judge,
}

impl<'a> Profiler<'a> {
    /// Begins to set up the measuring of an app: batches of powers of two up to 64, three rounds of 150 ms each, without progress. Variants
    /// that are attached are left out: their own process measures them.
    pub fn new(app: &'a App) -> Self {
        let mut family = Family::from_app(app);
        family.members.retain(|member| !member.is_attached());
        Self {
            app,
            family,
            cost: CostOptions::new(MEASURE_FOR),
            quiet: true,
            judge: Judge::Labels,
        }
    }

    /// Sets the batch sizes. A pipeline has its own in the app's file.
    pub fn batches(mut self, batches: impl IntoIterator<Item = u32>) -> Self {
        self.cost.batches = batches.into_iter().collect();
        self.cost.batches.sort_unstable();
        self.cost.batches.dedup();
        self
    }

    /// Sets how often all batch sizes are gone through; medians over the rounds are reported.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.cost.rounds = rounds;
        self
    }

    /// Sets how long each batch size is run in each round, at least; one run is always finished.
    pub fn measure_for(mut self, measure_for: Duration) -> Self {
        self.cost.measure_for = measure_for;
        self
    }

    /// Sets whether progress is kept from standard error. Remarks on poor samples are printed there anyway.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets what decides whether an answer is right. With [`Judge::Largest`] no labels are read, and the loss of a cascade is the share of
    /// its answers that differ from the largest variant's.
    pub fn judge(mut self, judge: Judge) -> Self {
        self.judge = judge;
        self
    }

    /// Uses these models instead of the directories that the app's file names.
    pub fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Records the answers of remote variants in a directory, and replays those that it holds: each sample is paid for once,
    /// and an interrupted recording is continued. No call is made that could exceed `spend_limit`, in money, of all
    /// variants together. Without this, every round of measuring calls the endpoints.
    pub fn record(mut self, dir: &Path, spend_limit: Option<f64>) -> Self {
        let spend_limit = spend_limit.map(SpendLimit::new);
        for member in &mut self.family.members {
            if let Source::Remote { recording, .. } = &mut member.source {
                *recording = Some(Recording {
                    dir: dir.join(&member.name),
                    spend_limit: spend_limit.clone(),
                });
            }
        }
        self
    }

    /// Checks what can be known before a model is loaded.
    ///
    /// # Errors
    /// When the app names no validation set, answers of its task have no confidence, a variant has no tokenizer for its texts, or the limit of spending is for a variant or a judge
    /// without a price.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.validation_set()?;
        self.check_prices()?;
        self.check_devices()?;
        self.family.check_tokenizers(&self.app.data)?;
        if self.app.pipeline.is_none() {
            let judged = self.app.task.has_confidence();
            return judged.then_some(()).ok_or(MeasureError::NoLabelFormat);
        }
        let labelled = self.judge == Judge::Labels;
        labelled.then_some(()).ok_or(MeasureError::JudgedPipeline)
    }

    /// Checks that every variant can be measured on a device that serves it.
    fn check_devices(&self) -> Result<(), MeasureError> {
        let variants = self.app.variants.iter();
        for variant in variants.filter(|variant| variant.remote.is_none() && !variant.attached) {
            if let Some(workers) = self.app.undecided_devices(variant) {
                return Err(MeasureError::SeveralDevices {
                    variant: variant.name.to_string(),
                    workers: workers.map(|worker| worker.name.to_string()),
                    devices: workers.map(|worker| format!("`{}`", self.app.device_on(worker, variant))),
                });
            }
        }
        Ok(())
    }

    /// Checks that every call that a limit of spending bounds has a price.
    fn check_prices(&self) -> Result<(), MeasureError> {
        for member in &self.family.members {
            let Source::Remote {
                config, recording, ..
            } = &member.source
            else {
                continue;
            };
            if recording
                .as_ref()
                .is_none_or(|recording| recording.spend_limit.is_none())
            {
                continue;
            }
            let of_judge = match &config.confidence {
                ConfidenceConfig::Judge(judge) => Some((judge.price, "price of `confidence.judge`")),
                ConfidenceConfig::Logprobs | ConfidenceConfig::Agreement(_) => None,
            };
            for (price, field) in [(member.price, "price")].into_iter().chain(of_judge) {
                if price.is_none() {
                    return Err(MeasureError::NoPrice {
                        variant: member.name.clone(),
                        field,
                    });
                }
            }
        }
        Ok(())
    }

    /// Measures the app's variants: answers, calibrated confidence, latency, energy and utilisation by batch size. Memory stays unknown,
    /// because it takes a separate process for every variant; see [`Profiler::run_with_memory`].
    ///
    /// # Errors
    /// When the app names no validation set, a model cannot be loaded or fails on a sample, or answers of its task have no confidence.
    pub fn run(&self) -> Result<Profile, MeasureError> {
        self.check()?;
        for variant in self
            .app
            .variants
            .iter()
            .filter(|variant| variant.attached && !self.quiet)
        {
            say(&format!(
                "`{}` is left out: it is attached, so its own process measures it (`kaskade.profile` in Python)",
                variant.name
            ));
        }
        let set = self.validation_set()?;
        let host = HostLoad::begin();
        let options = MeasureOptions {
            app: self.app.name.as_str(),
            estimator: self.app.estimator(),
            cost: &self.cost,
            power: &(&self.app.power).into(),
            quiet: self.quiet,
            judge: &self.judge,
            grading: Grading::from_data_sets(&self.app.data),
        };
        let mut inputs = Vec::new();
        let mut profile = profile(&options, &self.family, |loaded, used| {
            let samples = Samples::read_for(set, loaded, used)?;
            // Warnings are no progress, which `quiet` is about.
            for remark in remarks(&samples, &loaded.info.labels) {
                say(&remark);
            }
            inputs = samples.inputs.iter().take(ASKED).cloned().collect();
            Ok::<_, MeasureError>(samples)
        })?;
        if let Some(remark) = none_right(&profile) {
            say(&remark);
        }
        profile.hop = or_left_out("the time of a message", on_a_thread(|| hop(&profile))).flatten();
        let overhead = self.overhead(&profile, &inputs);
        profile.turnaround_s = overhead.turnaround_s;
        profile.hop = profile.hop.map(|hop| hop.with_rates(&overhead.hops));
        profile.other_load = host.other_processes_share();
        if let Some(warning) = host_load::warning(profile.other_load) {
            say(&warning);
        }
        Ok(profile)
    }

    /// Measures the overhead of serving, where a variant can be served here.
    fn overhead(&self, profile: &Profile, inputs: &[Inputs]) -> Overhead {
        let Some(variant) = serving_overhead::variant(&self.family, profile) else {
            return Overhead::default();
        };
        // As long as four batch sizes are measured.
        let length = self.cost.measure_for * self.cost.rounds * 4;
        let what = "the overhead of serving";
        let measured = with_progress_line(&format!("profile: {what}"), self.quiet, || {
            on_a_thread(|| serving_overhead::overhead(self.app, &self.family, variant, inputs, length))
        });
        or_left_out(what, measured).unwrap_or_default()
    }

    /// The same, with the memory of every variant by batch size, which `profile memory` measures: on the processor, in a process that has done
    /// nothing else ([`super::memory::here`]). What it fails to measure stays unknown.
    ///
    /// # Errors
    /// As [`Profiler::run`].
    pub fn run_with_memory<E: Into<AnyError>>(
        &self,
        mut measure_memory: impl FnMut(&VariantSpec, &[u32]) -> Result<MeasuredMemory, E>,
    ) -> Result<Profile, MeasureError> {
        let mut profile = self.run()?;
        for (variant, member) in profile.variants.iter_mut().zip(&self.family.members) {
            if member.is_remote() {
                continue;
            }
            let what = format!("the memory of `{}`", member.name);
            let Some(memory) = or_left_out(&what, measure_memory(member, &self.cost.batches)) else {
                continue;
            };
            for (cost, measured) in variant.costs.iter_mut().zip(memory.batches) {
                cost.memory_bytes = Some(measured.bytes);
            }
        }
        Ok(profile)
    }

    /// Measures the app's pipeline: latency by batch size, how many requests each variant makes of one, and the accuracy of every path.
    ///
    /// # Errors
    /// When the app is no pipeline or names no validation set, its tree has more than two levels, or a model cannot be loaded or fails.
    pub fn run_pipeline(&self) -> Result<Measured, MeasureError> {
        let config = self.app.pipeline.as_ref().ok_or(MeasureError::NoPipeline)?;
        let set = self.validation_set()?;
        let measurement = PipelineMeasurement {
            app: self.app,
            config,
            rounds: self.cost.rounds,
            measure_for: self.cost.measure_for,
            quiet: self.quiet,
        };
        let host = HostLoad::begin();
        let measured = measurement.measure(set)?;
        if let Some(warning) = host_load::warning(host.other_processes_share()) {
            say(&warning);
        }
        Ok(measured)
    }

    fn validation_set(&self) -> Result<&'a DataSet, MeasureError> {
        self.app
            .data
            .validation
            .as_ref()
            .ok_or(MeasureError::NoValidationSet)
    }
}

/// The error of what is measured last.
type AnyError = Box<dyn Error + Send + Sync>;

/// Returns what was measured after the variants. A failure is printed and leaves it unknown: what was measured before took longer.
fn or_left_out<T>(what: &str, measured: Result<T, impl Into<AnyError>>) -> Option<T> {
    let measured = measured.map_err(Into::into);
    measured
        .inspect_err(|error| {
            say(&format!(
                "profile: {what} is left out: {}",
                in_one_line(error.as_ref())
            ));
        })
        .ok()
}

/// Returns what makes samples poor ones to choose thresholds on: a hundredth of them or more repeat others, which tests count as
/// independent, or classes have few. `names` are those of the classes.
fn remarks(samples: &Samples, names: &[String]) -> Vec<String> {
    let mut remarks = Vec::new();
    let (all, repeats) = (units::count(samples.len() as u64), samples.repeats());
    if repeats * 100 >= samples.len() {
        remarks.push(format!(
            "profile: {} of {all} validation samples have the inputs of an earlier one; a certificate counts each of them, so keep repeats only \
             where requests repeat as often",
            units::count(repeats as u64),
        ));
    }
    let others = samples.origins.other_names();
    if !others.is_empty() {
        remarks.push(format!(
            "profile: the data names its classes {}, and the model {}: their numbers are taken to mean the same",
            listed(others),
            listed(names)
        ));
    }
    let name = |class: u64| {
        let known = usize::try_from(class).ok().and_then(|class| names.get(class));
        known.map_or_else(|| format!("class {class}"), |name| format!("class `{name}`"))
    };
    if let Some(said) = profile_warnings::unequal_classes(&samples.classes(), name) {
        remarks.push(format!("profile: of the validation samples, {said}"));
    }
    remarks
}

/// Returns the variants that answered no sample rightly, as a remark.
fn none_right(profile: &Profile) -> Option<String> {
    let wrong = profile.variants.iter();
    let wrong = wrong.filter(|variant| !variant.validation.correct.contains(&true));
    let names: Vec<String> = wrong.map(|variant| format!("`{}`", variant.name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "profile: {} answered no sample rightly; do the labels of the data, or the verdicts of the judge, mean what the model's answers mean?",
            names.join(", ")
        )
    })
}

/// Measures the time of a message of the mean size of the samples.
fn hop(profile: &Profile) -> Result<Option<HopTime>, MeasureError> {
    let bytes: u64 = profile.input_bytes.iter().map(|bytes| u64::from(*bytes)).sum();
    let mean = usize::try_from(bytes / profile.samples.max(1) as u64).unwrap_or(usize::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let hop = runtime
        .map_err(MeasureError::Runtime)?
        .block_on(channels::hop(mean));
    hop.map_err(MeasureError::Hop)
}

/// Measures on a thread of its own: the caller's may run tasks already.
fn on_a_thread<T: Send>(measure: impl FnOnce() -> Result<T, MeasureError> + Send) -> Result<T, MeasureError> {
    thread::scope(|scope| {
        let ended = MeasureError::Hop(ChannelError::NoReceiver);
        scope.spawn(measure).join().unwrap_or(Err(ended))
    })
}

#[cfg(test)]
mod tests;
