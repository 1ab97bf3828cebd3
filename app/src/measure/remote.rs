//! Answers of remote variants, recorded once, and their cost in money.

use kaskade_models::{Inputs, Model, Tensor};
use kaskade_policy::profile::BatchCost;

use super::MeasureError;

/// The output in which a remote model reports what a request cost.
const COST: &str = "cost";

/// Asks a remote model for every sample: answers that are on disk cost nothing again. Returns the mean cost of a request in
/// money, if every answer has one.
///
/// # Errors
/// The first sample without an answer, such as the one that would have exceeded the limit of spending.
pub(super) fn record(model: &mut dyn Model, requests: &[Inputs]) -> Result<Option<f64>, MeasureError> {
    let mut costs = Vec::with_capacity(requests.len());
    for (number, answer) in model.run(requests).into_iter().enumerate() {
        let outputs = answer.map_err(|source| MeasureError::Sample {
            number,
            origin: None,
            source: Box::new(MeasureError::Refused(source)),
        })?;
        costs.push(outputs.iter().find(|output| output.name == COST).and_then(amount));
    }
    let known: Option<Vec<f64>> = costs.into_iter().collect();
    Ok(known
        .filter(|costs| !costs.is_empty())
        .map(|costs| costs.iter().sum::<f64>() / costs.len() as f64))
}

fn amount(output: &Tensor) -> Option<f64> {
    let bytes = output.data.as_ref().try_into().ok()?;
    Some(f64::from_le_bytes(bytes))
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
    use kaskade_models::{Datatype, ModelError, Outputs};

    /// Answers with these costs, in order.
    struct Costs(Vec<Result<Option<f64>, ModelError>>);

    impl Model for Costs {
        fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let output = |cost: f64| Tensor {
                name: COST.to_owned(),
                shape: vec![1],
                datatype: Datatype::F64,
                data: cost.to_le_bytes().to_vec().into(),
            };
            let answers = self.0.drain(..);
            answers
                .map(|cost| cost.map(|cost| cost.map(output).into_iter().collect()))
                .collect()
        }
    }

    #[test]
    fn the_mean_cost_is_known_only_if_every_cost_is() {
        let record = |costs| record(&mut Costs(costs), &[]);
        assert_eq!(record(vec![Ok(Some(1.0)), Ok(Some(2.0))]).unwrap(), Some(1.5));
        assert_eq!(record(vec![Ok(Some(1.0)), Ok(None)]).unwrap(), None);
        assert_eq!(record(Vec::new()).unwrap(), None);
        let refused = ModelError::Refused {
            reason: "the limit of spending is reached".to_owned(),
        };
        let error = crate::report::in_one_line(&record(vec![Ok(None), Err(refused)]).unwrap_err());
        assert!(
            error.contains("sample 1") && error.contains("limit of spending"),
            "{error}"
        );
    }
}
