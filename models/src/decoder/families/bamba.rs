//! Bamba (IBM 2024): Mamba 2 mixers, and attention in some layers.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::recurrent::mamba2::{Mamba2, Mamba2Keys};
use crate::decoder::recurrent::{self, MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::Decoder;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let keys = RotaryKeys {
        partial: 0.5,
        ..RotaryKeys::default()
    };
    let model_config = gated::model_config(config, keys)?;
    let inner = recurrent::expanded(config, "mamba_expand", model_config.width)?;
    let attention = config.optional::<Vec<usize>>("attn_layer_indices")?;
    let attention = attention.unwrap_or_default();
    let layers = 0..config.size("num_hidden_layers")?;
    let layout = Layout {
        recurrent: Some(RecurrentLayout {
            layers: layers.map(|index| !attention.contains(&index)).collect(),
            beside_attention: false,
            module: "mamba",
            mixer: MixerConfig::Mamba2(Mamba2::read(
                config,
                Mamba2Keys::HYBRID,
                inner,
                model_config.epsilon,
            )?),
        }),
        ..hybrid_names(Layout::with_biases(config)?)
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Sets the names of feed-forward and norms that Bamba, Falcon H1 and Jamba share.
pub(super) fn hybrid_names(layout: Layout) -> Layout {
    Layout {
        up: &["feed_forward.gate_proj", "feed_forward.up_proj"],
        down: "feed_forward.down_proj",
        norm_names: NormNames {
            feed_forward: "pre_ff_layernorm",
            ..layout.norm_names
        },
        final_norm: "model.final_layernorm",
        ..layout
    }
}
