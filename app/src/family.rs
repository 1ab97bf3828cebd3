//! Where the models of a family come from, and how they get onto a device.

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
        /// The variant that was asked for.
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
    /// A partition that cannot be.
    #[error("{0}")]
    Slice(String),
}

/// The models of one app, smallest to largest.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its members.
    pub members: Vec<Member>,
}

/// One model of a family.
#[derive(Debug, Clone)]
pub struct Member {
    /// The variant's name.
    pub name: String,
    /// Where it runs when nobody says otherwise.
    pub device: DeviceChoice,
    /// Where its weights are.
    pub source: Source,
    /// What it may take of a core, on the processor.
    pub share: CoreShare,
    /// How it answers if it is a language model.
    pub generation: Generation,
}

/// Where weights are.
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
    /// The family of an app.
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
        }
    }

    /// Loads what a worker is told to load, from this family.
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
        member.load_slice(replica.device.parse()?, slice)
    }
}

impl Member {
    /// The same with whole cores, where only its answers count.
    pub(crate) fn unpaced(&self) -> Self {
        Self {
            share: CoreShare::WHOLE,
            ..self.clone()
        }
    }

    /// Loads the model onto a device; on the processor, held to its share of a core.
    ///
    /// # Errors
    /// When the device cannot be opened or the checkpoint not be loaded.
    pub fn load(&self, choice: DeviceChoice) -> Result<Loaded, FamilyError> {
        self.load_slice(choice, Slice::WHOLE)
    }

    /// The same of a slice of its layers.
    ///
    /// # Errors
    /// As [`Member::load`]; also when the model cannot be cut so.
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
