//! Fan-out: splits the outputs of a pipeline's task into requests to its child tasks (Loki §3).
//!
//! Output names select the target: an output `classify/image` of shape `[k, ...]` makes `k` requests to the task
//! `classify`, each with one row as its input `image`. Outputs with other names are the task's own and go into the
//! reply. A model without results for a child task omits that output; an empty output is refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::fan_in::MAX_BRANCHES;

use crate::error::{Code, Fault};

/// The parts of one task's outputs.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FannedOut {
    /// The task's own outputs.
    pub(crate) own: Vec<Tensor>,
    /// The inputs of every request, by child task: one list of tensors per request.
    pub(crate) children: BTreeMap<String, Vec<Vec<Tensor>>>,
}

impl FannedOut {
    /// Returns the number of requests for each child task.
    pub(crate) fn counts(&self) -> BTreeMap<String, u32> {
        let count = |(task, requests): (&String, &Vec<_>)| {
            (task.clone(), u32::try_from(requests.len()).unwrap_or(u32::MAX))
        };
        self.children.iter().map(count).collect()
    }
}

/// Splits a task's outputs.
///
/// # Errors
/// [`Code::BadOutput`] for an output to an unknown child task, an output without a first axis, outputs to one task with
/// different numbers of rows, or more than [`MAX_BRANCHES`] requests. Counts are checked before anything is allocated
/// for them.
pub(crate) fn split<'a>(
    outputs: Vec<Tensor>,
    tasks: impl Iterator<Item = &'a str> + Clone,
) -> Result<FannedOut, Fault> {
    let mut parts = FannedOut::default();
    for task in tasks.clone() {
        parts.children.insert(task.to_owned(), Vec::new());
    }
    let mut row_counts = BTreeMap::new();
    for output in outputs {
        let Some((task, input)) = output.name.split_once('/') else {
            parts.own.push(output);
            continue;
        };
        let (task, input) = (task.to_owned(), input.to_owned());
        let Some(requests) = parts.children.get_mut(&task) else {
            let below: Vec<&str> = tasks.collect();
            return Err(bad(
                &output,
                &format!("addresses task `{task}`, which is not a child task: {below:?}"),
            ));
        };
        let count = row_count(&output)?;
        let first = *row_counts.entry(task.clone()).or_insert(count);
        if first != count {
            let message = format!("has {count} rows, another output to `{task}` has {first}");
            return Err(bad(&output, &message));
        }
        let total = row_counts
            .values()
            .fold(0, |total: usize, count| total.saturating_add(*count));
        if total > MAX_BRANCHES {
            let message = format!("makes {total} requests of one; at most {MAX_BRANCHES} are allowed");
            return Err(bad(&output, &message));
        }
        let rows = rows(&output, &input)?;
        requests.resize_with(rows.len(), Vec::new);
        for (request, row) in requests.iter_mut().zip(rows) {
            request.push(row);
        }
    }
    Ok(parts)
}

/// Returns the length of the first axis.
fn row_count(output: &Tensor) -> Result<usize, Fault> {
    let count = output.shape.first().copied();
    count.ok_or_else(|| bad(output, "is a scalar; its first axis is the number of requests"))
}

/// Splits a tensor along its first axis without copying.
fn rows(output: &Tensor, name: &str) -> Result<Vec<Tensor>, Fault> {
    let count = row_count(output)?;
    let shape = output.shape.get(1..).unwrap_or_default();
    if output.datatype == Datatype::Bytes {
        let texts = output
            .to_texts()
            .map_err(|error| bad(output, &error.to_string()))?;
        let each = shape.iter().product::<usize>();
        let row = |texts: &[&str]| {
            let row = Tensor::from_texts(name, texts).map_err(|error| bad(output, &error.to_string()))?;
            Ok(Tensor {
                shape: shape.to_vec(),
                ..row
            })
        };
        // Rows may be empty; then there are no texts to split.
        let of_row = |place: usize| texts.get(place * each..(place + 1) * each).unwrap_or_default();
        return (0..count).map(|place| row(of_row(place))).collect();
    }
    let size = output.data.len().checked_div(count).unwrap_or(0);
    let row = |place: usize| Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        datatype: output.datatype,
        data: part(&output.data, place * size, size),
    };
    Ok((0..count).map(row).collect())
}

/// Slices the data. Its length was checked against the shape.
fn part(data: &Bytes, from: usize, length: usize) -> Bytes {
    let to = (from + length).min(data.len());
    data.slice(from.min(to)..to)
}

fn bad(output: &Tensor, why: &str) -> Fault {
    Fault::new(Code::BadOutput, format!("output `{}` {why}", output.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|at| at as f32).collect();
        Tensor::from_f32(name, shape, &values).unwrap()
    }

    /// Creates a tensor of any shape without data.
    fn hollow(name: &str, shape: &[usize]) -> Tensor {
        Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            datatype: Datatype::F32,
            data: Bytes::new(),
        }
    }

    fn apart(outputs: Vec<Tensor>) -> Result<FannedOut, Fault> {
        split(outputs, ["digits", "marks"].into_iter())
    }

    #[test]
    fn rows_become_requests_and_the_rest_is_the_tasks_own() {
        let texts = Tensor::from_texts("marks/text", &["a", "b", "c"]).unwrap();
        let outputs = vec![
            tensor("boxes", &[2, 4]),
            tensor("digits/image", &[2, 1, 2]),
            tensor("digits/scale", &[2]),
            texts,
        ];
        let parts = apart(outputs).unwrap();
        assert_eq!(
            parts.own.iter().map(|own| own.name.as_str()).collect::<Vec<_>>(),
            ["boxes"]
        );
        assert_eq!(
            parts.counts(),
            BTreeMap::from([("digits".into(), 2), ("marks".into(), 3)])
        );
        let second = &parts.children["digits"][1];
        assert_eq!(
            (second[0].name.as_str(), second[0].shape.as_slice()),
            ("image", &[1, 2][..])
        );
        assert_eq!(second[0].to_f32().unwrap(), [2.0, 3.0]);
        assert_eq!(second[1].to_f32().unwrap(), [1.0]);
        assert_eq!(parts.children["marks"][2][0].to_texts().unwrap(), ["c"]);
    }

    #[test]
    fn an_empty_output_makes_no_request() {
        let parts = apart(vec![tensor("boxes", &[1]), tensor("digits/image", &[0, 1, 2])]).unwrap();
        assert_eq!(
            parts.counts(),
            BTreeMap::from([("digits".into(), 0), ("marks".into(), 0)])
        );
    }

    /// Each request to the child task keeps its other inputs.
    #[test]
    fn rows_without_texts_are_rows() {
        let texts = Tensor {
            shape: vec![2, 0],
            ..Tensor::from_texts("digits/words", &[]).unwrap()
        };
        let parts = apart(vec![tensor("digits/image", &[2, 3]), texts]).unwrap();
        let requests = &parts.children["digits"];
        assert_eq!(requests.len(), 2);
        for request in requests {
            let shapes = request
                .iter()
                .map(|input| (input.name.as_str(), input.shape.as_slice()));
            assert_eq!(
                shapes.collect::<Vec<_>>(),
                [("image", &[3][..]), ("words", &[0][..])]
            );
        }
    }

    #[test]
    fn a_mismatched_output_is_a_bad_output_by_name() {
        for (outputs, said) in [
            (vec![tensor("cars/image", &[1, 2])], "not a child task"),
            (vec![tensor("digits/image", &[])], "first axis"),
            (
                vec![tensor("digits/image", &[2, 1]), tensor("digits/scale", &[3])],
                "another output",
            ),
            (vec![hollow("digits/image", &[1 << 40, 0])], "1099511627776"),
            (
                vec![hollow("digits/image", &[4000, 0]), hollow("marks/text", &[97, 0])],
                "4097",
            ),
            (
                vec![
                    hollow("digits/image", &[usize::MAX, 0]),
                    hollow("marks/text", &[2, 0]),
                ],
                "at most 4096",
            ),
        ] {
            let fault = apart(outputs).unwrap_err();
            assert_eq!(fault.code, Code::BadOutput);
            assert!(fault.message.contains(said), "{}", fault.message);
        }
    }
}
