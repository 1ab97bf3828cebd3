//! A pipeline, measured: what its variants cost, how many requests they make of one, and how accurate each path is end to end (Loki §3).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade::App;
use kaskade::config::data::DataSet;
use kaskade::config::pipeline::PipelineRule;
use kaskade::models::{Inputs, Model, Tensor};
use kaskade::plans::pipeline::{BatchLatency, PathAccuracy, Pipeline, ProfiledPath, TaskVariant};
use kaskade::plans::simulator::MeasuredCopies;

use super::answers::{class_of, logits_of};
use super::cost::{self, Effort};
use super::meter::Meter;
use crate::family::{Family, Member};
use crate::report::progress::Progress;
use crate::scenes::{Found, Scenes, Score, Told};

/// Requests per batch where only answers count.
const BATCH: usize = 32;

/// What a variant of the root task made of every scene.
struct Findings {
    found: Vec<Vec<Found>>,
    /// By kind: the scene and place of each crop, and the crop as a request.
    crops: Vec<Vec<(usize, Found, Inputs)>>,
}

/// What was measured of a pipeline.
pub(crate) struct Measured {
    /// What planners read.
    pub(crate) pipeline: Pipeline,
    /// How the numbers of objects in a scene are distributed, which only simulators ask.
    pub(crate) copies: Vec<MeasuredCopies>,
}

/// How a pipeline is measured.
pub(crate) struct TreePlan<'a> {
    /// The app.
    pub(crate) app: &'a App,
    /// Its tasks.
    pub(crate) rule: &'a PipelineRule,
    /// Passes through all batch sizes.
    pub(crate) rounds: u32,
    /// How long each size is run in each of them.
    pub(crate) stretch: Duration,
    /// Whether progress is kept to oneself.
    pub(crate) quiet: bool,
}

impl TreePlan<'_> {
    /// Measures the pipeline on a set of scenes. Accuracies are F1: the harmonic mean of the shares of what was told, and of what is there,
    /// that is right.
    ///
    /// # Errors
    /// When the tree has more than two levels, a task is none of the set's kinds, or a model cannot be loaded or fails.
    pub(crate) fn measure(&self, set: &DataSet) -> anyhow::Result<Measured> {
        let mut pipeline = self.rule.unmeasured(self.app);
        let root = root(&pipeline)?;
        let members = Family::of(self.app).members;
        let member = |name: &str| {
            let found = members.iter().find(|member| member.name == name);
            found.with_context(|| format!("the app has no variant `{name}`"))
        };
        let names = |task: usize| -> Vec<String> {
            let variants = pipeline.tasks.get(task).map(|task| &task.variants);
            variants
                .into_iter()
                .flatten()
                .map(|variant| variant.name.clone())
                .collect()
        };
        let roots = names(root);
        let first = roots.first().context("the root task has no variants")?;
        let signature = member(first)?
            .unpaced()
            .load(member(first)?.device)?
            .model
            .signature();
        let scenes = Scenes::read(set, &signature)?;
        check_kinds(&pipeline, root, &scenes)?;
        let mut findings = BTreeMap::new();
        for name in &roots {
            findings.insert(
                name.clone(),
                find(member(name)?, &scenes).with_context(|| format!("variant `{name}`"))?,
            );
        }
        let best = roots.iter().max_by(|one, other| {
            let f1 = |name: &String| {
                findings
                    .get(name)
                    .and_then(|findings| findings.score(&scenes).f1())
            };
            f1(one).unwrap_or(0.0).total_cmp(&f1(other).unwrap_or(0.0))
        });
        let best = best
            .and_then(|name| findings.get(name))
            .context("nothing was found")?;
        let mut paths = Vec::new();
        let mut singles = BTreeMap::new();
        for (kind, task) in scenes.kinds.iter().enumerate() {
            let task = pipeline.task(task).context("a kind is no task")?;
            for name in names(task) {
                let failed = || format!("variant `{name}`");
                let mut model = member(&name)?
                    .unpaced()
                    .load(member(&name)?.device)
                    .with_context(failed)?
                    .model;
                singles.insert(
                    name.clone(),
                    best.single(kind, model.as_mut(), &scenes).with_context(failed)?,
                );
                for (finder, findings) in &findings {
                    paths.push(ProfiledPath {
                        variants: vec![finder.clone(), name.clone()],
                        accuracy: findings
                            .path(kind, model.as_mut(), &scenes)
                            .with_context(failed)?,
                    });
                }
            }
        }
        for (at, task) in pipeline.tasks.iter_mut().enumerate() {
            let requests = if at == root {
                scenes.inputs.clone()
            } else {
                let kind = scenes.kinds.iter().position(|kind| *kind == task.name);
                let crops = kind.and_then(|kind| best.crops.get(kind));
                crops
                    .into_iter()
                    .flatten()
                    .map(|(.., inputs)| inputs.clone())
                    .collect()
            };
            for variant in &mut task.variants {
                let found = findings.get(&variant.name);
                variant.accuracy = match found {
                    Some(findings) => findings.score(&scenes).f1().unwrap_or(0.0),
                    None => singles.get(&variant.name).copied().unwrap_or(0.0),
                };
                if let Some(findings) = found {
                    findings.factors(&scenes, variant);
                }
                variant.latency = self.latency(member(&variant.name)?, &requests)?;
            }
        }
        pipeline.path_accuracy = PathAccuracy::Profiled { paths };
        pipeline.validate()?;
        let copies = findings
            .iter()
            .flat_map(|(name, findings)| findings.copies(name, &scenes));
        Ok(Measured {
            copies: copies.collect(),
            pipeline,
        })
    }

    /// Latency by batch size, with the member held to its share of a core.
    fn latency(&self, member: &Member, requests: &[Inputs]) -> anyhow::Result<Vec<BatchLatency>> {
        let effort = Effort {
            batches: self.rule.batches.iter().map(|batch| batch.get()).collect(),
            rounds: self.rounds,
            stretch: self.stretch,
        };
        let mut progress = Progress::begin(format!("profile {}", member.name), effort.steps(), self.quiet);
        let mut meter = Meter::of(member.device, &(&self.app.power).into())?;
        let mut model = member.load(member.device)?.model;
        let costs = cost::measure(model.as_mut(), requests, &effort, &mut meter, || {
            progress.advance(1);
        })
        .with_context(|| format!("variant `{}`", member.name))?;
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

/// The root of a tree of two levels.
fn root(pipeline: &Pipeline) -> anyhow::Result<usize> {
    let is_child = |name: &String| pipeline.tasks.iter().any(|task| task.children.contains(name));
    let root = pipeline.tasks.iter().position(|task| !is_child(&task.name));
    let root = root.context("no task is nobody's child")?;
    let deep = pipeline
        .tasks
        .iter()
        .enumerate()
        .find(|(at, task)| *at != root && !task.children.is_empty());
    ensure!(
        deep.is_none(),
        "task `{}` is below the root and has children; only trees of two levels have a labelled data format yet, write the profile \
         of a deeper one yourself (`kaskade schema pipeline`)",
        deep.map_or("", |(_, task)| &task.name)
    );
    Ok(root)
}

fn check_kinds(pipeline: &Pipeline, root: usize, scenes: &Scenes) -> anyhow::Result<()> {
    let children = pipeline.tasks.get(root).map_or(&[][..], |task| &task.children);
    let mut kinds: Vec<&String> = scenes.kinds.iter().collect();
    let mut tasks: Vec<&String> = children.iter().collect();
    kinds.sort();
    tasks.sort();
    ensure!(
        kinds == tasks,
        "the set's kinds are {kinds:?} and the tasks below the root {tasks:?}; they must be the same"
    );
    Ok(())
}

/// Runs a detector over all scenes.
fn find(member: &Member, scenes: &Scenes) -> anyhow::Result<Findings> {
    let mut model = member.unpaced().load(member.device)?.model;
    let mut findings = Findings {
        found: Vec::new(),
        crops: vec![Vec::new(); scenes.kinds.len()],
    };
    for outputs in answers(model.as_mut(), &scenes.inputs)? {
        let scene = findings.found.len();
        let found = scenes.found(&outputs)?;
        for (kind, name) in scenes.kinds.iter().enumerate() {
            let own = found.iter().filter(|found| found.kind == kind);
            let inputs = requests(&outputs, name)?;
            let crops = own
                .copied()
                .zip(inputs)
                .map(|(found, inputs)| (scene, found, inputs));
            if let Some(list) = findings.crops.get_mut(kind) {
                list.extend(crops);
            }
        }
        findings.found.push(found);
    }
    Ok(findings)
}

/// The requests to a task in a detector's outputs: the rows of `<task>/<input>`.
fn requests(outputs: &[Tensor], task: &str) -> anyhow::Result<Vec<Inputs>> {
    let mut requests: Vec<Inputs> = Vec::new();
    for output in outputs {
        let Some((to, input)) = output.name.split_once('/').filter(|(to, _)| *to == task) else {
            continue;
        };
        let (count, shape) = output
            .shape
            .split_first()
            .with_context(|| format!("`{to}/{input}` has no rows"))?;
        requests.resize_with(*count, Vec::new);
        let values = output.to_f32()?;
        let size = shape.iter().product::<usize>().max(1);
        for (request, row) in requests.iter_mut().zip(values.chunks(size)) {
            request.push(Tensor::from_f32(input, shape, row)?);
        }
    }
    Ok(requests)
}

fn answers(model: &mut dyn Model, requests: &[Inputs]) -> anyhow::Result<Vec<Vec<Tensor>>> {
    let mut answers = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for answer in model.run(batch) {
            answers.push(answer.context("the model does not answer a sample of the set")?);
        }
    }
    Ok(answers)
}

fn classes(model: &mut dyn Model, crops: &[(usize, Found, Inputs)]) -> anyhow::Result<Vec<Option<usize>>> {
    let requests: Vec<Inputs> = crops.iter().map(|(.., inputs)| inputs.clone()).collect();
    let answers = answers(model, &requests)?;
    answers
        .iter()
        .map(|outputs| Ok(class_of(&logits_of(outputs)?)))
        .collect()
}

impl Findings {
    /// How much of what was found is there.
    fn score(&self, scenes: &Scenes) -> Score {
        let mut sum = Score::default();
        for (scene, found) in self.found.iter().enumerate() {
            sum.add(&scenes.judge_found(scene, found));
        }
        sum
    }

    /// How many requests a scene becomes, and where they go.
    fn factors(&self, scenes: &Scenes, variant: &mut TaskVariant) {
        let counts: Vec<f64> = self.crops.iter().map(|crops| crops.len() as f64).collect();
        let all: f64 = counts.iter().sum();
        variant.multiplicative_factor = all / scenes.len().max(1) as f64;
        let ratios = scenes.kinds.iter().zip(&counts);
        variant.branch_ratios = ratios
            .map(|(kind, count)| (kind.clone(), count / all.max(1.0)))
            .collect();
    }

    /// How often a scene became so many requests to each task.
    fn copies(&self, variant: &str, scenes: &Scenes) -> Vec<MeasuredCopies> {
        let of_kind = |(kind, task): (usize, &String)| {
            let counts = self
                .found
                .iter()
                .map(|found| found.iter().filter(|found| found.kind == kind).count());
            let mut weights: Vec<f64> = Vec::new();
            for count in counts {
                weights.resize(weights.len().max(count + 1), 0.0);
                if let Some(weight) = weights.get_mut(count) {
                    *weight += 1.0;
                }
            }
            MeasuredCopies {
                variant: variant.to_owned(),
                to: task.clone(),
                weights,
            }
        };
        scenes.kinds.iter().enumerate().map(of_kind).collect()
    }

    /// Share of the objects found for what they are that a classifier gives the right class.
    fn single(&self, kind: usize, model: &mut dyn Model, scenes: &Scenes) -> anyhow::Result<f64> {
        let crops = self.crops.get(kind).map_or(&[][..], Vec::as_slice);
        let (mut right, mut all) = (0_u32, 0_u32);
        for ((scene, found, _), class) in crops.iter().zip(classes(model, crops)?) {
            let truth = scenes.class_at(*scene, *found);
            all += u32::from(truth.is_some());
            right += u32::from(truth.is_some() && truth == class);
        }
        Ok(f64::from(right) / f64::from(all.max(1)))
    }

    /// The accuracy of the path through this detector and a classifier.
    fn path(&self, kind: usize, model: &mut dyn Model, scenes: &Scenes) -> anyhow::Result<f64> {
        let crops = self.crops.get(kind).map_or(&[][..], Vec::as_slice);
        let mut told: Vec<Vec<Told>> = vec![Vec::new(); scenes.len()];
        for ((scene, found, _), class) in crops.iter().zip(classes(model, crops)?) {
            if let Some(told) = told.get_mut(*scene) {
                told.push(Told { found: *found, class });
            }
        }
        let mut sum = Score::default();
        for (scene, told) in told.iter().enumerate() {
            if let Some(score) = scenes.judge(scene, told).get(kind) {
                sum.add(score);
            }
        }
        Ok(sum.f1().unwrap_or(0.0))
    }
}
