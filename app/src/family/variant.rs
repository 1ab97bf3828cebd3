//! A variant of a family: its source, its checkpoint, and loading it onto a device.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use kaskade_models::class_names::are_placeholders;
use kaskade_models::device::{self, DeviceChoice};
use kaskade_models::entities::AggregationStrategy;
use kaskade_models::{
    Checkpoint, CoreShare, Cores, Generation, LoadOptions, Loaded, ModelInfo, PinnedModel, Throttled,
    WeightType, check_chat_template, fingerprint, fingerprint_of_bytes, folder_of_onnx, load_checkpoint,
    load_onnx, tokenizer_of_onnx, unused_vocabulary,
};
use kaskade_policy::plan::{Partition, Replica};
use kaskade_policy::remote::price::Price;
use kaskade_remote::{ConnectError, connect};

use super::class_order::in_class_order;
use super::classes::{self, FamilyClasses};
use super::error::FamilyError;
use super::source::Source;
use crate::config::Task;
use crate::cost_output::with_price;
use crate::planning::placement::partitions;
use crate::ranker::Ranker;
use crate::report::progress::say;

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
    pub(super) fn on_at_most(&self, cores: Option<NonZeroUsize>) -> Self {
        let mut member = self.clone();
        member.cores = match (self.cores, cores) {
            (Some(own), Some(most)) => Some(own.min(most)),
            (own, most) => own.or(most),
        };
        member
    }

    /// Returns the member with its memory budget on a device, if it has one, reduced to `memory` bytes.
    pub(super) fn within(&self, memory: u64) -> Self {
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
    pub(crate) fn max_partitions(&self) -> Option<u32> {
        match &self.source {
            Source::Directory(_) if self.task == Task::Ranking => Some(1),
            Source::Directory(dir) => partitions::max_partitions(dir).ok(),
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

    /// Checks its chat template, if it is a checkpoint in a directory. Returns a remark if the template fails for one message of a user, as
    /// templates of special tasks do.
    ///
    /// # Errors
    /// A description of the error, if the template cannot be parsed.
    pub fn check_chat_template(&self) -> Result<Option<String>, String> {
        match &self.source {
            Source::Directory(dir) => check_chat_template(dir),
            _ => Ok(None),
        }
    }

    /// Returns which vocabulary files of its checkpoint are not used, and why, if there is no tokenizer but files of one.
    pub fn unused_vocabulary(&self) -> Option<String> {
        match &self.source {
            Source::Directory(dir) => unused_vocabulary(dir),
            Source::Onnx(file) => unused_vocabulary(folder_of_onnx(file)),
            _ => None,
        }
    }

    /// Returns whether it has a tokenizer, if it is a checkpoint in a directory or an ONNX file that reads texts and can be opened.
    pub(super) fn tokenizer(&self) -> Option<bool> {
        let dir = match &self.source {
            Source::Directory(dir) => dir,
            Source::Onnx(file) => return tokenizer_of_onnx(file).ok()?,
            _ => return None,
        };
        if !kaskade_models::reads_texts(dir).ok()? {
            return None;
        }
        Some(Checkpoint::open(dir).ok()?.tokenizer.is_some())
    }

    /// Returns whether its answers are classes of the app.
    pub(super) fn classifies(&self) -> bool {
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
        let remark = match order {
            Some(_) => Some(format!(
                "`{}` has its classes in another order ({}); its answers are put into that of the app: {}",
                self.name,
                classes::listed(&info.labels),
                classes::listed(names)
            )),
            None => self.classes.assumption(&self.name, &info.labels),
        };
        if let Some(remark) = remark
            && self.classes.first_report(&self.name)
        {
            say(&remark);
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
        self.check_partition(partition)?;
        let loaded = self.load_source(choice, partition)?;
        let is_remote = self.is_remote();
        let Loaded { mut model, info } = self.ranked(self.in_class_order(loaded, partition)?)?;
        // A remote model computes elsewhere, so no share of a core limits it, and its answers have a cost already.
        if choice == DeviceChoice::Cpu && self.share != CoreShare::WHOLE && !is_remote {
            model = Box::new(Throttled::new(model, self.share));
        }
        // The last partition answers; the others hand on hidden states.
        if let Some(price) = self.price.filter(|_| partition.is_last() && !is_remote) {
            model = with_price(model, price);
        }
        Ok(Loaded { model, info })
    }

    /// Refuses to split a model that is loaded whole only.
    fn check_partition(&self, partition: Partition) -> Result<(), FamilyError> {
        let reason = if partition == Partition::WHOLE {
            return Ok(());
        } else if self.task == Task::Ranking {
            "ranks passages, and such a model cannot be split"
        } else if self.is_remote() {
            "is a remote variant, which has no layers to split"
        } else {
            return Ok(());
        };
        Err(FamilyError::Partition(format!("`{}` {reason}", self.name)))
    }

    /// Loads what the source holds, as it answers by itself.
    fn load_source(&self, choice: DeviceChoice, partition: Partition) -> Result<Loaded, FamilyError> {
        let options = LoadOptions {
            name: Some(self.name.clone()),
            partition,
            generation: self.generation.clone(),
            dtype: self.dtype,
            aggregation_strategy: self.aggregation_strategy,
        };
        match &self.source {
            Source::Directory(dir) => self.load_checkpoint(Checkpoint::open(dir)?, choice, &options),
            Source::Embedded { config, weights } => {
                let weights = bytes::Bytes::from_static(weights);
                let checkpoint = Checkpoint::from_bytes(&self.name, config, weights, None)?;
                self.load_checkpoint(checkpoint, choice, &options)
            }
            Source::Onnx(file) => {
                let loaded = load_onnx(file, choice, &options)?;
                // What else an ONNX file answers is not stated in it.
                let is_embedding = self.task == Task::Embedding && !self.in_pipeline;
                if is_embedding && Task::of_model(loaded.info.task) != Some(Task::Embedding) {
                    return Err(FamilyError::NoEmbedding {
                        variant: self.name.clone(),
                    });
                }
                Ok(loaded)
            }
            Source::Attached => Err(FamilyError::Attached {
                variant: self.name.clone(),
            }),
            Source::Remote {
                config,
                task,
                recording,
            } => {
                let endpoint = config.endpoint(&self.name, *task, &self.generation, self.price);
                let mut endpoint = endpoint.map_err(ConnectError::from)?;
                if let Some(recording) = recording {
                    endpoint.cache = Some(recording.dir.clone());
                    endpoint.spend_limit.clone_from(&recording.spend_limit);
                }
                Ok(connect(&endpoint)?)
            }
        }
    }

    /// Loads a checkpoint onto a device; on the CPU, with cores of its own unless it has only a share of one.
    fn load_checkpoint(
        &self,
        checkpoint: Checkpoint,
        choice: DeviceChoice,
        options: &LoadOptions,
    ) -> Result<Loaded, FamilyError> {
        let device = device::open(choice)?;
        // A GPU has one stream of work per thread; a share of a core is measured on the model's own thread.
        let loaded = if choice != DeviceChoice::Cpu || self.share != CoreShare::WHOLE {
            load_checkpoint(checkpoint, &device, options)?
        } else {
            let cores = Cores::start(self.cores)?;
            let loaded = cores.compute(|| load_checkpoint(checkpoint, &device, options))?;
            Loaded {
                model: Box::new(PinnedModel::new(loaded.model, cores)),
                ..loaded
            }
        };
        // Partitions hand on hidden states.
        if options.partition == Partition::WHOLE {
            self.check_task(&loaded.info)?;
        }
        Ok(loaded)
    }
}
