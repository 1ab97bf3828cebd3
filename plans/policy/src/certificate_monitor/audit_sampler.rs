//! A seeded random source for the choice of the requests that are audited.

/// A seeded stream of independent draws (`SplitMix64`), the same for the same seed.
#[derive(Debug, Clone)]
pub struct BernoulliSampler(u64);

impl BernoulliSampler {
    /// Creates the stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns true with that probability.
    pub fn draw(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a number in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_up_as_often_as_it_should() {
        for share in [0.0, 0.005, 0.3, 1.0] {
            let mut draws = BernoulliSampler::new(7);
            let up = (0..100_000).filter(|_| draws.draw(share)).count() as f64 / 1e5;
            assert!((up - share).abs() < 0.006, "{up} for {share}");
        }
    }
}
