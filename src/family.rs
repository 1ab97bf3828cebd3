//! Where the models of a family come from, and how they get onto a device.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use kaskade::App;
use kaskade::actors::stage::worker::Loader;
use kaskade::models::device::{self, DeviceChoice};
use kaskade::models::{
    Checkpoint, CoreShare, Generation, LoadOptions, Loaded, Paced, Slice, load_checkpoint,
};
use kaskade::plans::plan::{Partition, Replica};

/// The models of one app, smallest to largest.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    /// Its members.
    pub(crate) members: Vec<Member>,
}

/// One model of a family.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The variant's name.
    pub(crate) name: String,
    /// Where it runs when nobody says otherwise.
    pub(crate) device: DeviceChoice,
    /// Where its weights are.
    pub(crate) source: Source,
    /// What it may take of a core, on the processor.
    pub(crate) share: CoreShare,
    /// How it answers if it is a language model.
    pub(crate) generation: Generation,
}

/// Where weights are.
#[derive(Debug, Clone)]
pub(crate) enum Source {
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
    pub(crate) fn of(app: &App) -> Self {
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
    pub(crate) fn loader(self) -> Loader {
        Arc::new(move |replica| {
            let loaded = self.load_as(replica);
            loaded
                .map(|loaded| loaded.model)
                .map_err(|error| format!("{error:#}"))
        })
    }

    fn load_as(&self, replica: &Replica) -> anyhow::Result<Loaded> {
        let member = self.members.iter().find(|member| member.name == replica.variant);
        let member = member.with_context(|| format!("this process has no variant `{}`", replica.variant))?;
        let slice = match replica.partition {
            Some(Partition { index, of }) => Slice::new(index as usize, of as usize)?,
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
    pub(crate) fn load(&self, choice: DeviceChoice) -> anyhow::Result<Loaded> {
        self.load_slice(choice, Slice::WHOLE)
    }

    /// The same of a slice of its layers.
    ///
    /// # Errors
    /// As [`Member::load`]; also when the model cannot be cut so.
    pub(crate) fn load_slice(&self, choice: DeviceChoice, slice: Slice) -> anyhow::Result<Loaded> {
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
