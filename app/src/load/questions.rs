//! Labelled samples as a load: asked in turn, and judged.

use std::sync::atomic::{AtomicU64, Ordering};

use kaskade_actors::wire::InferReply;
use kaskade_models::Inputs;
use thiserror::Error;

use crate::config::App;
use crate::config::data::DataSet;
use crate::data::reply::label_of;
use crate::data::scenes::Scenes;
use crate::data::{DataError, Samples};
use crate::family::{Family, FamilyError};
use crate::load::drive::Target;
use crate::load::record::Outcome;
use crate::serving::Client;

/// A labelled set cannot be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuestionError {
    /// The model that says what the set must look like cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The set cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// What is asked, and what the right answers are.
#[derive(Debug, Clone)]
pub enum Set {
    /// One answer to each.
    Samples(Samples),
    /// The objects in each.
    Scenes(Scenes),
}

impl Set {
    /// Reads a labelled set of an app in the form that its first stage takes.
    ///
    /// # Errors
    /// When the set cannot be read, or is not what the models take.
    pub fn read(app: &App, set: &DataSet) -> Result<Self, QuestionError> {
        let family = Family::of(app);
        let first = match &app.pipeline {
            None => family.members.first(),
            Some(rule) => {
                let root = rule.root().and_then(|task| task.variants.first());
                family
                    .members
                    .iter()
                    .find(|member| root.is_some_and(|root| root.as_str() == member.name))
            }
        };
        let first = first.ok_or(FamilyError::Empty)?;
        let signature = first.load(first.device)?.model.signature();
        Ok(match &app.pipeline {
            None => Self::Samples(Samples::read(set, &signature)?),
            Some(_) => Self::Scenes(Scenes::read(set, &signature)?),
        })
    }

    fn inputs(&self) -> &[Inputs] {
        match self {
            Self::Samples(samples) => &samples.inputs,
            Self::Scenes(scenes) => &scenes.inputs,
        }
    }

    /// Points for a reply, and the most that there were: one for a class; for scenes the two sides of F1.
    fn judge(&self, place: usize, reply: &InferReply) -> (u64, u64) {
        match self {
            Self::Samples(samples) => {
                let said = label_of(&reply.outputs).ok();
                let right = said.is_some() && said.as_ref() == samples.labels.get(place);
                (u64::from(right), 1)
            }
            Self::Scenes(scenes) => {
                let told = scenes.told(reply).unwrap_or_default();
                let scores = scenes.judge(place, &told);
                scores.iter().fold((0, 0), |(right, all), score| {
                    (right + 2 * score.right, all + score.told + score.there)
                })
            }
        }
    }
}

/// Asks labelled samples in turn, and counts the right answers.
#[derive(Debug)]
pub struct Questions {
    client: Client,
    set: Set,
    right: AtomicU64,
    judged: AtomicU64,
    answered: AtomicU64,
    hops: AtomicU64,
}

impl Questions {
    /// Questions in the order of the set, over and over.
    pub fn new(client: Client, set: Set) -> Self {
        Self {
            client,
            set,
            right: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            hops: AtomicU64::new(0),
        }
    }

    /// Share of what was answered so far that is right, in [0, 1]; of scenes the F1. `None` where nothing was.
    pub fn accuracy(&self) -> Option<f64> {
        let judged = self.judged.load(Ordering::Relaxed);
        (judged > 0).then(|| self.right.load(Ordering::Relaxed) as f64 / judged as f64)
    }

    /// How many were answered so far, rightly or not.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stages that they passed, all together.
    pub fn hops(&self) -> u64 {
        self.hops.load(Ordering::Relaxed)
    }

    fn judge(&self, place: usize, reply: &InferReply) {
        let (right, judged) = self.set.judge(place, reply);
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.hops.fetch_add(reply.hops.len() as u64, Ordering::Relaxed);
        self.right.fetch_add(right, Ordering::Relaxed);
        self.judged.fetch_add(judged, Ordering::Relaxed);
    }
}

impl Target for Questions {
    async fn ask(&self, number: u64) -> Outcome {
        let inputs = self.set.inputs();
        let place = (number % inputs.len().max(1) as u64) as usize;
        match self
            .client
            .ask(inputs.get(place).cloned().unwrap_or_default())
            .await
        {
            Ok(reply) => {
                self.judge(place, &reply);
                Outcome::Answered {
                    variant: reply.variant,
                }
            }
            Err(fault) => Outcome::Failed {
                code: fault.code.id().to_owned(),
            },
        }
    }
}
