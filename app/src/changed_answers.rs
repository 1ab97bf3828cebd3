//! A model whose answers are changed before anybody reads them.

use std::time::Duration;

use kaskade_models::{
    Availability, Continuous, Inputs, Model, ModelError, Outputs, Progress, Signature, Waker,
};

/// A model and the change of each of its answers. Parts of a streamed answer stay as they are.
pub(crate) struct ChangedAnswers<C> {
    model: Box<dyn Model>,
    /// What ends a step of a model that waits.
    waker: Option<Waker>,
    change: C,
}

impl<C: Fn(Outputs) -> Result<Outputs, ModelError> + Send> ChangedAnswers<C> {
    /// Changes the answers of a model.
    pub(crate) fn new(mut model: Box<dyn Model>, change: C) -> Self {
        Self {
            waker: model.continuous().and_then(|model| model.waker()),
            model,
            change,
        }
    }

    fn inner(&mut self) -> Result<&mut dyn Continuous, ModelError> {
        self.model.continuous().ok_or_else(|| ModelError::Failed {
            reason: "it does not support continuous batching".to_owned(),
        })
    }
}

impl<C: Fn(Outputs) -> Result<Outputs, ModelError> + Send> Model for ChangedAnswers<C> {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let results = self.model.run(batch).into_iter();
        results.map(|result| (self.change)(result?)).collect()
    }

    fn runs_inline(&self) -> bool {
        self.model.runs_inline()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        self.model.continuous().is_some().then_some(self)
    }

    fn availability(&self) -> Option<Availability> {
        self.model.availability()
    }
}

impl<C: Fn(Outputs) -> Result<Outputs, ModelError> + Send> Continuous for ChangedAnswers<C> {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.inner()?.submit(number, inputs)
    }

    fn submit_within(&mut self, number: u64, inputs: &Inputs, budget: Duration) -> Result<(), ModelError> {
        self.inner()?.submit_within(number, inputs, budget)
    }

    fn cancel(&mut self, number: u64) {
        if let Some(model) = self.model.continuous() {
            model.cancel(number);
        }
    }

    fn waker(&self) -> Option<Waker> {
        self.waker.clone()
    }

    fn step(&mut self) -> Vec<Progress> {
        let mut progress = self.model.continuous().map_or_else(Vec::new, Continuous::step);
        for one in &mut progress {
            if let Some(Ok(outputs)) = one.end.take_if(|end| end.is_ok()) {
                one.end = Some((self.change)(outputs));
            }
        }
        progress
    }
}
