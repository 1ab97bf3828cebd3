//! Wraps a model to modify its answers before they are used.

use std::time::Duration;

use kaskade_models::{
    Availability, Continuous, Inputs, Model, ModelError, Outputs, Preprocessor, Progress, Signature, Waker,
};

/// A model with a function that modifies each of its answers. Parts of a streamed answer stay unchanged.
pub(crate) struct ChangedAnswers<C> {
    model: Box<dyn Model>,
    /// Waker of the model, if its steps wait.
    waker: Option<Waker>,
    /// Preprocessor of the model, if it has one.
    preprocessor: Option<Preprocessor>,
    change: C,
}

impl<C: Fn(Outputs) -> Result<Outputs, ModelError> + Send> ChangedAnswers<C> {
    /// Wraps `model` so that `change` modifies its answers.
    pub(crate) fn new(mut model: Box<dyn Model>, change: C) -> Self {
        let continuous = model.continuous();
        let (waker, preprocessor) =
            continuous.map_or((None, None), |model| (model.waker(), model.preprocessor()));
        Self {
            model,
            waker,
            preprocessor,
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

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.model.check_request(inputs)
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

    fn preprocessor(&self) -> Option<Preprocessor> {
        self.preprocessor.clone()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A language model whose requests are preprocessed on another thread.
    struct Reading;

    impl Model for Reading {
        fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            Vec::new()
        }

        fn continuous(&mut self) -> Option<&mut dyn Continuous> {
            Some(self)
        }
    }

    impl Continuous for Reading {
        fn submit(&mut self, _: u64, _: &Inputs) -> Result<(), ModelError> {
            Ok(())
        }

        fn cancel(&mut self, _: u64) {}

        fn waker(&self) -> Option<Waker> {
            Some(Arc::new(|| {}))
        }

        fn preprocessor(&self) -> Option<Preprocessor> {
            Some(Arc::new(|_| Some(Inputs::new())))
        }

        fn step(&mut self) -> Vec<Progress> {
            Vec::new()
        }
    }

    /// Regression: a language model with a price tokenized its texts on the computing thread.
    #[test]
    fn requests_are_read_as_those_of_the_model() {
        let mut changed = ChangedAnswers::new(Box::new(Reading), Ok);
        let continuous = changed.continuous().unwrap();
        assert!(continuous.waker().is_some());
        let preprocessor = continuous.preprocessor().unwrap();
        assert_eq!(preprocessor(&Inputs::new()), Some(Inputs::new()));
    }
}
