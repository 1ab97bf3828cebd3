//! A load on the paper's machine, by every mode, and what is computed from such runs.

use anyhow::Context as _;
use kaskade_simulator::offload::{Hardware, Load, Machine, Mode, OffloadOutcome, Setup, Shape};

/// Tokens of a block: vLLM's, which the paper extends.
pub(super) const BLOCK_TOKENS: usize = 16;

/// A load by one mode.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The model.
    pub(super) model: String,
    /// The load.
    pub(super) load: Load,
    /// The mode.
    pub(super) mode: Mode,
    /// Setup of the engine.
    pub(super) setup: Setup,
    /// Outcome of the run.
    pub(super) outcome: OffloadOutcome,
}

impl Run {
    /// Tokens generated per second.
    pub(super) fn speed(&self) -> f64 {
        self.outcome.tokens_per_s()
    }
}

/// Sets up and runs.
///
/// # Errors
/// When not one request fits.
pub(super) fn run(hardware: &Hardware, shape: &Shape, load: &Load, mode: Mode) -> anyhow::Result<Run> {
    let machine = Machine { hardware, shape };
    let failed = || {
        format!(
            "{}, prompts of {} tokens, {}",
            shape.name,
            load.prompt,
            name(mode)
        )
    };
    let setup = machine.setup(load, mode).with_context(failed)?;
    let outcome = machine.run(&setup, load).with_context(failed)?;
    Ok(Run {
        model: shape.name.clone(),
        load: *load,
        mode,
        setup,
        outcome,
    })
}

/// A mode's name in tables and pictures.
pub(super) fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Hybrid => "hybrid",
        Mode::Kv => "KV only (FlexGen)",
        Mode::Act => "ACT only",
        Mode::Tokens => "token recomputation",
        Mode::NoMiniBatches => "no mini-batches (DeepSpeed)",
        Mode::Even => "hybrid caching, 1:1",
        Mode::Algorithm1 => "Algorithm 1's mixture",
    }
}

/// The geometric mean; NaN of an empty list.
pub(super) fn geometric(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .into_iter()
        .fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (sum / count).exp()
}

/// The largest; NaN of an empty list.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NAN, f64::max)
}

/// Returns the speed-ups of one mode over another, for every model and prompt that both were run with.
pub(super) fn ratios(runs: &[Run], of: Mode, over: Mode) -> Vec<(&Run, f64)> {
    let pairs = runs.iter().filter(|run| run.mode == of).filter_map(|run| {
        let other = runs
            .iter()
            .find(|other| other.mode == over && other.model == run.model && other.load == run.load)?;
        Some((run, run.speed() / other.speed()))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_ratios_are_geometric() {
        assert!((geometric([2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert!(geometric([]).is_nan() && largest([]).is_nan());
        assert!((largest([1.0, 3.0, 2.0]) - 3.0).abs() < 1e-12);
    }
}
