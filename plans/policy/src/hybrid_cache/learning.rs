//! Costs that steps correct.
//!
//! An engine samples its costs for a second or two when it starts (§4.3), and then runs for days beside other users of the same
//! processor, memory and link. Every decoding step measures how long its device computed and its link carried, and therefore by how
//! much the samples were off. [`Policy`] keeps a factor for either side, predicts steps by the corrected costs, and plans the
//! mixture again for blocks to come once the balance of the two sides has moved.

use std::collections::VecDeque;

use super::allocation::{Memory, split_at, split_sure};
use super::blocks::{Capacity, Shares};
use super::cost::Costs;

/// Steps that a factor is the median of: enough to ignore one that was held up, few enough to follow a change in seconds.
const STEPS: usize = 7;
/// Steps before a factor counts for a new mixture.
const MIN_STEPS: usize = 3;
/// The mixture is planned again when the balance of computing and loading is off by more than this factor from what it was planned with.
const MOVED: f64 = 1.1;

/// Load and costs that a mixture was planned for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// The memory that blocks share.
    pub memory: Memory,
    /// Blocks of the load.
    pub blocks: usize,
    /// Costs as they were sampled, under that load.
    pub costs: Costs,
}

/// Time that a step computes and time that it loads, all layers together, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimes {
    /// The device computes.
    pub compute_s: f64,
    /// The link carries.
    pub load_s: f64,
}

/// A step as predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Blocks in its requests' caches.
    pub blocks: usize,
    /// The sampled costs, uncorrected.
    pub sampled: StepTimes,
    /// Predicted time of the step by the corrected costs, seconds.
    pub step_s: f64,
}

/// The policy while an engine runs.
#[derive(Debug, Clone)]
pub struct Policy {
    planned: Planned,
    compute: Factor,
    load: Factor,
    /// Computing's factor over loading's when the mixture was planned.
    balance: f64,
}

impl Policy {
    /// A policy that uses the sampled costs until steps correct them.
    pub fn new(planned: Planned) -> Self {
        Self {
            planned,
            compute: Factor::default(),
            load: Factor::default(),
            balance: 1.0,
        }
    }

    /// Costs as steps have corrected them.
    pub fn costs(&self) -> Costs {
        self.planned.costs.times(self.compute.value(), self.load.value())
    }

    /// Predicts a decoding step over these blocks, through this many layers of this many mini-batches each.
    pub fn predict(&self, blocks: Capacity, layers: usize, mini_batches: usize) -> Prediction {
        let Capacity { device, host } = blocks;
        let sampled = split_at(device, host, &self.planned.costs);
        let corrected = self.costs();
        Prediction {
            blocks: blocks.total(),
            sampled: StepTimes {
                compute_s: layers as f64 * sampled.compute_s + self.planned.costs.head_s,
                load_s: layers as f64 * sampled.load_s,
            },
            step_s: split_at(device, host, &corrected).step_s(&corrected, layers, mini_batches),
        }
    }

    /// Learns from a step that was predicted; the shares for blocks to come, if they are other ones now.
    ///
    /// Steps of less than half the load that costs were sampled for teach nothing: a layer has work that does not grow with the
    /// blocks, and a few requests would seem cheap or expensive by it.
    pub fn learn(&mut self, prediction: &Prediction, took: StepTimes) -> Option<Shares> {
        if 2 * prediction.blocks < self.planned.blocks {
            return None;
        }
        self.compute.learn(prediction.sampled.compute_s, took.compute_s);
        self.load.learn(prediction.sampled.load_s, took.load_s);
        let balance = self.compute.value() / self.load.value();
        let moved = (balance / self.balance).max(self.balance / balance);
        if self.compute.steps() < MIN_STEPS || moved <= MOVED {
            return None;
        }
        self.balance = balance;
        let split = split_sure(self.planned.blocks, &self.planned.memory, &self.costs())?;
        Some(split.shares())
    }
}

/// Factor between measured and sampled costs: the median of the last steps.
#[derive(Debug, Clone, Default)]
struct Factor {
    last: VecDeque<f64>,
}

impl Factor {
    /// Ignores steps without work on this side and implausible clock values.
    fn learn(&mut self, sampled: f64, took: f64) {
        let factor = took / sampled;
        if !(factor.is_finite() && factor > 0.0) {
            return;
        }
        if self.last.len() == STEPS {
            self.last.pop_front();
        }
        self.last.push_back(factor);
    }

    fn steps(&self) -> usize {
        self.last.len()
    }

    fn value(&self) -> f64 {
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hybrid_cache::BlockCounts;
    use crate::linear_fit::LinearFit;

    const BLOCKS: usize = 100;

    /// Half of the blocks as activations keep both sides busy equally long.
    fn planned() -> Planned {
        let line = |slope| LinearFit {
            intercept: 0.0,
            slope,
            r2: 1.0,
        };
        Planned {
            memory: Memory {
                host_bytes: 1_000,
                weight_bytes: 0,
                device_bytes: 0,
                kv_block_bytes: 2,
                act_block_bytes: 1,
            },
            blocks: BLOCKS,
            costs: Costs {
                load_weights_s: 0.0,
                kv_gen: line(3.0),
                load_kv: line(2.0),
                load_act: line(1.0),
                forward: line(0.0),
                head_s: 5.0,
            },
        }
    }

    fn at(act: usize, kv: usize) -> Capacity {
        Capacity {
            device: BlockCounts::default(),
            host: BlockCounts { act, kv },
        }
    }

    /// Returns the times of a step whose device and link are slower by these factors than was sampled.
    fn took(prediction: &Prediction, compute: f64, load: f64) -> StepTimes {
        StepTimes {
            compute_s: prediction.sampled.compute_s * compute,
            load_s: prediction.sampled.load_s * load,
        }
    }

    #[test]
    fn a_slower_device_gets_fewer_activations_once_and_a_slower_link_more() {
        for (compute, load, least, most) in [(2.0, 1.0, 0.0, 0.4), (1.0, 2.0, 0.6, 1.0)] {
            let mut policy = Policy::new(planned());
            let mut given = Vec::new();
            for _ in 0..20 {
                let prediction = policy.predict(at(50, 50), 4, 2);
                given.extend(policy.learn(&prediction, took(&prediction, compute, load)));
            }
            let acts: Vec<f64> = given.iter().map(|shares| shares.act).collect();
            assert!(
                matches!(acts.as_slice(), [act] if (least..=most).contains(act)),
                "{acts:?}"
            );
        }
    }

    #[test]
    fn both_sides_slower_alike_change_predictions_and_not_the_mixture() {
        let mut policy = Policy::new(planned());
        for _ in 0..20 {
            let prediction = policy.predict(at(50, 50), 4, 2);
            assert_eq!(policy.learn(&prediction, took(&prediction, 3.0, 3.0)), None);
        }
        let [before, after] = [Policy::new(planned()), policy].map(|policy| policy.predict(at(50, 50), 4, 2));
        assert!((after.step_s / before.step_s - 3.0).abs() < 1e-9);
    }

    #[test]
    fn steps_that_were_held_up_or_had_little_to_do_teach_nothing() {
        let mut policy = Policy::new(planned());
        for step in 0..20 {
            let prediction = policy.predict(at(50, 50), 4, 2);
            let slower = if step % 3 == 1 { 100.0 } else { 1.0 };
            assert_eq!(policy.learn(&prediction, took(&prediction, slower, 1.0)), None);
            let small = policy.predict(at(20, 20), 4, 2);
            assert_eq!(policy.learn(&small, took(&small, 9.0, 1.0)), None);
            let nonsense = StepTimes {
                compute_s: f64::NAN,
                load_s: -1.0,
            };
            assert_eq!(policy.learn(&prediction, nonsense), None);
        }
        assert_eq!(policy.costs(), planned().costs);
    }

    proptest! {
        /// Wherever device and link are off by factors, steps are predicted exactly as soon as half of a factor's steps are in.
        #[test]
        fn predictions_come_true(compute in 0.1..10.0_f64, load in 0.1..10.0_f64, act in 0..=BLOCKS, layers in 1..9_usize, mini_batches in 1..5_usize) {
            let (mut policy, blocks) = (Policy::new(planned()), at(act, BLOCKS - act));
            let truth = planned().costs.times(compute, load);
            for _ in 0..=STEPS / 2 {
                let prediction = policy.predict(blocks, layers, mini_batches);
                policy.learn(&prediction, took(&prediction, compute, load));
            }
            let wanted = split_at(blocks.device, blocks.host, &truth).step_s(&truth, layers, mini_batches);
            let prediction = policy.predict(blocks, layers, mini_batches).step_s;
            prop_assert!((prediction / wanted - 1.0).abs() < 1e-9, "{prediction} {wanted}");
        }
    }
}
