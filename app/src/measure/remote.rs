//! Answers of remote variants, recorded once.

use kaskade_models::{Inputs, Model, ModelError};
use kaskade_policy::profile::BatchCost;

use super::MeasureError;

/// Asks a remote model for every sample at once: answers that are on disk cost nothing again. One that is too long is no error if such
/// requests are forwarded to the next variant.
///
/// # Errors
/// The first sample without an answer, such as the one that would have exceeded the limit of spending.
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

/// Removes what was measured on this machine while it waited: a remote variant's energy and utilisation are unknown here.
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

    /// Answers the first request alone.
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
