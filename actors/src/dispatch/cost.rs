//! The cost of a request in money, as stated by the model in the outputs `cost` and `cost_source`.

use kaskade_models::{Datatype, Tensor};
use kaskade_policy::remote::price::{Cost, CostSource};

/// Name of the output with the amount, FP64 `[1]`, in the currency of the app's prices.
pub const COST: &str = "cost";

/// Name of the output with the source of the amount, BYTES `[1]`: `priced`, `measured` or `modelled`; defaults to
/// `priced`.
pub(crate) const COST_SOURCE: &str = "cost_source";

/// Returns the cost that the outputs state. `None` if there is no such output or no valid amount.
pub fn stated_cost(outputs: &[Tensor]) -> Option<Cost> {
    let output = |name: &str| outputs.iter().find(|output| output.name == name);
    let amount = output(COST).filter(|cost| cost.datatype == Datatype::F64)?;
    let source = match output(COST_SOURCE) {
        None => CostSource::Priced,
        Some(source) => {
            let names = source.to_texts().ok()?;
            let known = [CostSource::Priced, CostSource::Measured, CostSource::Modelled];
            known
                .into_iter()
                .find(|known| names.first() == Some(&known.name()))?
        }
    };
    let amount = f64::from_le_bytes(amount.data.as_ref().try_into().ok()?);
    Some(Cost { amount, source }).filter(Cost::is_sound)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn cost(amount: f64) -> Tensor {
        Tensor {
            name: COST.to_owned(),
            shape: vec![1],
            datatype: Datatype::F64,
            data: Bytes::copy_from_slice(&amount.to_le_bytes()),
        }
    }

    #[test]
    fn only_amounts_of_money_with_a_known_source_are_costs() {
        assert_eq!(stated_cost(&[cost(0.25)]), Some(Cost::priced(0.25)));
        let source = |name: &str| Tensor::from_texts(COST_SOURCE, &[name]).unwrap();
        let measured = stated_cost(&[cost(0.25), source("measured")]).unwrap();
        assert_eq!(measured.source, CostSource::Measured);
        for unknown in [
            vec![],
            vec![cost(f64::NAN)],
            vec![cost(-1.0)],
            vec![cost(0.25), source("guessed")],
            vec![Tensor::from_f32(COST, &[1], &[0.25]).unwrap()],
        ] {
            assert_eq!(stated_cost(&unknown), None, "{unknown:?}");
        }
    }
}
