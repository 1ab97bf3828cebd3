//! The models of a family: their checkpoints, and loading them onto devices.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kaskade_actors::stage::worker::Loader;
use kaskade_models::device::{self, DeviceChoice};
use kaskade_models::{
    Checkpoint, CoreShare, DeviceError, Generation, LoadError, LoadOptions, Loaded, Paced, Slice,
    load_checkpoint,
};
use kaskade_policy::plan::{Partition, Replica};
use thiserror::Error;

use crate::config::App;
use crate::report::in_one_line;

/// A model cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FamilyError {
    /// The family has no such variant.
    #[error("this process has no variant `{variant}`")]
    NoVariant {
        /// The requested variant.
        variant: String,
    },
    /// The family is empty.
    #[error("the app has no variants")]
    Empty,
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    /// The partition is invalid.
    #[error("{0}")]
    Slice(String),
    /// The model needs more memory than its worker may use.
    #[error(
        "workers: `{worker}` may use {memory} bytes of memory, and the weights of `{variant}` have {weights}; raise its `memory`, or \
         place the variant on another worker"
    )]
    Memory {
        /// The worker.
        worker: String,
        /// Its bound, bytes.
        memory: u64,
        /// The variant.
        variant: String,
        /// The size of its weights, bytes.
        weights: u64,
    },
}

/// The models of one app, smallest to largest.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its members.
    pub members: Vec<Member>,
    /// Memory that a worker may use on its device, bytes, by worker; unlimited for others.
    pub memory: BTreeMap<String, u64>,
}

/// One model of a family.
#[derive(Debug, Clone)]
pub struct Member {
    /// The variant's name.
    pub name: String,
    /// Device to profile it on.
    pub device: DeviceChoice,
    /// Its checkpoint.
    pub source: Source,
    /// Share of a core that it may use on the CPU.
    pub share: CoreShare,
    /// Sampling defaults and memory, for a language model.
    pub generation: Generation,
}

/// A checkpoint.
#[derive(Debug, Clone)]
pub enum Source {
    /// A Hugging Face directory.
    Directory(PathBuf),
    /// In this program.
    Embedded {
        /// `config.json`.
        config: &'static [u8],
        /// `model.safetensors`.
        weights: &'static [u8],
    },
}

impl Family {
    /// Returns the family of an app.
    pub fn of(app: &App) -> Self {
        let members = app.variants.iter().map(|variant| Member {
            name: variant.name.to_string(),
            device: app.device_of(variant),
            source: Source::Directory(variant.dir.clone()),
            share: app.core_share,
            generation: (&app.generation).into(),
        });
        Self {
            members: members.collect(),
            memory: memory_of_workers(app),
        }
    }

    /// Returns the loader of a worker's replicas, from this family.
    pub fn loader(self) -> Loader {
        Arc::new(move |replica| {
            let loaded = self.load_as(replica);
            loaded
                .map(|loaded| loaded.model)
                .map_err(|error| in_one_line(&error))
        })
    }

    fn load_as(&self, replica: &Replica) -> Result<Loaded, FamilyError> {
        let member = self.members.iter().find(|member| member.name == replica.variant);
        let member = member.ok_or_else(|| FamilyError::NoVariant {
            variant: replica.variant.clone(),
        })?;
        let slice = match replica.partition {
            Some(Partition { index, of }) => Slice::new(index as usize, of as usize)
                .map_err(|error| FamilyError::Slice(error.to_string()))?,
            None => Slice::WHOLE,
        };
        let Some(memory) = self.memory.get(&replica.worker).copied() else {
            return member.load_slice(replica.device.parse()?, slice);
        };
        let loaded = member.within(memory).load_slice(replica.device.parse()?, slice)?;
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

impl Member {
    /// Returns the member without a limit on processor time, for results that do not depend on it.
    pub(crate) fn unpaced(&self) -> Self {
        Self {
            share: CoreShare::WHOLE,
            ..self.clone()
        }
    }

    /// Returns the member with its memory budget on a device, if it has one, reduced to `memory` bytes.
    fn within(&self, memory: u64) -> Self {
        let mut member = self.clone();
        if let Some(budget) = &mut member.generation.device_bytes {
            *budget = memory.min(*budget);
        }
        member
    }

    /// Loads the model onto a device; on the CPU, limited to its share of a core.
    ///
    /// # Errors
    /// When the device cannot be opened or the checkpoint cannot be loaded.
    pub fn load(&self, choice: DeviceChoice) -> Result<Loaded, FamilyError> {
        self.load_slice(choice, Slice::WHOLE)
    }

    /// Loads a slice of its layers onto a device.
    ///
    /// # Errors
    /// As [`Member::load`]; also when the model cannot be sliced so.
    pub fn load_slice(&self, choice: DeviceChoice, slice: Slice) -> Result<Loaded, FamilyError> {
        let device = device::open(choice)?;
        let checkpoint = match &self.source {
            Source::Directory(dir) => Checkpoint::open(dir),
            Source::Embedded { config, weights } => {
                Checkpoint::from_bytes(&self.name, config, bytes::Bytes::from_static(weights), None)
            }
        }?;
        let options = LoadOptions {
            name: Some(self.name.clone()),
            slice,
            generation: self.generation.clone(),
        };
        let loaded = load_checkpoint(checkpoint, &device, &options)?;
        if choice != DeviceChoice::Cpu || self.share == CoreShare::WHOLE {
            return Ok(loaded);
        }
        Ok(Loaded {
            model: Box::new(Paced::new(loaded.model, self.share)),
            ..loaded
        })
    }
}
