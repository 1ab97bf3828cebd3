//! Traffic of the link and utilisation of the device (§5.3, §5.4, Figures 13 and 14), on OPT-30B.

use kaskade_simulator::offload::decoders as stated;
use kaskade_simulator::offload::{Hardware, Load, Mode};

use super::field::{self, Run, geometric, largest};
use crate::reproduction::{Claim, Reproduction};

/// Batches of Figure 14; the first two are Figure 13's.
pub(super) const BATCHES: [usize; 3] = [32, 64, 128];

/// The largest reduction by batch (§5.3).
const REDUCED: [(usize, f64); 2] = [(32, 1.27), (64, 1.38)];

/// The mean gain in utilisation, and the largest, at a batch of 128 (§5.4).
const BUSIER: f64 = 7.39;
const MAX_BUSIER: f64 = 13.39;

/// The paper prints two places.
const ROUNDED: f64 = 0.005;

/// Utilisation at batches of 32 and of 128 (§5.4).
const PAPER_KV: [f64; 2] = [0.082, 0.126];
const PAPER_HYBRID: [f64; 2] = [0.356, 0.782];

/// A load by both modes.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    /// KV only.
    pub(super) kv: Run,
    /// The hybrid.
    pub(super) hybrid: Run,
}

impl Pair {
    /// Factor by which the hybrid transfers fewer bytes of blocks while tokens are generated.
    fn reduced(&self) -> f64 {
        self.kv.outcome.decode.traffic.cache() as f64 / self.hybrid.outcome.decode.traffic.cache() as f64
    }

    /// Returns the same factor with the weights included.
    fn reduced_in_all(&self) -> f64 {
        self.kv.outcome.decode.traffic.loaded() as f64 / self.hybrid.outcome.decode.traffic.loaded() as f64
    }

    /// Times busier.
    fn busier(&self) -> f64 {
        self.hybrid.outcome.busy_share() / self.kv.outcome.busy_share()
    }
}

/// Runs every batch with every load's prompt and answer.
///
/// # Errors
/// When a request does not fit.
pub(super) fn run(hardware: &Hardware, loads: &[Load]) -> anyhow::Result<Vec<Pair>> {
    let [_, _, opt_30b, _] = stated::opt_models();
    let mut pairs = Vec::new();
    for requests in BATCHES {
        for load in loads {
            let load = Load { requests, ..*load };
            pairs.push(Pair {
                kv: field::run(hardware, &opt_30b, &load, Mode::Kv)?,
                hybrid: field::run(hardware, &opt_30b, &load, Mode::Hybrid)?,
            });
        }
    }
    Ok(pairs)
}

/// Pairs of one batch.
pub(super) fn of_batch(pairs: &[Pair], requests: usize) -> impl Iterator<Item = &Pair> {
    pairs.iter().filter(move |pair| pair.kv.load.requests == requests)
}

/// The claims.
pub(super) fn compare(pairs: &[Pair], found: &mut Reproduction) {
    for (requests, paper) in REDUCED {
        let all = largest(of_batch(pairs, requests).map(Pair::reduced_in_all));
        let blocks: Vec<String> = of_batch(pairs, requests)
            .map(|pair| format!("{} tokens {}", pair.kv.load.prompt, in_times(pair.reduced())))
            .collect();
        let met = all >= paper - ROUNDED;
        found.claims.push(Claim {
            name: format!("OPT-30B: host-GPU traffic while tokens are generated, batch of {requests} (Figure 13)"),
            paper: format!("up to {paper}x less"),
            ours: format!("up to {all:.2}x less"),
            met,
            note: format!(
                "weights, KV and ACT blocks together; of the blocks alone, by prompts of {}: blocks on the device are not carried",
                blocks.join(", ")
            ),
        });
    }
    let ratio = geometric(pairs.iter().map(Pair::busier));
    let met = ratio >= BUSIER;
    let [few, .., many] = BATCHES;
    let shares = |batch: usize, of: fn(&Pair) -> &Run| {
        geometric(of_batch(pairs, batch).map(|pair| of(pair).outcome.busy_share()))
    };
    let kv = [few, many].map(|batch| shares(batch, |pair| &pair.kv));
    let hybrid = [few, many].map(|batch| shares(batch, |pair| &pair.hybrid));
    found.claims.push(Claim {
        name: "OPT-30B: GPU utilisation over FlexGen's schedule, mean (Figure 14)".to_owned(),
        paper: format!("{BUSIER}x"),
        ours: format!(
            "{ratio:.2}x, while tokens are generated {:.2}x",
            geometric(pairs.iter().map(generating))
        ),
        met,
        note: if met { String::new() } else { idle(&kv, &PAPER_KV) },
    });
    let most = largest(of_batch(pairs, many).map(Pair::busier));
    let met = most >= MAX_BUSIER;
    found.claims.push(Claim {
        name: format!("OPT-30B: GPU utilisation, batch of {many}, at most"),
        paper: format!("{MAX_BUSIER}x"),
        ours: format!("{most:.2}x"),
        met,
        note: if met { String::new() } else { idle(&kv, &PAPER_KV) },
    });
    let rises = |[few, many]: [f64; 2]| many / few;
    let above = hybrid.iter().zip(&kv).all(|(hybrid, kv)| hybrid > kv);
    let met = rises(hybrid) > 1.0 && above;
    found.claims.push(Claim {
        name: format!("OPT-30B: GPU utilisation from a batch of {few} to {many}"),
        paper: format!(
            "FlexGen {}, HybridServe {}",
            in_percent(PAPER_KV),
            in_percent(PAPER_HYBRID)
        ),
        ours: format!("KV only {}, hybrid {}", in_percent(kv), in_percent(hybrid)),
        met,
        note: if met {
            "met: the hybrid's rises, and is above at both ends; means over the prompts".to_owned()
        } else {
            "the device is busy all the time at the smaller batch already".to_owned()
        },
    });
}

/// Factor of the utilisation while tokens are generated.
fn generating(pair: &Pair) -> f64 {
    let share = |run: &Run| run.outcome.decode.busy_s / run.outcome.decode.seconds;
    share(&pair.hybrid) / share(&pair.kv)
}

/// Formats a reduction as a factor; an infinite one leaves nothing.
fn in_times(ratio: f64) -> String {
    if ratio.is_finite() {
        format!("{ratio:.2}x")
    } else {
        "all of it".to_owned()
    }
}

fn idle(ours: &[f64; 2], paper: &[f64; 2]) -> String {
    let bound = 1.0 / geometric(*ours);
    format!(
        "KV only keeps the device busy for {} of the time here and {} in the paper; where it does so for as much, a hybrid that is never idle would be \
         {bound:.2}x as busy. What a device does in a prompt and in reading weights again for each mini-batch counts as busy here",
        in_percent(*ours),
        in_percent(*paper)
    )
}

fn in_percent([few, many]: [f64; 2]) -> String {
    format!("{:.1} to {:.1} %", 100.0 * few, 100.0 * many)
}
