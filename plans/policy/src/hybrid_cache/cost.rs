//! How long the link and the device take, by lines through samples (HybridServe KAIST §4.3, Figure 11).

use thiserror::Error;

use crate::linear_fit::LinearFit;

/// A measurement: this many blocks took this many seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Blocks loaded or computed, of one layer.
    pub blocks: f64,
    /// Seconds.
    pub seconds: f64,
}

/// Cost model of a step, layer by layer. All functions are of blocks of one layer and give seconds; 0 blocks cost nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// `T_load_w`: loading a layer's weights; 0 where they are resident.
    pub load_weights_s: f64,
    /// `T_kv_gen`: keys and values out of ACT blocks.
    pub kv_gen: LinearFit,
    /// `T_load_kv`: KV blocks over the link.
    pub load_kv: LinearFit,
    /// Transfer time of ACT blocks over the link. The paper does not count them (equation 9 names KV blocks only), though they take half as
    /// long as KV blocks.
    pub load_act: LinearFit,
    /// Remaining compute time of a layer in a step, as a function of the blocks in the cache: projections, attention and feed-forward layer
    /// of the new tokens. The paper omits it, because on its machine it is small compared with `T_kv_gen`.
    pub forward: LinearFit,
    /// Time after the last layer: the head and the choice of tokens, once per step, seconds.
    pub head_s: f64,
}

impl Costs {
    /// Returns the costs with all computing and all loading multiplied by one factor each.
    #[must_use]
    pub fn times(&self, compute: f64, load: f64) -> Self {
        let line = |line: &LinearFit, factor: f64| LinearFit {
            intercept: line.intercept * factor,
            slope: line.slope * factor,
            r2: line.r2,
        };
        Self {
            load_weights_s: self.load_weights_s * load,
            kv_gen: line(&self.kv_gen, compute),
            load_kv: line(&self.load_kv, load),
            load_act: line(&self.load_act, load),
            forward: line(&self.forward, compute),
            head_s: self.head_s * compute,
        }
    }
}

/// Why samples give no line.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum CostError {
    /// There are too few samples.
    #[error(
        "at least 2 different numbers of blocks must be measured, and there were {sizes}; longer prompts or answers have more"
    )]
    TooFew {
        /// Different sizes among them.
        sizes: usize,
    },
    /// One is negative, infinite or not a number.
    #[error("a sample of {blocks} blocks took {seconds} s; measure it again")]
    Nonsense {
        /// Blocks of the sample.
        blocks: f64,
        /// Time of the sample, seconds.
        seconds: f64,
    },
    /// More blocks take less time, so the samples are noise.
    #[error("the samples fall by {by_s} s per block; measure on a quieter machine, or more blocks")]
    Falling {
        /// Difference, seconds per block.
        by_s: f64,
    },
}

/// The line through samples, with its `R^2`.
///
/// # Errors
/// [`CostError`] for fewer than two sizes, for samples that are no durations, and for lines that fall.
pub fn fit(samples: &[Sample]) -> Result<LinearFit, CostError> {
    for &Sample { blocks, seconds } in samples {
        if !(blocks >= 0.0 && seconds >= 0.0 && blocks.is_finite() && seconds.is_finite()) {
            return Err(CostError::Nonsense { blocks, seconds });
        }
    }
    let mut sizes: Vec<u64> = samples.iter().map(|sample| sample.blocks.to_bits()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let too_few = CostError::TooFew { sizes: sizes.len() };
    if sizes.len() < 2 {
        return Err(too_few);
    }
    let points = samples.iter().map(|sample| (sample.blocks, sample.seconds));
    let line = LinearFit::of(points).ok_or(too_few)?;
    if line.slope < 0.0 {
        return Err(CostError::Falling { by_s: -line.slope });
    }
    Ok(line)
}

/// The line's value at this many blocks, never below 0, and 0 for none.
pub fn seconds(line: &LinearFit, blocks: usize) -> f64 {
    if blocks == 0 {
        return 0.0;
    }
    line.at(blocks as f64).max(0.0)
}

/// Returns the number of blocks (a fraction) that take this many seconds; infinite if blocks cost nothing.
pub(crate) fn blocks_in(line: &LinearFit, seconds: f64) -> f64 {
    let left = (seconds - line.intercept).max(0.0);
    if line.slope > 0.0 {
        left / line.slope
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: impl Fn(f64) -> f64) -> Vec<Sample> {
        let sample = |blocks| Sample {
            blocks,
            seconds: of(blocks),
        };
        [8.0, 16.0, 32.0, 64.0].map(sample).to_vec()
    }

    #[test]
    fn a_line_is_found_and_inverted() {
        let line = fit(&samples(|blocks| 0.5 + 0.25 * blocks)).unwrap();
        assert!((line.slope - 0.25).abs() < 1e-12 && (line.r2 - 1.0).abs() < 1e-12);
        assert!((blocks_in(&line, seconds(&line, 40)) - 40.0).abs() < 1e-9);
        assert!(seconds(&line, 0).abs() < 1e-12);
        assert!(blocks_in(&line, 0.1).abs() < 1e-12, "less than the line's start");
    }

    #[test]
    fn samples_that_say_nothing_are_refused() {
        let one = Sample {
            blocks: 8.0,
            seconds: 1.0,
        };
        assert_eq!(fit(&[one, one]), Err(CostError::TooFew { sizes: 1 }));
        assert_eq!(fit(&[]), Err(CostError::TooFew { sizes: 0 }));
        let falling = fit(&samples(|blocks| 100.0 - blocks));
        assert!(matches!(falling, Err(CostError::Falling { .. })));
        let nan = fit(&samples(|_| f64::NAN));
        assert!(matches!(nan, Err(CostError::Nonsense { .. })));
    }
}
