//! Runs batches of requests: a malformed request fails alone, the others are computed together.

use rayon::prelude::*;

use super::model::{Inputs, ModelError, Outputs};
use super::tensor;
use crate::device::Device;
use crate::ops::{Ops, OpsError};

/// Results of a batch, one per request, in request order.
pub(crate) type BatchResults = Vec<Result<Outputs, ModelError>>;

/// Runs a batch. Requests that `read` rejects fail alone; `forward` computes the others together and returns one result
/// per request.
pub(crate) fn run_batch<T>(
    batch: &[Inputs],
    read: impl Fn(&Inputs) -> Result<T, ModelError>,
    forward: impl FnOnce(&[T]) -> Result<BatchResults, ModelError>,
) -> BatchResults {
    run_batch_of(batch.iter().map(read).collect(), forward)
}

/// Runs a batch like [`run_batch`], of requests that are already parsed.
pub(crate) fn run_batch_of<T>(
    parsed: Vec<Result<T, ModelError>>,
    forward: impl FnOnce(&[T]) -> Result<BatchResults, ModelError>,
) -> BatchResults {
    run_parsed(parsed, |requests| exactly_one_each(&requests, forward))
}

/// Runs a batch like [`run_batch`], on all CPU cores: parses requests in parallel, tokenization included, and
/// distributes them by `size` with [`map_in_parallel`].
pub(crate) fn run_batch_in_parallel<T: Send + Sync>(
    device: &Device,
    batch: &[Inputs],
    read: impl Fn(&Inputs) -> Result<T, ModelError> + Sync,
    size: impl Fn(&T) -> usize,
    forward: impl Fn(&[T]) -> Result<BatchResults, ModelError> + Sync,
) -> BatchResults {
    let parsed = match batch {
        [inputs] => vec![read(inputs)],
        _ => batch.par_iter().map(&read).collect(),
    };
    run_parsed(parsed, |requests| {
        map_in_parallel(device, requests, size, |part| exactly_one_each(part, &forward))
    })
}

fn run_parsed<T>(
    parsed: Vec<Result<T, ModelError>>,
    answer: impl FnOnce(Vec<T>) -> BatchResults,
) -> BatchResults {
    let (mut requests, mut rejections) = (Vec::with_capacity(parsed.len()), Vec::with_capacity(parsed.len()));
    for request in parsed {
        match request {
            Ok(request) => {
                requests.push(request);
                rejections.push(None);
            }
            Err(error) => rejections.push(Some(error)),
        }
    }
    let mut answers = if requests.is_empty() {
        Vec::new()
    } else {
        answer(requests)
    }
    .into_iter();
    rejections
        .into_iter()
        .filter_map(|rejection| rejection.map_or_else(|| answers.next(), |error| Some(Err(error))))
        .collect()
}

/// Calls `forward` and returns one result per request, even if it fails or returns another number of results.
fn exactly_one_each<T>(
    requests: &[T],
    forward: impl FnOnce(&[T]) -> Result<BatchResults, ModelError>,
) -> BatchResults {
    let failed = |error: ModelError| vec![Err(error); requests.len()];
    match forward(requests) {
        Ok(answers) if answers.len() == requests.len() => answers,
        Ok(answers) => failed(ModelError::Failed {
            reason: format!(
                "it returned {} results for {} requests",
                answers.len(),
                requests.len()
            ),
        }),
        Err(error) => failed(error),
    }
}

/// Returns the error of a request after a device error.
pub(crate) fn device_failed(error: &OpsError) -> ModelError {
    ModelError::Failed {
        reason: error.to_string(),
    }
}

/// Downloads the rows of a matrix that has `columns` columns.
///
/// # Errors
/// [`ModelError::Failed`] with the message of the device.
pub(crate) fn rows<O: Ops>(ops: &O, matrix: &O::Matrix, columns: usize) -> Result<Vec<Vec<f32>>, ModelError> {
    let values = ops.values(matrix).map_err(|error| device_failed(&error))?;
    Ok(values.chunks(columns.max(1)).map(<[f32]>::to_vec).collect())
}

/// Returns one output `logits` FP32 `[columns]` per row.
pub(crate) fn logits_per_row(rows: Vec<Vec<f32>>) -> BatchResults {
    let outputs = |row: Vec<f32>| Ok(vec![tensor::Tensor::from_f32("logits", &[row.len()], &row)?]);
    rows.into_iter().map(outputs).collect()
}

/// Maps the items of a batch: on the CPU in one part per core, in parallel; on other devices in one part.
///
/// The parts have about equal sums of `size`, so that cores finish together; items of different parts are not padded
/// to the same size. `answer` returns one result per item; the results are in the order of the items.
fn map_in_parallel<T: Send + Sync, R: Send>(
    device: &Device,
    items: Vec<T>,
    size: impl Fn(&T) -> usize,
    answer: impl Fn(&[T]) -> Vec<R> + Sync,
) -> Vec<R> {
    if *device != Device::Cpu {
        return answer(&items);
    }
    let parts = rayon::current_num_threads().min(items.len());
    if parts <= 1 {
        // A thread of the pool shares work with the other threads faster than the model's thread.
        return rayon::scope(|_| answer(&items));
    }
    let parts = balanced(items, parts, size);
    let results: Vec<(Vec<usize>, Vec<R>)> = parts
        .into_par_iter()
        .map(|(places, items)| (places, answer(&items)))
        .collect();
    let mut results: Vec<(usize, R)> = results
        .into_iter()
        .flat_map(|(places, results)| places.into_iter().zip(results))
        .collect();
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Distributes items over parts: the largest first, each to the part with the smallest sum. Returns the indices of the
/// items of each part, and the items.
fn balanced<T>(items: Vec<T>, parts: usize, size: impl Fn(&T) -> usize) -> Vec<(Vec<usize>, Vec<T>)> {
    let mut ordered: Vec<(usize, T)> = items.into_iter().enumerate().collect();
    ordered.sort_by_key(|(_, item)| std::cmp::Reverse(size(item)));
    let mut filled: Vec<_> = (0..parts).map(|_| (0, Vec::new(), Vec::new())).collect();
    for (place, item) in ordered {
        if let Some((sum, places, items)) = filled.iter_mut().min_by_key(|(sum, _, _)| *sum) {
            // Counts an item of size 0 as 1, so that such items are distributed too.
            *sum += size(&item).max(1);
            places.push(place);
            items.push(item);
        }
    }
    filled
        .into_iter()
        .map(|(_, places, items)| (places, items))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order() {
        for count in 0..9 {
            let items: Vec<usize> = (0..count).map(|item| (item * 7) % 5).collect();
            let doubled = map_in_parallel(
                &Device::Cpu,
                items.clone(),
                |item| *item,
                |part| part.iter().map(|item| item * 2).collect(),
            );
            assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    /// Parts with equal numbers of items would be unequal here: texts of 20 tokens on one core, of 120 tokens on the
    /// other.
    #[test]
    fn parts_take_equally_long() {
        let lengths: Vec<usize> = (0..32).map(|text| 20 + (text * 37) % 101).collect();
        for parts in 1..6 {
            let balanced = balanced(lengths.clone(), parts, |length| *length);
            let sums: Vec<usize> = balanced.iter().map(|(_, items)| items.iter().sum()).collect();
            let (most, least) = (sums.iter().max().unwrap(), sums.iter().min().unwrap());
            assert!(most - least <= 120 / parts, "{sums:?}");
            assert!(
                balanced
                    .iter()
                    .all(|(places, items)| places.len() == items.len() && !items.is_empty())
            );
        }
    }
}
