//! Determines the outputs of a family's models, for clients that query them before their first request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use kaskade_models::class_names::are_placeholders;
use kaskade_models::{Answers, Model, ModelInfo, OutputSpec, Task, observe_outputs};

/// Observed outputs by variant. Replicas of a variant have the same outputs, so only one is observed.
#[derive(Debug, Default)]
pub(super) struct Observed(Mutex<BTreeMap<String, Vec<OutputSpec>>>);

impl Observed {
    /// Returns the outputs and class names of a variant's model. With `runs_here` false, for requests that cost money
    /// elsewhere, the outputs stay unknown.
    pub(super) fn answers(
        &self,
        variant: &str,
        model: &mut dyn Model,
        info: ModelInfo,
        runs_here: bool,
    ) -> Answers {
        let outputs = if runs_here {
            self.outputs(variant, model)
        } else {
            Vec::new()
        };
        let is_classifier = matches!(info.task, Task::Classification | Task::MultiLabel);
        let labels = if is_classifier && !are_placeholders(&info.labels) {
            info.labels
        } else {
            Vec::new()
        };
        Answers { outputs, labels }
    }

    fn outputs(&self, variant: &str, model: &mut dyn Model) -> Vec<OutputSpec> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outputs) = known().get(variant) {
            return outputs.clone();
        }
        // Not under the lock, because other replicas load at the same time.
        let outputs = observe_outputs(model);
        known().insert(variant.to_owned(), outputs.clone());
        outputs
    }
}
