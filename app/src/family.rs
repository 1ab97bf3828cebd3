//! The models of a family: their checkpoints, and loading them onto devices.

mod class_order;
mod classes;
mod error;
mod observed;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;

use kaskade_actors::stage::worker::Loader;
use kaskade_models::class_names::are_placeholders;
use kaskade_models::device::{self, DeviceChoice};
use kaskade_models::entities::AggregationStrategy;
use kaskade_models::{
    Checkpoint, CoreShare, Cores, Described, Generation, LoadOptions, Loaded, Model, ModelInfo, PinnedModel,
    Throttled, WeightType, fingerprint, fingerprint_of_bytes, load_checkpoint, load_onnx, warm_up,
};
use kaskade_policy::plan::{Partition, Replica};
use kaskade_policy::remote::price::Price;
use kaskade_remote::{ConnectError, connect};

use self::class_order::in_class_order;
pub(crate) use self::classes::listed;
pub use self::classes::{Classes, FamilyClasses, OtherClasses};
pub use self::error::FamilyError;
use self::observed::Observed;
use crate::config::data::DataSets;
use crate::config::remote::RemoteConfig;
use crate::config::{App, Task, VariantConfig};
use crate::cost_output::with_price;
use crate::planning::placement::partitions;
use crate::ranker::Ranker;
use crate::report::in_one_line;
use crate::report::progress::say;

/// The models of one app, smallest to largest.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its members.
    pub members: Vec<VariantSpec>,
    /// Memory that a worker may use on its device, bytes, by worker; unlimited for others.
    pub memory: BTreeMap<String, u64>,
    /// Cores that each replica of a worker may use, by worker; all of the process for others.
    pub cores: BTreeMap<String, NonZeroUsize>,
    /// Largest batch that a GPU is warmed up for.
    pub max_batch: usize,
}

/// A model of a family.
#[derive(Debug, Clone)]
pub struct VariantSpec {
    /// The variant's name.
    pub name: String,
    /// Device to profile it on.
    pub device: DeviceChoice,
    /// What it is made of.
    pub source: Source,
    /// What it is asked for.
    pub task: Task,
    /// Whether it is a stage of a pipeline, whose tasks the app's `task` does not name.
    pub in_pipeline: bool,
    /// Type of its weights; `None`: as stored.
    pub dtype: Option<WeightType>,
    /// How it finds entities, if it labels tokens.
    pub aggregation_strategy: AggregationStrategy,
    /// Cores that it computes with on the CPU; `None`: all of the process.
    pub cores: Option<NonZeroUsize>,
    /// Share of a core that it may use on the CPU.
    pub share: CoreShare,
    /// Sampling defaults and memory, for a language model.
    pub generation: Generation,
    /// What a request costs in money, if stated.
    pub price: Option<Price>,
    /// The classes of the app, in whose order it answers.
    pub classes: Arc<FamilyClasses>,
}

/// Answers of a remote variant on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Their directory.
    pub dir: PathBuf,
    /// Money that may be spent on missing ones; unlimited if `None`.
    pub spend_limit: Option<f64>,
}

/// Source of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Source {
    /// A Hugging Face directory.
    Directory(PathBuf),
    /// An ONNX file.
    Onnx(PathBuf),
    /// A model behind an endpoint.
    Remote {
        /// The endpoint.
        config: Box<RemoteConfig>,
        /// What it is asked for.
        task: Task,
        /// Where answers are recorded and replayed from while it is measured; `None` while it serves.
        recording: Option<Recording>,
    },
    /// An actor or a Python stage that attaches itself.
    Attached,
    /// In this program.
    Embedded {
        /// `config.json`.
        config: &'static [u8],
        /// `model.safetensors`.
        weights: &'static [u8],
    },
}

impl Source {
    fn of(app: &App, variant: &VariantConfig) -> Self {
        match (&variant.file, &variant.remote) {
            _ if variant.attached => Self::Attached,
            (Some(file), _) => Self::Onnx(file.clone()),
            (None, Some(config)) => Self::Remote {
                config: Box::new(config.clone()),
                task: app.task,
                recording: None,
            },
            // An app without any source was refused when it was read.
            (None, None) => Self::Directory(variant.dir.clone().unwrap_or_default()),
        }
    }
}

impl Family {
    /// Returns the family of an app.
    pub fn of(app: &App) -> Self {
        let classes = Arc::new(FamilyClasses::of(app));
        let members = app.variants.iter().map(|variant| VariantSpec {
            name: variant.name.to_string(),
            device: app.device_of(variant),
            source: Source::of(app, variant),
            task: app.task,
            in_pipeline: app.pipeline.is_some(),
            dtype: variant.dtype,
            aggregation_strategy: variant.aggregation_strategy.map(Into::into).unwrap_or_default(),
            cores: variant.cores,
            share: app.core_share,
            generation: (&app.generation).into(),
            price: variant.price,
            classes: Arc::clone(&classes),
        });
        Self {
            members: members.collect(),
            memory: memory_of_workers(app),
            cores: cores_of_workers(app),
            max_batch: app.batching.max_batch.get() as usize,
        }
    }

    /// Compares the classes that the configurations of the checkpoints state, without loading a model. A checkpoint that is not on this
    /// host, or that cannot be opened, is left out: loading it says why.
    ///
    /// # Errors
    /// [`FamilyError::Classes`] for the first variant whose classes cannot be put into the order of the app's.
    pub fn check_classes(&self) -> Result<(), FamilyError> {
        for member in &self.members {
            match member.check_classes() {
                // A process may have a checkpoint that it does not serve.
                Err(FamilyError::Classes {
                    source: OtherClasses::Unknown { .. },
                    ..
                }) => {}
                Err(error @ FamilyError::Classes { .. }) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that every variant that reads texts has a tokenizer, if another one has, or if the data sets hold texts: a request with a text
    /// fails at the stage that has none. A checkpoint that is not on this host, or that cannot be opened, is left out, and so are ONNX
    /// files, which state no inputs.
    ///
    /// # Errors
    /// [`FamilyError::NoTokenizer`] for the first variant without one.
    pub fn check_tokenizers(&self, data: &DataSets) -> Result<(), FamilyError> {
        let mut reads = None;
        let mut lacks = None;
        for member in self.members.iter().filter(|member| !member.in_pipeline) {
            match member.tokenizer() {
                Some(true) => reads = reads.or(Some(&member.name)),
                Some(false) => lacks = lacks.or(Some(&member.name)),
                None => {}
            }
        }
        let Some(variant) = lacks else {
            return Ok(());
        };
        let whose = match reads {
            Some(other) => format!("`{other}` reads texts"),
            None if data.hold_texts() => "the data sets hold texts".to_owned(),
            None => return Ok(()),
        };
        Err(FamilyError::NoTokenizer {
            variant: variant.clone(),
            whose,
        })
    }

    /// Returns the labels of entities that only some of the token classifiers have, as remarks.
    pub fn unequal_entities(&self) -> Vec<String> {
        let labellers = self
            .members
            .iter()
            .filter(|member| member.task == Task::TokenClassification);
        let labels = labellers
            .filter(|member| !member.in_pipeline)
            .filter_map(|member| {
                let names = classes::stated_names(&member.source).ok()??;
                Some((member.name.clone(), names))
            });
        classes::unequal_entities(&labels.collect::<Vec<_>>())
    }

    /// Returns the loader of a worker's replicas, from this family.
    pub fn loader(self) -> Loader {
        let observed = Observed::default();
        Arc::new(move |replica| {
            let model = self.load_warm(replica, &observed);
            model.map_err(|error| in_one_line(&error))
        })
    }

    /// Loads a replica, warms its device up, and observes the outputs of a whole model. A remote model has no device here, and synthetic
    /// requests would cost money.
    fn load_warm(&self, replica: &Replica, observed: &Observed) -> Result<Box<dyn Model>, FamilyError> {
        let member = self.members.iter().find(|member| member.name == replica.variant);
        let member = member.ok_or_else(|| FamilyError::NoVariant {
            variant: replica.variant.clone(),
        })?;
        member.check_checkpoint(replica)?;
        let Loaded { mut model, info } = self.load_as(member, replica)?;
        if !member.is_remote() && replica.device.parse() != Ok(DeviceChoice::Cpu) {
            warm_up(model.as_mut(), self.max_batch);
        }
        if replica.partition.is_some_and(|partition| partition.of > 1) {
            return Ok(model);
        }
        let answers = observed.answers(&member.name, model.as_mut(), info, !member.is_remote());
        Ok(Box::new(Described::new(model, answers)))
    }

    fn load_as(&self, member: &VariantSpec, replica: &Replica) -> Result<Loaded, FamilyError> {
        let member = &member.on_at_most(self.cores.get(&replica.worker).copied());
        let Partition { index, of } = replica.partition.unwrap_or_default();
        let partition =
            Partition::new(index, of).map_err(|error| FamilyError::Partition(error.to_string()))?;
        let Some(memory) = self.memory.get(&replica.worker).copied() else {
            return member.load_partition(replica.device.parse()?, partition);
        };
        let loaded = member
            .within(memory)
            .load_partition(replica.device.parse()?, partition)?;
        let weights = loaded.info.weight_bytes;
        // A language model with a budget of its own streams the layers that do not fit.
        if weights > memory && member.generation.device_bytes.is_none() {
            return Err(FamilyError::Memory {
                worker: replica.worker.clone(),
                memory,
                variant: replica.variant.clone(),
                weights,
            });
        }
        Ok(loaded)
    }
}

/// Returns the memory that each worker of an app may use, bytes, for those that state it.
pub fn memory_of_workers(app: &App) -> BTreeMap<String, u64> {
    let bounded = app.workers.iter().filter_map(|worker| {
        let memory = worker.memory?;
        Some((worker.name.to_string(), memory.bytes()))
    });
    bounded.collect()
}

/// Returns the cores that each replica of a worker may use, for the workers that state them.
pub fn cores_of_workers(app: &App) -> BTreeMap<String, NonZeroUsize> {
    let stated = app.workers.iter();
    let stated = stated.filter_map(|worker| Some((worker.name.to_string(), worker.cores?)));
    stated.collect()
}

impl VariantSpec {
    /// Returns whether an actor or a Python stage that attaches itself is the model.
    pub const fn is_attached(&self) -> bool {
        matches!(self.source, Source::Attached)
    }

    /// Returns whether the model computes behind an endpoint.
    pub(crate) const fn is_remote(&self) -> bool {
        matches!(self.source, Source::Remote { .. })
    }

    /// Returns the member without a limit on processor time, for results that do not depend on it.
    pub(crate) fn unpaced(&self) -> Self {
        Self {
            share: CoreShare::WHOLE,
            ..self.clone()
        }
    }

    /// Returns the member with at most this many cores.
    fn on_at_most(&self, cores: Option<NonZeroUsize>) -> Self {
        let mut member = self.clone();
        member.cores = match (self.cores, cores) {
            (Some(own), Some(most)) => Some(own.min(most)),
            (own, most) => own.or(most),
        };
        member
    }

    /// Returns the member with its memory budget on a device, if it has one, reduced to `memory` bytes.
    fn within(&self, memory: u64) -> Self {
        let mut member = self.clone();
        if let Some(budget) = &mut member.generation.device_bytes {
            *budget = memory.min(*budget);
        }
        member
    }

    /// Returns the fingerprint of its checkpoint, followed by the type of its weights if that is not the stored one (`/q8_0`); `None` if it
    /// computes elsewhere.
    ///
    /// # Errors
    /// For a file that cannot be read.
    pub fn fingerprint(&self) -> Result<Option<String>, FamilyError> {
        let files = match &self.source {
            Source::Directory(path) | Source::Onnx(path) => fingerprint(path)?,
            Source::Embedded { config, weights } => fingerprint_of_bytes(config, weights),
            Source::Attached | Source::Remote { .. } => return Ok(None),
        };
        Ok(Some(match self.dtype {
            Some(dtype) => format!("{files}/{dtype}"),
            None => files,
        }))
    }

    /// Compares its checkpoint with the one that a plan names for a replica.
    ///
    /// # Errors
    /// [`FamilyError::OtherCheckpoint`] if it is another one, and as [`VariantSpec::fingerprint`].
    pub fn check_checkpoint(&self, replica: &Replica) -> Result<(), FamilyError> {
        let Some(planned) = &replica.checkpoint else {
            return Ok(());
        };
        match self.fingerprint()? {
            Some(found) if found != *planned => Err(FamilyError::OtherCheckpoint {
                variant: self.name.clone(),
                planned: planned.clone(),
                found,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the number of layers by which it can be split for its task: the most partitions that a planner may place; `None` if it is
    /// unknown.
    ///
    /// # Errors
    /// For a configuration that cannot be read.
    pub fn layers(&self) -> Result<Option<NonZeroU32>, FamilyError> {
        let max_tokens = self.generation.sampling.max_tokens;
        let max_tokens =
            max_tokens.and_then(|tokens| NonZeroU32::new(u32::try_from(tokens).unwrap_or(u32::MAX)));
        match &self.source {
            Source::Directory(dir) => Ok(NonZeroU32::new(
                partitions::of(self.task, max_tokens, dir)?.layers,
            )),
            Source::Onnx(_) | Source::Remote { .. } => Ok(Some(NonZeroU32::MIN)),
            Source::Attached | Source::Embedded { .. } => Ok(None),
        }
    }

    /// Returns the most partitions in which it can be loaded; `None` if it is not on this host, or its configuration cannot be read.
    pub(crate) fn most_partitions(&self) -> Option<u32> {
        match &self.source {
            Source::Directory(_) if self.task == Task::Ranking => Some(1),
            Source::Directory(dir) => partitions::most(dir).ok(),
            Source::Onnx(_) | Source::Remote { .. } => Some(1),
            Source::Attached | Source::Embedded { .. } => None,
        }
    }

    /// Opens the files of its checkpoint, if it has a directory, and reads all but the weights.
    ///
    /// # Errors
    /// For a file that is missing or malformed.
    pub fn open(&self) -> Result<(), FamilyError> {
        if let Source::Directory(dir) = &self.source {
            Checkpoint::open(dir)?;
        }
        Ok(())
    }

    /// Returns whether it has a tokenizer, if it is a checkpoint in a directory that reads texts and can be opened.
    fn tokenizer(&self) -> Option<bool> {
        let Source::Directory(dir) = &self.source else {
            return None;
        };
        if !kaskade_models::reads_texts(dir).ok()? {
            return None;
        }
        Some(Checkpoint::open(dir).ok()?.tokenizer.is_some())
    }

    /// Returns whether its answers are classes of the app.
    fn classifies(&self) -> bool {
        matches!(self.task, Task::Classification | Task::MultiLabel) && !self.in_pipeline
    }

    /// Compares the classes that the files of its checkpoint state with those of the app, if it is a classifier.
    ///
    /// # Errors
    /// [`FamilyError::Classes`] if they cannot be put into the order of the app's, and for a file that is missing or malformed.
    pub fn check_classes(&self) -> Result<(), FamilyError> {
        if matches!(self.source, Source::Directory(_)) {
            self.open()?;
        }
        if !self.classifies() {
            return Ok(());
        }
        if let Some(names) = classes::stated_names(&self.source)? {
            self.order_of(&names)?;
        }
        Ok(())
    }

    fn order_of(&self, names: &[String]) -> Result<Option<Vec<usize>>, FamilyError> {
        self.classes.order(names).map_err(|source| FamilyError::Classes {
            variant: self.name.clone(),
            source,
        })
    }

    /// Returns the model with its answers in the order, and by the names, of the app's classes. Only the last partition answers.
    fn in_class_order(&self, loaded: Loaded, partition: Partition) -> Result<Loaded, FamilyError> {
        let Loaded { mut model, mut info } = loaded;
        if !self.classifies() || info.labels.is_empty() {
            return Ok(Loaded { model, info });
        }
        // An ONNX file is loaded with the configuration beside it alone.
        let mut own_names = true;
        if matches!(self.source, Source::Onnx(_))
            && are_placeholders(&info.labels)
            && let Some(stated) = classes::stated_names(&self.source)?
            && stated.len() == info.labels.len()
        {
            info.labels = stated;
            own_names = false;
        }
        let order = self.order_of(&info.labels)?;
        let names = self.classes.names();
        if names.is_empty() || (order.is_none() && info.labels == names && own_names) {
            return Ok(Loaded { model, info });
        }
        if order.is_some() && self.classes.first_report(&self.name) {
            say(&format!(
                "`{}` has its classes in another order ({}); its answers are put into that of the app: {}",
                self.name,
                classes::listed(&info.labels),
                classes::listed(names)
            ));
        }
        if partition.is_last() {
            let one = self.task == Task::Classification;
            model = in_class_order(model, order, names.to_vec(), one);
        }
        info.labels = names.to_vec();
        Ok(Loaded { model, info })
    }

    /// Loads the model onto a device; on the CPU, limited to its share of a core.
    ///
    /// # Errors
    /// When the device cannot be opened or the checkpoint cannot be loaded.
    pub fn load(&self, choice: DeviceChoice) -> Result<Loaded, FamilyError> {
        self.load_partition(choice, Partition::WHOLE)
    }

    /// Returns the model as one of passages, if that is what it is asked for.
    fn ranked(&self, loaded: Loaded) -> Result<Loaded, FamilyError> {
        if self.task != Task::Ranking {
            return Ok(loaded);
        }
        Ranker::over(loaded).ok_or_else(|| FamilyError::CannotRank {
            variant: self.name.clone(),
        })
    }

    /// Refuses the checkpoint of another task, such as a text classifier in an app of embeddings.
    fn check_task(&self, info: &ModelInfo) -> Result<(), FamilyError> {
        let found = Task::of_model(info.task);
        // A model of another kind ranks by its vectors or scores.
        if self.in_pipeline || self.task == Task::Ranking || found == Some(self.task) {
            return Ok(());
        }
        Err(FamilyError::OtherTask {
            variant: self.name.clone(),
            architecture: info.architecture.clone(),
            found: found.map_or_else(
                || "a stage of a pipeline".to_owned(),
                |task| format!("`{}`", task.name()),
            ),
            task: self.task.name(),
        })
    }

    /// Loads a partition of its layers onto a device.
    ///
    /// # Errors
    /// As [`VariantSpec::load`]; also when the model cannot be split so, or a whole one answers another task than the app's.
    pub fn load_partition(&self, choice: DeviceChoice, partition: Partition) -> Result<Loaded, FamilyError> {
        let options = LoadOptions {
            name: Some(self.name.clone()),
            partition,
            generation: self.generation.clone(),
            dtype: self.dtype,
            aggregation_strategy: self.aggregation_strategy,
        };
        let from = |checkpoint| -> Result<Loaded, FamilyError> {
            let device = device::open(choice)?;
            if choice != DeviceChoice::Cpu || self.share != CoreShare::WHOLE {
                // A GPU has one stream of work per thread; a share of a core is measured on the model's own thread.
                return Ok(load_checkpoint(checkpoint, &device, &options)?);
            }
            let cores = Cores::start(self.cores)?;
            let loaded = cores.compute(|| load_checkpoint(checkpoint, &device, &options))?;
            Ok(Loaded {
                model: Box::new(PinnedModel::new(loaded.model, cores)),
                ..loaded
            })
        };
        if partition != Partition::WHOLE && self.task == Task::Ranking {
            let reason = format!("`{}` ranks passages, and such a model cannot be split", self.name);
            return Err(FamilyError::Partition(reason));
        }
        let loaded = match &self.source {
            Source::Directory(dir) => from(Checkpoint::open(dir)?)?,
            Source::Embedded { config, weights } => {
                let weights = bytes::Bytes::from_static(weights);
                from(Checkpoint::from_bytes(&self.name, config, weights, None)?)?
            }
            Source::Onnx(file) => {
                let loaded = load_onnx(file, choice, &options)?;
                let is_embedding = self.task == Task::Embedding && !self.in_pipeline;
                if is_embedding && Task::of_model(loaded.info.task) != Some(Task::Embedding) {
                    return Err(FamilyError::NoEmbedding {
                        variant: self.name.clone(),
                    });
                }
                loaded
            }
            Source::Attached => {
                return Err(FamilyError::Attached {
                    variant: self.name.clone(),
                });
            }
            Source::Remote { .. } if partition != Partition::WHOLE => {
                let reason = format!(
                    "`{}` is a remote variant, which has no layers to split",
                    self.name
                );
                return Err(FamilyError::Partition(reason));
            }
            Source::Remote {
                config,
                task,
                recording,
            } => {
                let endpoint = config.endpoint(&self.name, *task, &self.generation, self.price);
                let mut endpoint = endpoint.map_err(ConnectError::from)?;
                if let Some(recording) = recording {
                    endpoint.cache = Some(recording.dir.clone());
                    endpoint.spend_limit = recording.spend_limit;
                }
                // It computes elsewhere, so no share of a core limits it.
                let loaded = self.in_class_order(connect(&endpoint)?, partition)?;
                return self.ranked(loaded);
            }
        };
        // What an ONNX file answers is not stated in it, and partitions hand on hidden states.
        if partition == Partition::WHOLE
            && matches!(self.source, Source::Directory(_) | Source::Embedded { .. })
        {
            self.check_task(&loaded.info)?;
        }
        let loaded = self.ranked(self.in_class_order(loaded, partition)?)?;
        let Loaded { mut model, info } = loaded;
        if choice == DeviceChoice::Cpu && self.share != CoreShare::WHOLE {
            model = Box::new(Throttled::new(model, self.share));
        }
        // The last partition answers; the others hand on hidden states.
        if let Some(price) = self.price.filter(|_| partition.is_last()) {
            model = with_price(model, price);
        }
        Ok(Loaded { model, info })
    }
}

#[cfg(test)]
mod tests;
