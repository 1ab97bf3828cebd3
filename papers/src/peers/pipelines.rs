//! The allocators of pipelines that Loki's paper compares (§6.1).

use kaskade_planners::allocate::{Allocate, AllocateError, AllocateOptions, AllocationPolicy, Allocator};
use kaskade_policy::pipeline::Pipeline;

use super::proteus::PerTask;

/// The allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelinePeer {
    /// Hardware scaling, then accuracy scaling over the whole pipeline.
    Loki,
    /// Hardware scaling alone.
    InferLine,
    /// Accuracy scaling of each task independently, without a view of the pipeline.
    Proteus,
}

impl PipelinePeer {
    /// Returns the peer's allocator for a pipeline.
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound, too large, or too slow for its objective.
    pub fn allocator(self, pipeline: &Pipeline) -> Result<Box<dyn Allocate>, AllocateError> {
        let options = AllocateOptions::default();
        let hardware = AllocateOptions {
            policy: AllocationPolicy::HardwareOnly,
            ..options
        };
        Ok(match self {
            Self::Loki => Box::new(Allocator::new(pipeline.clone(), options)?),
            Self::InferLine => Box::new(Allocator::new(pipeline.clone(), hardware)?),
            Self::Proteus => Box::new(PerTask::new(pipeline.clone(), options)?),
        })
    }
}
