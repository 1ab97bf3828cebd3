//! A thread pool per model, so that models of one process do not wait for each other's tasks.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;

use crate::runtime::model::{
    Continuous, Inputs, Model, ModelError, Outputs, Preprocessor, Progress, Signature, Waker,
};

/// Thread pool of one model.
#[derive(Debug, Clone)]
pub struct Cores(Arc<ThreadPool>);

/// The thread pool could not be started.
#[derive(Debug, Error)]
#[error("cannot start {cores} threads: {reason}; lower `cores`, or raise the limit of threads")]
pub struct CoresError {
    cores: usize,
    reason: String,
}

impl Cores {
    /// Starts a pool of `cores` threads. The default is the number of cores that this process may use, by its affinity
    /// mask and its cgroup quota, or `RAYON_NUM_THREADS` if it is set.
    ///
    /// # Errors
    /// [`CoresError`] if the operating system cannot start a thread.
    pub fn start(cores: Option<NonZeroUsize>) -> Result<Self, CoresError> {
        let cores = cores.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let pool = ThreadPoolBuilder::new()
            .num_threads(cores)
            .thread_name(|index| format!("cores-{index}"));
        let pool = pool.build().map_err(|error| CoresError {
            cores,
            reason: error.to_string(),
        })?;
        Ok(Self(Arc::new(pool)))
    }

    /// Returns the number of threads.
    pub fn count(&self) -> usize {
        self.0.current_num_threads()
    }

    /// Computes on these threads and waits for the result. A panic propagates to the calling thread.
    pub fn compute<T: Send>(&self, compute: impl FnOnce() -> T + Send) -> T {
        self.0.install(compute)
    }
}

/// A model that computes on its own thread pool.
pub struct PinnedModel {
    model: Box<dyn Model>,
    cores: Cores,
    preprocessor: Option<Preprocessor>,
}

impl PinnedModel {
    /// Makes a model compute on this thread pool only.
    pub fn new(mut model: Box<dyn Model>, cores: Cores) -> Self {
        let preprocessor = model.continuous().and_then(|model| model.preprocessor());
        Self {
            model,
            cores,
            preprocessor,
        }
    }
}

impl Model for PinnedModel {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.model.check_request(inputs)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let model = &mut self.model;
        self.cores.compute(|| model.run(batch))
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        self.model.continuous().is_some().then_some(self)
    }
}

impl Continuous for PinnedModel {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.submit_within(number, inputs, Duration::MAX)
    }

    fn submit_within(&mut self, number: u64, inputs: &Inputs, budget: Duration) -> Result<(), ModelError> {
        match self.model.continuous() {
            Some(model) => model.submit_within(number, inputs, budget),
            None => Err(ModelError::Failed {
                reason: "it does not support continuous batching".into(),
            }),
        }
    }

    fn cancel(&mut self, number: u64) {
        if let Some(model) = self.model.continuous() {
            model.cancel(number);
        }
    }

    fn waker(&self) -> Option<Waker> {
        // Models that wait for others compute elsewhere and get no thread pool.
        None
    }

    fn preprocessor(&self) -> Option<Preprocessor> {
        self.preprocessor.clone()
    }

    fn step(&mut self) -> Vec<Progress> {
        let model = &mut self.model;
        self.cores
            .compute(|| model.continuous().map(Continuous::step))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use rayon::prelude::*;

    use super::*;
    use crate::runtime::tensor::Tensor;

    /// Test model: returns the number of threads it may use and the name of its thread.
    struct Report;

    impl Model for Report {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            let threads = Tensor::from_f32("threads", &[1], &[rayon::current_num_threads() as f32]);
            vec![
                threads
                    .and_then(|threads| Ok(vec![threads, Tensor::from_texts("name", &[name])?]))
                    .map_err(Into::into);
                batch.len()
            ]
        }
    }

    fn cores(count: usize) -> Cores {
        Cores::start(NonZeroUsize::new(count)).unwrap()
    }

    #[test]
    fn a_model_computes_on_as_many_threads_as_it_has_cores() {
        for count in [1, 3] {
            let mut model = PinnedModel::new(Box::new(Report), cores(count));
            let outputs = model.run(&[Vec::new()]).remove(0).unwrap();
            assert_eq!(outputs[0].to_f32().unwrap(), [count as f32]);
            assert!(outputs[1].to_texts().unwrap()[0].starts_with("cores-"));
            assert!(model.continuous().is_none());
        }
    }

    /// Runs two models that need each other's progress: with one shared thread they would deadlock.
    #[test]
    fn models_do_not_wait_for_each_others_tasks() {
        struct Meet(Arc<Barrier>);
        impl Model for Meet {
            fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
                let tasks = batch.par_iter().map(|_| {
                    self.0.wait();
                    Ok(Vec::new())
                });
                tasks.collect()
            }
        }
        let barrier = Arc::new(Barrier::new(2));
        let models = [(); 2].map(|()| PinnedModel::new(Box::new(Meet(Arc::clone(&barrier))), cores(1)));
        let threads = models.map(|mut model| std::thread::spawn(move || model.run(&[Vec::new()]).len()));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 1);
        }
    }

    #[test]
    fn a_panic_of_the_model_reaches_the_caller() {
        struct Panics;
        impl Model for Panics {
            fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
                panic!("out of order")
            }
        }
        let mut model = PinnedModel::new(Box::new(Panics), cores(2));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.run(&[Vec::new()])));
        assert_eq!(
            crate::device::panic_message(panic.unwrap_err().as_ref()),
            "out of order"
        );
    }
}
