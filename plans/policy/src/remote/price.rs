//! Cost of a request in money.
//!
//! Amounts are in one currency of the app's choice. A cost that is not known stays unknown and never becomes zero.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Price of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Money per request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub request: f64,
    /// Money per million tokens of the prompt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input_tokens: f64,
    /// Money per million tokens of the answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_tokens: f64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes what it skips by reference"
)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Tokens of a request, as the endpoint counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

/// Source of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// A stated price, applied to counted requests and tokens.
    Priced,
    /// A meter.
    Measured,
    /// A model, such as a stated wattage.
    Modelled,
}

/// Cost of a request at one variant, or at all that it passed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Money, in the currency of the app's prices.
    pub amount: f64,
    /// Source of the amount.
    pub source: CostSource,
}

impl Cost {
    /// Returns a cost by a stated price.
    pub const fn priced(amount: f64) -> Self {
        Self {
            amount,
            source: CostSource::Priced,
        }
    }

    /// Returns whether the amount is finite and not negative. Other parties state costs too.
    pub fn is_sound(&self) -> bool {
        self.amount.is_finite() && self.amount >= 0.0
    }

    /// Adds the costs of all stages that a request passed. `None` if one of them is unknown or no amount, or if there is none. The
    /// source of the sum is the least certain of the parts.
    pub fn total(parts: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let mut total: Option<Self> = None;
        for part in parts {
            let part = part.filter(Self::is_sound)?;
            total = Some(total.map_or(part, |total| Self {
                amount: total.amount + part.amount,
                source: total.source.max(part.source),
            }));
        }
        total
    }
}

impl CostSource {
    /// Returns the name of the source, as it is serialised.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Priced => "priced",
            Self::Measured => "measured",
            Self::Modelled => "modelled",
        }
    }
}

impl Price {
    /// Returns whether every amount is finite and not negative.
    pub fn is_sound(&self) -> bool {
        let amounts = [self.request, self.input_tokens, self.output_tokens];
        amounts.iter().all(|amount| amount.is_finite() && *amount >= 0.0)
    }

    /// Returns whether the cost of a request depends on its tokens.
    pub(crate) fn needs_usage(&self) -> bool {
        self.input_tokens > 0.0 || self.output_tokens > 0.0
    }

    /// Returns what a request costs; `None` if that depends on its tokens and they are not known.
    pub fn cost(&self, usage: Option<Usage>) -> Option<f64> {
        if usage.is_none() && self.needs_usage() {
            return None;
        }
        let Usage {
            input_tokens,
            output_tokens,
        } = usage.unwrap_or_default();
        let tokens = self.input_tokens * input_tokens as f64 + self.output_tokens * output_tokens as f64;
        Some(self.request + tokens / 1e6)
    }
}

/// Returns an amount with three digits, wherever they are: 0.00180, 1.50, 1234.
pub fn written(amount: f64) -> String {
    if amount == 0.0 || !amount.is_finite() {
        return amount.to_string();
    }
    let digits = (2.0 - amount.abs().log10().floor()).clamp(0.0, 12.0);
    format!("{amount:.*}", digits as usize)
}

/// A limit of spending. A call is made only if the limit holds even if the call costs the most that it can.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spending {
    limit: f64,
    spent: f64,
    calls: u64,
}

/// Why no further call is made.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the next call may cost {}, and {} of the limit {} is spent; the remaining {left} calls would take about {} more",
    written(*most),
    written(*spent),
    written(*limit),
    written(*rest)
)]
pub struct LimitReached {
    /// The limit.
    pub limit: f64,
    /// Spent so far.
    pub spent: f64,
    /// Maximum cost of the next call.
    pub most: f64,
    /// Calls that remain.
    pub left: u64,
    /// Estimated cost of these calls: by the mean of the calls so far, or by the most that the next may cost.
    pub rest: f64,
}

impl Spending {
    /// Begins with nothing spent.
    pub const fn new(limit: f64) -> Self {
        Self {
            limit,
            spent: 0.0,
            calls: 0,
        }
    }

    /// Decides whether a call that costs at most `most` may be made, with `left` calls to go, itself included.
    ///
    /// # Errors
    /// [`LimitReached`] with what the rest would take.
    pub fn admit(&self, most: f64, left: u64) -> Result<(), LimitReached> {
        if self.spent + most <= self.limit {
            return Ok(());
        }
        let each = if self.calls > 0 {
            self.spent / self.calls as f64
        } else {
            most
        };
        Err(LimitReached {
            limit: self.limit,
            spent: self.spent,
            most,
            left,
            rest: each * left as f64,
        })
    }

    /// Notes what a call cost.
    pub fn spend(&mut self, cost: f64) {
        self.spent += cost;
        self.calls += 1;
    }

    /// Spent so far.
    pub const fn spent(&self) -> f64 {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_amounts_are_no_zeros() {
        for (amount, text) in [
            (0.0, "0"),
            (4e-7, "0.000000400"),
            (0.0018, "0.00180"),
            (1234.0, "1234"),
        ] {
            assert_eq!(written(amount), text);
        }
        let reached = LimitReached {
            limit: 1e-6,
            spent: 4e-7,
            most: 8e-7,
            left: 2,
            rest: 8e-7,
        };
        assert!(
            reached
                .to_string()
                .contains("0.000000400 of the limit 0.00000100"),
            "{reached}"
        );
    }

    #[test]
    fn tokens_and_requests_add_up_and_the_unknown_stays_unknown() {
        let price = Price {
            request: 0.5,
            input_tokens: 2.0,
            output_tokens: 10.0,
        };
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 500_000,
        };
        assert_eq!(price.cost(Some(usage)), Some(7.5));
        assert_eq!(price.cost(None), None);
        let flat = Price {
            input_tokens: 0.0,
            output_tokens: 0.0,
            ..price
        };
        assert_eq!(flat.cost(None), Some(0.5));
        assert!(
            price.is_sound()
                && !Price {
                    request: f64::NAN,
                    ..price
                }
                .is_sound()
        );
        assert!(
            !Price {
                input_tokens: -1.0,
                ..price
            }
            .is_sound()
        );
    }

    #[test]
    fn a_sum_with_an_unknown_part_is_unknown() {
        let modelled = Cost {
            amount: 0.5,
            source: CostSource::Modelled,
        };
        let total = Cost::total([Some(Cost::priced(1.0)), Some(modelled), Some(Cost::priced(0.0))]).unwrap();
        assert!((total.amount - 1.5).abs() < 1e-12);
        assert_eq!(total.source, CostSource::Modelled);
        assert_eq!(Cost::total([]), None);
        for unknown in [None, Some(Cost::priced(f64::NAN)), Some(Cost::priced(-1.0))] {
            assert_eq!(Cost::total([Some(Cost::priced(1.0)), unknown]), None);
        }
    }

    #[test]
    fn the_limit_is_never_exceeded_and_the_rest_is_estimated() {
        let mut spending = Spending::new(1.0);
        let mut made = 0;
        let refused = loop {
            match spending.admit(0.4, 100 - made) {
                Ok(()) => spending.spend(0.1),
                Err(refused) => break refused,
            }
            made += 1;
        };
        assert!(spending.spent() <= 1.0);
        assert_eq!(made, 7);
        assert_eq!(refused.left, 93);
        assert!((refused.rest - 9.3).abs() < 1e-9, "{refused}");
        assert!((Spending::new(0.1).admit(0.4, 10).unwrap_err().rest - 4.0).abs() < 1e-9);
    }
}
