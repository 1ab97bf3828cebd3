//! Adds the output `cost` to the answers of local models with a price, as remote endpoints state it.

use kaskade_actors::dispatch::cost::COST;
use kaskade_models::{Datatype, Model, Outputs, Tensor, tokens_of};
use kaskade_policy::remote::price::{Price, Usage};

use crate::changed_answers::ChangedAnswers;

/// Wraps a model so that its answers have the output `cost`, if the cost is known.
pub(crate) fn with_price(model: Box<dyn Model>, price: Price) -> Box<dyn Model> {
    Box::new(ChangedAnswers::new(model, move |mut outputs| {
        price_of(price, &mut outputs);
        Ok(outputs)
    }))
}

/// Adds the cost of one answer.
fn price_of(price: Price, outputs: &mut Outputs) {
    let cost = price.cost(usage(outputs));
    outputs.extend(cost.map(|cost| Tensor {
        name: COST.to_owned(),
        shape: vec![1],
        datatype: Datatype::F64,
        data: cost.to_le_bytes().to_vec().into(),
    }));
}

/// Returns the token counts of an answer, if the model reports them.
fn usage(outputs: &Outputs) -> Option<Usage> {
    let [input_tokens, output_tokens] = tokens_of(outputs)?;
    Some(Usage {
        input_tokens,
        output_tokens,
    })
}

#[cfg(test)]
mod tests {
    use kaskade_models::{Inputs, ModelError};

    use super::*;

    struct Answers(Outputs);

    impl Model for Answers {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            batch.iter().map(|_| Ok(self.0.clone())).collect()
        }
    }

    /// Returns the cost of one answer at a price.
    fn cost(price: Price, outputs: Outputs) -> Option<f64> {
        let mut priced = with_price(Box::new(Answers(outputs)), price);
        let outputs = priced.run(&[Vec::new()]).remove(0).unwrap();
        let cost = outputs.iter().find(|output| output.name == COST)?;
        Some(f64::from_le_bytes(cost.data.as_ref().try_into().unwrap()))
    }

    #[test]
    fn answers_cost_what_the_price_says_and_unknown_tokens_nothing_known() {
        let flat = Price {
            request: 0.25,
            input_tokens: 0.0,
            output_tokens: 0.0,
        };
        let by_token = Price {
            input_tokens: 1e6,
            output_tokens: 2e6,
            ..flat
        };
        let logits = vec![Tensor::from_f32("logits", &[1], &[0.0]).unwrap()];
        assert_eq!(cost(flat, logits.clone()), Some(0.25));
        assert_eq!(cost(by_token, logits), None);
        let usage = |counts: &[i64]| vec![Tensor::from_i64("usage", &[2], counts).unwrap()];
        assert_eq!(cost(by_token, usage(&[3, 2])), Some(7.25), "a text");
        assert_eq!(cost(by_token, usage(&[3, 0])), Some(3.25), "a vector");
    }
}
