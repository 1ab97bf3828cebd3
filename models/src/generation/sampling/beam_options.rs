//! Parameters of beam search.

use crate::checkpoint::EarlyStopping;

/// Parameters of beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamOptions {
    /// Number of beams; 1 is greedy search.
    pub beams: usize,
    /// Exponent of the length by which the score of an answer, its log probability, is divided: above 0 favours longer
    /// answers.
    pub length_penalty: f32,
    /// Stopping criterion.
    pub early_stopping: EarlyStopping,
}

impl Default for BeamOptions {
    fn default() -> Self {
        Self {
            beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::No,
        }
    }
}
