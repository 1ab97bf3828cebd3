//! Measures costs and answers of a family: the profile that planners read.
//!
//! | module | holds |
//! |---|---|
//! | [`answers`] | answers of a model on a labelled set, calibrated |
//! | [`channels`] | how long a message takes from stage to stage |
//! | `class_assignment` | whether a classifier would be right more often if its classes were others |
//! | [`cost`] | latency, energy and utilisation by batch size |
//! | `detections` | objects that a detector found in scenes, and their accuracy |
//! | [`host_load`] | the processor time that other processes used meanwhile |
//! | [`judge`] | a program that judges answers |
//! | [`memory`] | memory of a model on its device by batch size |
//! | [`meter`] | stretches of work and their energy |
//! | [`profiler`] | [`Profiler`]: measures an app as configured |
//! | `remote` | answers of remote variants, recorded once |
//! | [`serving_overhead`] | the overhead of serving: messages, and the time between two batches |
//! | [`text`] | profiles as text for people |
//! | [`pipeline`] | a pipeline: costs and multiplicative factors of its variants, accuracy of its paths |
//! | `error` | why a family or a pipeline cannot be measured |

pub mod answers;
pub mod channels;
mod class_assignment;
pub mod cost;
mod detections;
mod error;
pub mod host_load;
pub mod judge;
pub mod memory;
pub mod meter;
pub mod pipeline;
pub mod profiler;
mod remote;
pub mod serving_overhead;
pub mod text;

use answers::{Answers, Correctness};
use cost::CostOptions;
pub use error::MeasureError;
use judge::JudgeProgram;
use kaskade_models::power::PowerConfig;
use kaskade_models::{Inputs, Loaded, Model, ModelInfo};
use kaskade_policy::confidence::Estimator;
use kaskade_policy::profile::{PROFILE_VERSION, Profile, VariantProfile};
use kaskade_policy::text_metrics::TextComparison;
use meter::Meter;
pub use profiler::Profiler;

use crate::config::Task;
use crate::data::text_metric::Grading;
use crate::data::{Label, LabelUse, Samples};
use crate::family::{Classes, Family, FamilyError, VariantSpec};
use crate::report::progress::{Progress, say};
use crate::report::units;

/// Options of the measurements.
pub struct MeasureOptions<'a> {
    /// Name of the app.
    pub app: &'a str,
    /// The confidence score.
    pub estimator: Estimator,
    /// Batch sizes, rounds and duration of the measurement of costs.
    pub cost: &'a CostOptions,
    /// Source of joules.
    pub power: &'a PowerConfig,
    /// Whether progress is kept to oneself.
    pub quiet: bool,
    /// Criterion that decides whether an answer is right.
    pub judge: &'a Judge,
    /// How texts are compared.
    pub grading: Grading,
}

/// Criterion that decides whether an answer is right.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Judge {
    /// The labels of the validation set.
    #[default]
    Labels,
    /// The largest variant: an answer is right if it gives the same one. Spans are compared by their texts, by a metric of these if one is set, and by positions where they have none; several labels and the entities of a text as a set.
    Largest,
    /// A program that is given every answer, and the label where there is one.
    Program(JudgeProgram),
}

impl Judge {
    /// Returns what the labels of the set are used for.
    fn label_use(&self) -> LabelUse {
        match self {
            Self::Labels => LabelUse::Required,
            Self::Largest => LabelUse::Ignored,
            Self::Program(_) => LabelUse::Reference,
        }
    }

    fn program(&self) -> Option<&JudgeProgram> {
        match self {
            Self::Program(program) => Some(program),
            Self::Labels | Self::Largest => None,
        }
    }
}

/// Profiles a family: loads one model after the other, measures what it costs, and calibrates it on a labelled set, which
/// `samples` reads once the first model is loaded.
///
/// # Errors
/// When a model cannot be loaded, fails on a sample, or does not take what the others take.
pub fn profile<E: From<MeasureError>>(
    options: &MeasureOptions<'_>,
    family: &Family,
    samples: impl FnOnce(&Loaded, LabelUse) -> Result<Samples, E>,
) -> Result<Profile, E> {
    let mut read: Option<Samples> = None;
    let mut samples = Some(samples);
    let mut variants = Vec::new();
    let mut texts = Vec::new();
    let mut devices: Vec<String> = Vec::new();
    let mut sources: Vec<String> = Vec::new();
    check_files(family)?;
    let mut classes = Classes::default();
    for (place, member) in family.members.iter().enumerate() {
        let mut loaded = member
            .load(member.device)
            .map_err(MeasureError::of_variant(&member.name))?;
        classes
            .check(&member.name, &loaded.info)
            .map_err(MeasureError::of_variant(&member.name))?;
        let signature = loaded.model.signature();
        if let Some(samples) = samples.take() {
            let mut set = samples(&loaded, options.judge.label_use())?;
            if *options.judge == Judge::Largest {
                set.labels = labels_of_largest(family, &set, options.grading)?;
            }
            read = Some(set);
        }
        let set = read.as_ref().ok_or(MeasureError::NoSamples)?;
        set.check(&signature)
            .map_err(MeasureError::of_variant(&member.name))?;
        let mut meter = Meter::open(member.device, options.power)?;
        note(&mut devices, meter.device());
        note(&mut sources, meter.source());
        let forwards_too_long = place + 1 < family.members.len();
        let measured = variant(
            options,
            (member, forwards_too_long),
            &loaded.info,
            loaded.model.as_mut(),
            set,
            &mut meter,
        );
        let (measured, said) = measured.map_err(MeasureError::of_variant(&member.name))?;
        if member.task == Task::Classification && !member.in_pipeline {
            let predictions = &measured.validation.predictions;
            // A warning is no progress, which `quiet` is about.
            if let Some(remark) =
                class_assignment::remark(&member.name, &loaded.info.labels, &set.labels, predictions)
            {
                say(&remark);
            }
        }
        variants.push(measured);
        texts.push(said);
    }
    if variants.is_empty() {
        return Err(MeasureError::NoMembers.into());
    }
    let judge = match options.judge {
        Judge::Labels => None,
        Judge::Largest => family.members.last().map(|judge| judge.name.clone()),
        Judge::Program(program) => Some(program.command().to_owned()),
    };
    let comparison = options.grading.comparison();
    let comparison = comparison.filter(|comparison| agreements(&mut variants, texts, comparison).is_some());
    Ok(Profile {
        judge,
        texts: comparison,
        hop: None,
        turnaround_s: None,
        other_load: None,
        repeats: read.as_ref().map(Samples::repeats),
        input_bytes: read.as_ref().map_or_else(Vec::new, input_bytes),
        version: PROFILE_VERSION,
        app: options.app.to_owned(),
        device: devices.join(", "),
        energy_source: sources.join(", "),
        estimator: options.estimator,
        samples: read.map_or(0, |set| set.len()),
        variants,
    })
}

/// Opens the files of all variants and compares their classes, before the first one is measured for minutes.
fn check_files(family: &Family) -> Result<(), MeasureError> {
    for member in &family.members {
        // An error of classes names the variant.
        member.check_classes().map_err(|error| match error {
            FamilyError::Classes { variant, source } => MeasureError::of_variant(&variant)(source),
            error => MeasureError::of_variant(&member.name)(error),
        })?;
    }
    for remark in family.entity_label_warnings() {
        say(&format!("profile: {remark}"));
    }
    Ok(())
}

/// The answers of the largest variant, as labels.
fn labels_of_largest(family: &Family, set: &Samples, grading: Grading) -> Result<Vec<Label>, MeasureError> {
    let largest = family.members.last().ok_or(MeasureError::NoMembers)?;
    let named = || MeasureError::of_variant::<MeasureError>(&largest.name);
    let mut loaded = largest
        .load(largest.device)
        .map_err(MeasureError::of_variant(&largest.name))?;
    set.check(&loaded.model.signature())
        .map_err(MeasureError::of_variant(&largest.name))?;
    let answered = answers::as_labels(loaded.model.as_mut(), &set.inputs, grading);
    answered.map_err(|error| error.in_set(set)).map_err(named())
}

/// A variant's answers as texts, by sample, where it gives one.
type Texts = Vec<Option<String>>;

/// Notes for every variant which answers count as the largest variant's. `None` if a variant gives no texts.
fn agreements(
    variants: &mut [VariantProfile],
    texts: Vec<Option<Texts>>,
    comparison: &TextComparison,
) -> Option<()> {
    let texts: Vec<Texts> = texts.into_iter().collect::<Option<_>>()?;
    let largest = texts.last()?;
    for (variant, texts) in variants.iter_mut().zip(&texts) {
        let pairs = largest.iter().zip(texts);
        variant.validation.agrees = pairs
            .map(|pair| matches!(pair, (Some(largest), Some(text)) if comparison.accepts(largest, text)))
            .collect();
    }
    Some(())
}

/// Bytes of each sample's inputs.
fn input_bytes(set: &Samples) -> Vec<u32> {
    let bytes = set.inputs.iter().map(|inputs| {
        let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    });
    bytes.collect()
}

/// Measures one variant, given whether requests that are too long for it are forwarded to another one. Returns its answers as texts too, if they
/// are texts.
fn variant(
    options: &MeasureOptions<'_>,
    (member, forwards_too_long): (&VariantSpec, bool),
    info: &ModelInfo,
    model: &mut dyn Model,
    set: &Samples,
    meter: &mut Meter,
) -> Result<(VariantProfile, Option<Texts>), MeasureError> {
    let steps = set.len() as u64 + options.cost.steps();
    let mut progress = Progress::begin(format!("profile {}", member.name), steps, options.quiet);
    // A remote variant is asked for everything at once, and what follows replays its answers.
    if member.is_remote() {
        remote::record(model, &set.inputs, forwards_too_long).map_err(|error| error.in_set(set))?;
    }
    let correctness = Correctness {
        grading: options.grading,
        program: options.judge.program(),
        classes: &info.labels,
        forwards_too_long,
    };
    let Answers {
        calibration,
        ece,
        validation,
        texts,
        too_long,
        money,
    } = answers::calibrated(model, set, options.estimator, &correctness, |done| {
        progress.advance(done);
    })?;
    let short = set.inputs.iter().enumerate();
    let short = short.filter(|(number, _)| too_long.binary_search(number).is_err());
    let short: Vec<Inputs> = short.map(|(_, inputs)| inputs.clone()).collect();
    let mut costs = cost::measure(model, &short, options.cost, meter, || progress.advance(1))?;
    if member.is_remote() {
        remote::forget_local_work(&mut costs);
    }
    let right = validation.correct.iter().filter(|right| **right).count();
    let left = match too_long.len() {
        0 => String::new(),
        count => format!(", {} samples too long for it", units::count(count as u64)),
    };
    progress.end(&format!(
        "{} weights, {} right{left}, T = {:.3}, ECE {:.3} -> {:.3}",
        units::count(info.parameters),
        units::percent(right as f64 / set.len() as f64),
        calibration.temperature,
        ece.before,
        ece.after
    ));
    let measured = VariantProfile {
        name: member.name.clone(),
        parameters: info.parameters,
        checkpoint: member.fingerprint()?,
        layers: member.layers()?,
        money,
        costs,
        calibration,
        ece,
        validation,
    };
    Ok((measured, texts))
}

/// Keeps each text once, in the order of its first appearance.
fn note(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}
