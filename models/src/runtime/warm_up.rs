//! Warms up a GPU: it compiles kernels on first use, which takes seconds to a minute per model.

use std::time::{Duration, Instant};

use super::model::Model;
use super::sample_request::{SampleSize, sample_request};

/// Number of elements of a short request, such as tokens of a text.
const SHORT: usize = 16;
/// Maximum number of elements of a long request.
const LONG: usize = 512;
/// Number of tokens that a language model generates.
const TOKENS: usize = 4;
/// Time after which no further batch starts.
const LIMIT: Duration = Duration::from_mins(3);

/// Runs synthetic batches of 1, 2, 4 and so on up to `most` requests, short and long, so that a GPU has compiled its
/// kernels before the first request. Skips models without synthetic requests. Returns the number of successful
/// batches.
pub fn warm_up(model: &mut dyn Model, most: usize) -> usize {
    let began = Instant::now();
    let signature = model.signature();
    let [short, long] = [SHORT, LONG].map(|elements| {
        let size = SampleSize {
            elements,
            tokens: TOKENS,
        };
        sample_request(&signature, size).ok()
    });
    let long = long.filter(|long| short.as_ref() != Some(long));
    let (mut ran, mut left_out) = (0, 0);
    for request in short.into_iter().chain(long) {
        let sizes = std::iter::successors(Some(1), |size| Some(size * 2));
        for batch in sizes.take_while(|size| *size < most.max(1)).chain([most.max(1)]) {
            let in_time = began.elapsed() < LIMIT;
            if in_time && model.run(&vec![request.clone(); batch]).iter().all(Result::is_ok) {
                ran += 1;
            } else {
                left_out += 1;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    tracing::info!(batches = ran, left_out, seconds, "the model is warmed up");
    ran
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::datatype::Datatype;
    use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, Outputs, Signature};

    /// Test model: rejects batches of more than five requests.
    #[derive(Default)]
    struct Counting(Vec<(usize, usize)>);

    impl Model for Counting {
        fn signature(&self) -> Signature {
            Signature {
                inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::UpTo(40)])],
            }
        }

        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            self.0.push((batch.len(), batch[0][0].shape[0]));
            let answer = || {
                if batch.len() > 5 {
                    return Err(ModelError::MissingInput {
                        name: "x".into(),
                        expected: Vec::new(),
                    });
                }
                Ok(Outputs::new())
            };
            batch.iter().map(|_| answer()).collect()
        }
    }

    #[test]
    fn short_and_long_batches_run_up_to_the_largest() {
        let mut model = Counting::default();
        assert_eq!(warm_up(&mut model, 6), 6, "two are refused");
        let sizes = [1, 2, 4, 6];
        let expected = [16, 40]
            .iter()
            .flat_map(|length| sizes.map(|size| (size, *length)));
        assert_eq!(model.0, expected.collect::<Vec<_>>());
    }
}
