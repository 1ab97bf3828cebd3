//! Granite with sliding windows (IBM 2026), dense and with experts: an attention sink per head; the first of every
//! four layers is global. Local and global layers have their own rotary positions, or none.

use kaskade_policy::plan::Partition;
use serde_json::{Map, Value};

use super::granite::{model_config, with_experts};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{ExpertLayout, ExpertTensors};
use crate::decoder::gated::{self, Extra, Layout};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig};
use crate::ops::Rotary;

/// Key of the rotary base per layer; 0 for none.
const THETAS: &str = "layer_rope_theta";

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (model_config, layout) = with_windows(&checkpoint.config)?;
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (model_config, layout) = with_windows(config)?;
    let (model_config, mut layout) = with_experts(config, model_config, layout)?;
    layout.experts = layout.experts.map(|experts| ExpertLayout {
        router: "router",
        tensors: ExpertTensors::Fused(["experts.gate_up_proj", "experts.down_proj"]),
        ..experts
    });
    gated::read(checkpoint, partition, model_config, &layout)
}

fn with_windows(config: &Config) -> Result<(ModelConfig, Layout), LoadError> {
    let (local, local_layers) = gated::windows(config, |index| !index.is_multiple_of(4))?;
    let base = model_config(config)?;
    let [near, far] = [true, false].map(|is_local| positions(config, &base, &local_layers, is_local));
    let (near, far) = (near?, far?);
    if local.is_some() && near.is_none() && far.is_some() {
        let reason = "layers with a window must have positions if the others have them";
        return Err(config.invalid_value(THETAS, reason));
    }
    let model_config = ModelConfig {
        local: local.map(|local| LocalAttention {
            rotary: near,
            ..local
        }),
        rotary: far,
        ..base
    };
    let layout = Layout {
        extra: Extra::Sinks,
        local_layers,
        ..Layout::with_biases(config)?
    };
    Ok((model_config, layout))
}

/// Returns the rotary positions of the local layers or of the global layers.
fn positions(
    config: &Config,
    base: &ModelConfig,
    local_layers: &[bool],
    is_local: bool,
) -> Result<Option<Rotary>, LoadError> {
    let Some(thetas) = config.optional::<Vec<f64>>(THETAS)? else {
        return Ok(base.rotary.clone());
    };
    let kinds = local_layers.iter().copied().chain(std::iter::repeat(false));
    let own = thetas
        .into_iter()
        .zip(kinds)
        .filter(|(_, kind)| *kind == is_local);
    let mut own = own.map(|(theta, _)| theta);
    let theta = own.next().unwrap_or_default();
    if own.any(|other| other.to_bits() != theta.to_bits()) {
        return Err(config.invalid_value(THETAS, "it must be the same in all layers of a kind"));
    }
    if theta <= 0.0 {
        return Ok(None);
    }
    let mut config = config.clone();
    let parameters = config.optional::<Map<String, Value>>("rope_parameters")?;
    let mut parameters = parameters.unwrap_or_default();
    parameters.insert("rope_theta".into(), theta.into());
    config.set("rope_parameters", parameters.into());
    let positions = rotary(&config, base.heads.head_dim, RotaryKeys::default())?;
    Ok(Some(positions.rotary))
}
