//! Measures a pipeline: costs and multiplicative factors of its variants, and the end-to-end accuracy of each path (Loki §3).

use std::collections::BTreeMap;
use std::time::Duration;

use kaskade_models::{Inputs, Model};
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, ProfiledPath};
use kaskade_simulator::MeasuredCopies;

use super::MeasureError;
use super::cost::{self, CostOptions};
use super::detections::Detections;
use super::meter::Meter;
use crate::config::App;
use crate::config::data::DataSet;
use crate::config::pipeline::PipelineConfig;
use crate::data::scenes::Scenes;
use crate::family::{Family, VariantSpec};
use crate::report::progress::Progress;

/// The measurements of a pipeline.
#[non_exhaustive]
pub struct Measured {
    /// The pipeline, as planners read it.
    pub pipeline: Pipeline,
    /// Distribution of the number of objects per scene, for simulators.
    pub copies: Vec<MeasuredCopies>,
}

/// The measurement of a pipeline: its inputs and options.
pub struct PipelineMeasurement<'a> {
    /// The app.
    pub app: &'a App,
    /// Pipeline configuration of the app.
    pub config: &'a PipelineConfig,
    /// Number of passes through all batch sizes.
    pub rounds: u32,
    /// Duration for each size in each pass.
    pub measure_for: Duration,
    /// Whether to print no progress.
    pub quiet: bool,
}

impl PipelineMeasurement<'_> {
    /// Measures the pipeline on a set of scenes. Accuracies are F1 scores, the harmonic means of precision and recall.
    ///
    /// # Errors
    /// [`MeasureError`] if the tree has more than two levels, a task is not a kind of the set, or a model cannot be
    /// loaded or fails.
    pub fn measure(&self, set: &DataSet) -> Result<Measured, MeasureError> {
        let mut pipeline = self.config.unmeasured(self.app);
        let root = root(&pipeline)?;
        let members = Members(Family::from_app(self.app).members);
        let scenes = read(set, &pipeline, root, &members)?;
        let detections = find_all(&pipeline, root, &members, &scenes)?;
        let best = best(&detections, &scenes)?;
        let answers = answer_all(&pipeline, &members, &scenes, &detections, best)?;
        for (at, task) in pipeline.tasks.iter_mut().enumerate() {
            let requests = if at == root {
                scenes.inputs.clone()
            } else {
                best.requests(&scenes, &task.name)
            };
            for variant in &mut task.variants {
                if let Some(detections) = detections.get(&variant.name) {
                    variant.accuracy = detections.score(&scenes).f1().unwrap_or(0.0);
                    detections.factors(&scenes, variant);
                } else {
                    variant.accuracy = answers.singles.get(&variant.name).copied().unwrap_or(0.0);
                }
                variant.checkpoint = members.get(&variant.name)?.fingerprint()?;
                variant.latency = self.latency(members.get(&variant.name)?, &requests)?;
            }
        }
        pipeline.path_accuracy = PathAccuracy::Profiled { paths: answers.paths };
        pipeline.validate()?;
        let copies = detections.iter();
        let copies = copies.flat_map(|(name, detections)| detections.copies(name, &scenes));
        Ok(Measured {
            copies: copies.collect(),
            pipeline,
        })
    }

    /// Returns the latency by batch size, limited to the variant's core share.
    fn latency(&self, member: &VariantSpec, requests: &[Inputs]) -> Result<Vec<BatchLatency>, MeasureError> {
        let options = CostOptions {
            batches: self.config.batches.iter().map(|batch| batch.get()).collect(),
            rounds: self.rounds,
            measure_for: self.measure_for,
        };
        let mut progress = Progress::begin(format!("profile {}", member.name), options.steps(), self.quiet);
        let mut meter = Meter::open(member.device, &(&self.app.power).into())?;
        let mut model = member.load(member.device)?.model;
        let costs = cost::measure(model.as_mut(), requests, &options, &mut meter, || {
            progress.advance(1);
        })
        .map_err(MeasureError::of_variant(&member.name))?;
        let latencies: Vec<BatchLatency> = costs
            .iter()
            .map(|cost| BatchLatency {
                batch: cost.batch,
                us: (cost.latency_s * 1e6).round(),
            })
            .collect();
        let single = latencies.first().map_or(0.0, |latency| latency.us / 1e3);
        progress.end(&format!("a batch of 1 takes {single:.1} ms"));
        Ok(latencies)
    }
}

/// The variants of the app.
struct Members(Vec<VariantSpec>);

impl Members {
    fn get(&self, name: &str) -> Result<&VariantSpec, MeasureError> {
        let found = self.0.iter().find(|member| member.name == name);
        found.ok_or_else(|| MeasureError::NoVariant {
            variant: name.to_owned(),
        })
    }

    /// Loads a model without a core share limit, to record answers.
    fn model(&self, name: &str) -> Result<Box<dyn Model>, MeasureError> {
        let member = self.get(name)?;
        let loaded = member.unpaced().load(member.device);
        Ok(loaded.map_err(MeasureError::of_variant(name))?.model)
    }
}

/// Accuracies of the tasks below the root on the found objects.
struct Readings {
    /// Accuracy by path.
    paths: Vec<ProfiledPath>,
    /// Share of correct classes among objects of the right kind, by variant.
    singles: BTreeMap<String, f64>,
}

/// Returns the names of a task's variants.
fn variants(pipeline: &Pipeline, task: usize) -> impl Iterator<Item = &str> {
    let variants = pipeline.tasks.get(task).map_or(&[][..], |task| &task.variants);
    variants.iter().map(|variant| variant.name.as_str())
}

/// Reads the scenes in the input form of the root task's models.
fn read(set: &DataSet, pipeline: &Pipeline, root: usize, members: &Members) -> Result<Scenes, MeasureError> {
    let first = variants(pipeline, root).next().ok_or(MeasureError::EmptyRoot)?;
    let scenes = Scenes::read(set, &members.model(first)?.signature())?;
    check_kinds(pipeline, root, &scenes)?;
    Ok(scenes)
}

/// Returns the detections of each variant of the root task.
fn find_all(
    pipeline: &Pipeline,
    root: usize,
    members: &Members,
    scenes: &Scenes,
) -> Result<BTreeMap<String, Detections>, MeasureError> {
    let detections = variants(pipeline, root).map(|name| {
        let mut model = members.model(name)?;
        let found = Detections::run(model.as_mut(), scenes);
        Ok((name.to_owned(), found.map_err(MeasureError::of_variant(name))?))
    });
    detections.collect()
}

/// Returns the detections with the highest accuracy.
fn best<'a>(
    detections: &'a BTreeMap<String, Detections>,
    scenes: &Scenes,
) -> Result<&'a Detections, MeasureError> {
    let f1 = |detections: &Detections| detections.score(scenes).f1().unwrap_or(0.0);
    let best = detections
        .values()
        .max_by(|one, other| f1(one).total_cmp(&f1(other)));
    best.ok_or(MeasureError::EmptyRoot)
}

/// Returns the accuracies of every variant below the root, on the detections of every variant of the root.
fn answer_all(
    pipeline: &Pipeline,
    members: &Members,
    scenes: &Scenes,
    detections: &BTreeMap<String, Detections>,
    best: &Detections,
) -> Result<Readings, MeasureError> {
    let mut readings = Readings {
        paths: Vec::new(),
        singles: BTreeMap::new(),
    };
    for (kind, task) in scenes.kinds.iter().enumerate() {
        let task = pipeline.task(task).ok_or(MeasureError::NoTask)?;
        for name in variants(pipeline, task) {
            let mut model = members.model(name)?;
            let single = best
                .single(kind, model.as_mut(), scenes)
                .map_err(MeasureError::of_variant(name))?;
            readings.singles.insert(name.to_owned(), single);
            for (finder, detections) in detections {
                readings.paths.push(ProfiledPath {
                    variants: vec![finder.clone(), name.to_owned()],
                    accuracy: detections
                        .path(kind, model.as_mut(), scenes)
                        .map_err(MeasureError::of_variant(name))?,
                });
            }
        }
    }
    Ok(readings)
}

/// Returns the root of a tree of two levels.
fn root(pipeline: &Pipeline) -> Result<usize, MeasureError> {
    let is_child = |name: &String| pipeline.tasks.iter().any(|task| task.children.contains(name));
    let root = pipeline.tasks.iter().position(|task| !is_child(&task.name));
    let root = root.ok_or(MeasureError::NoRoot)?;
    let deep = pipeline
        .tasks
        .iter()
        .enumerate()
        .find(|(at, task)| *at != root && !task.children.is_empty());
    match deep {
        Some((_, task)) => Err(MeasureError::Deep {
            task: task.name.clone(),
        }),
        None => Ok(root),
    }
}

fn check_kinds(pipeline: &Pipeline, root: usize, scenes: &Scenes) -> Result<(), MeasureError> {
    let children = pipeline.tasks.get(root).map_or(&[][..], |task| &task.children);
    let mut kinds: Vec<&String> = scenes.kinds.iter().collect();
    let mut tasks: Vec<&String> = children.iter().collect();
    kinds.sort();
    tasks.sort();
    if kinds == tasks {
        return Ok(());
    }
    Err(MeasureError::Kinds {
        kinds: kinds.into_iter().cloned().collect(),
        tasks: tasks.into_iter().cloned().collect(),
    })
}
