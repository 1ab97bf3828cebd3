//! The models of an app: their checkpoints, and loading them onto devices.

mod class_order;
mod classes;
mod error;
mod observed;
mod source;
mod variant;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use kaskade_actors::stage::worker::Loader;
use kaskade_models::device::DeviceChoice;
use kaskade_models::{Described, Loaded, Model, warm_up};
use kaskade_policy::plan::{Partition, Replica};

pub use self::classes::{ClassMismatch, Classes, FamilyClasses};
pub(crate) use self::classes::{listed, stated_names};
pub use self::error::FamilyError;
use self::observed::Observed;
pub use self::source::{Recording, Source};
pub use self::variant::VariantSpec;
use crate::config::data::DataSets;
use crate::config::{App, Task};
use crate::report::in_one_line;

/// The variants of one app, smallest to largest.
#[derive(Debug, Clone)]
pub struct Family {
    /// The variants.
    pub members: Vec<VariantSpec>,
    /// Memory that a worker may use on its device, bytes, by worker; other workers are unlimited.
    pub memory: BTreeMap<String, u64>,
    /// Cores that each replica of a worker may use, by worker; other workers use all cores of the process.
    pub cores: BTreeMap<String, NonZeroUsize>,
    /// Largest batch size for which a GPU is warmed up.
    pub max_batch: usize,
}

impl Family {
    /// Returns the family of an app.
    pub fn from_app(app: &App) -> Self {
        let classes = Arc::new(FamilyClasses::from_app(app));
        let members = app.variants.iter().map(|variant| VariantSpec {
            name: variant.name.to_string(),
            device: app.device_of(variant),
            source: Source::new(app, variant),
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

    /// Compares the classes stated by the checkpoints' configurations, without loading a model. Skips checkpoints that
    /// are not on this host or cannot be opened: loading them reports why.
    ///
    /// # Errors
    /// [`FamilyError::Classes`] for the first variant whose classes cannot be mapped to the order of the app's,
    /// including the case that a file which may state that order cannot be read.
    pub fn check_classes(&self) -> Result<(), FamilyError> {
        for member in &self.members {
            match member.check_classes() {
                // A process need not have the checkpoints that it does not serve.
                Err(FamilyError::Classes {
                    source: ClassMismatch::Unknown { .. },
                    ..
                }) => {}
                Err(error @ FamilyError::Classes { .. }) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that every variant that reads texts has a tokenizer, if another variant has one or the data sets contain
    /// texts: a text request fails at a stage without tokenizer. Skips checkpoints that are not on this host or cannot
    /// be opened.
    ///
    /// # Errors
    /// [`FamilyError::NoTokenizer`] for the first variant without a tokenizer.
    pub fn check_tokenizers(&self, data: &DataSets) -> Result<(), FamilyError> {
        let mut reads = None;
        let mut lacks = None;
        for member in self.members.iter().filter(|member| !member.in_pipeline) {
            match member.tokenizer() {
                Some(true) => reads = reads.or(Some(&member.name)),
                Some(false) => lacks = lacks.or(Some(member)),
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
            variant: variant.name.clone(),
            whose,
            unused: variant.unused_vocabulary(),
        })
    }

    /// Returns remarks about entity labels that only some of the token classifiers have.
    pub fn entity_label_warnings(&self) -> Vec<String> {
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
        classes::entity_label_warnings(&labels.collect::<Vec<_>>())
    }

    /// Returns a loader of replicas for a worker.
    pub fn loader(self) -> Loader {
        let observed = Observed::default();
        let classes = Mutex::default();
        Arc::new(move |replica| {
            let model = self.load_warm(replica, &observed, &classes);
            model.map_err(|error| in_one_line(&error))
        })
    }

    /// Loads a replica, compares its classes with those loaded before, warms up its device, and determines the outputs
    /// of a whole model. Remote models are not warmed up: they have no device here, and synthetic requests would cost
    /// money.
    fn load_warm(
        &self,
        replica: &Replica,
        observed: &Observed,
        classes: &Mutex<Classes>,
    ) -> Result<Box<dyn Model>, FamilyError> {
        let member = self.members.iter().find(|member| member.name == replica.variant);
        let member = member.ok_or_else(|| FamilyError::NoVariant {
            variant: replica.variant.clone(),
        })?;
        member.check_checkpoint(replica)?;
        let Loaded { mut model, info } = self.load_as(member, replica)?;
        if member.classifies() {
            let mut classes = classes.lock().unwrap_or_else(PoisonError::into_inner);
            let checked = classes.check(&member.name, &info);
            checked.map_err(|source| FamilyError::Classes {
                variant: member.name.clone(),
                source,
            })?;
        }
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
        // A language model with its own memory budget streams the layers that do not fit.
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

/// Returns the memory that each worker of an app may use, bytes, for workers that state it.
pub fn memory_of_workers(app: &App) -> BTreeMap<String, u64> {
    let bounded = app.workers.iter().filter_map(|worker| {
        let memory = worker.memory?;
        Some((worker.name.to_string(), memory.bytes()))
    });
    bounded.collect()
}

/// Returns the cores that each replica of a worker may use, for workers that state them.
pub fn cores_of_workers(app: &App) -> BTreeMap<String, NonZeroUsize> {
    let stated = app.workers.iter();
    let stated = stated.filter_map(|worker| Some((worker.name.to_string(), worker.cores?)));
    stated.collect()
}

#[cfg(test)]
mod tests;
