//! Money as people read it, in the currency of the app's prices.

use kaskade_policy::remote::price::{CostSource, written};

/// Three digits, wherever they are; `unknown` is never written as zero.
pub(crate) fn amount(amount: Option<f64>) -> String {
    match amount {
        None => "unknown".to_owned(),
        Some(amount) => written(amount),
    }
}

/// An amount with its source.
pub(crate) fn with_source(money: Option<f64>, source: Option<CostSource>) -> String {
    let source = source.map_or_else(String::new, |source| format!(" ({})", source.name()));
    amount(money) + &source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_three_digits_and_name_their_source() {
        for (money, text) in [(0.0, "0"), (0.0018, "0.00180"), (1.5, "1.50"), (1234.0, "1234")] {
            assert_eq!(amount(Some(money)), text);
        }
        assert_eq!(
            with_source(Some(0.25), Some(CostSource::Priced)),
            "0.250 (priced)"
        );
        assert_eq!(with_source(None, None), "unknown");
    }
}
