//! Records the answers of remote variants, once.

use kaskade_models::{Inputs, Model, ModelError};
use kaskade_policy::profile::BatchCost;

use super::MeasureError;

/// Sends every sample to a remote model at once; answers already on disk cost nothing. With `forwards_too_long`,
/// samples that are too long are no errors.
///
/// # Errors
/// The error of the first unanswered sample, such as one that would have exceeded the spending limit.
pub(super) fn record(
    model: &mut dyn Model,
    requests: &[Inputs],
    forwards_too_long: bool,
) -> Result<(), MeasureError> {
    for (number, answer) in model.run(requests).into_iter().enumerate() {
        if forwards_too_long && matches!(answer, Err(ModelError::TooLong { .. })) {
            continue;
        }
        answer.map_err(|source| MeasureError::Sample {
            number,
            origin: None,
            source: Box::new(MeasureError::Refused(source)),
        })?;
    }
    Ok(())
}

/// Removes the energy and utilisation of this machine while it waited: those of a remote variant are unknown.
pub(super) fn forget_local_work(costs: &mut [BatchCost]) {
    for cost in costs {
        cost.energy_j = None;
        cost.utilisation = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade_models::Outputs;

    /// Answers only the first request.
    struct Limited;

    impl Model for Limited {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let refused = || ModelError::SpendLimit {
                reason: "the limit of spending is reached".to_owned(),
            };
            let answer = |(place, _): (usize, &Inputs)| {
                if place == 0 {
                    Ok(Vec::new())
                } else {
                    Err(refused())
                }
            };
            batch.iter().enumerate().map(answer).collect()
        }
    }

    #[test]
    fn the_sample_that_is_not_answered_is_named() {
        record(&mut Limited, &[Vec::new()], true).unwrap();
        let error = record(&mut Limited, &[Vec::new(), Vec::new()], true).unwrap_err();
        let error = crate::report::in_one_line(&error);
        assert!(
            error.contains("sample 1") && error.contains("limit of spending"),
            "{error}"
        );
    }
}
