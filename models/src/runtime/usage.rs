//! Token usage of a request, by which clients bill and limit.

use super::model::Outputs;
use super::tensor::{Tensor, TensorError};

/// Name of the usage output: INT64 `[2]`, prompt tokens and generated tokens.
pub const USAGE: &str = "usage";

/// Builds the usage output from the numbers of prompt tokens and generated tokens.
pub(crate) fn usage(read: usize, written: usize) -> Result<Tensor, TensorError> {
    let counts = [read, written].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    Tensor::from_i64(USAGE, &[2], &counts)
}

/// Returns the numbers of prompt tokens and generated tokens; `None` without a valid usage output.
pub fn tokens_of(outputs: &Outputs) -> Option<[u64; 2]> {
    let usage = outputs.iter().find(|output| output.name == USAGE)?;
    let [read, written] = <[i64; 2]>::try_from(usage.to_i64().ok()?).ok()?;
    Some([u64::try_from(read).ok()?, u64::try_from(written).ok()?])
}

/// Returns the usage output for the sum over several answers; `None` unless all of them have one.
pub fn total_usage<'a>(answers: impl IntoIterator<Item = &'a Outputs>) -> Option<Tensor> {
    let mut total = None;
    for outputs in answers {
        let own = tokens_of(outputs)?;
        let sum = total.unwrap_or([0_u64; 2]);
        total = Some([sum[0].saturating_add(own[0]), sum[1].saturating_add(own[1])]);
    }
    let [read, written] = total?.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    usage(read, written).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_add_up_only_if_all_of_them_count() {
        let counted = |counts: &[i64]| vec![Tensor::from_i64(USAGE, &[counts.len()], counts).unwrap()];
        let (one, other) = (counted(&[3, 0]), counted(&[4, 2]));
        assert_eq!(total_usage([&one, &other]), Some(usage(7, 2).unwrap()));
        assert_eq!(total_usage([]), None, "nothing was counted");
        for uncounted in [vec![], counted(&[3]), counted(&[-1, 0])] {
            assert_eq!(tokens_of(&uncounted), None);
            assert_eq!(total_usage([&one, &uncounted]), None);
        }
    }
}
