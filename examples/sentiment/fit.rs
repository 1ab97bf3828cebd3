//! Fitting a network to labelled sentences: `AdamW`, a warm-up and a cosine, other tokens hidden in every pass.

use std::error::Error;

use burn::grad_clipping::GradientClippingConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Device;
use rand_chacha::ChaCha8Rng;

use crate::corpus::{Tokens, batches, tensors};
use crate::network::Bert;
use crate::recipes::Training;

/// Sentences per step.
const BATCH: usize = 32;
/// Share of the steps over which the learning rate rises to its highest.
const WARM_UP: f64 = 0.1;
const WEIGHT_DECAY: f32 = 0.05;
/// The longest gradient of a tensor that is followed in full.
const MAX_GRADIENT: f32 = 1.0;

/// The network, fitted. `watch` sees it after every pass, with the number of the pass and its mean loss.
pub(crate) fn fit(
    mut network: Bert,
    sentences: &[Tokens],
    training: Training,
    device: &Device,
    rng: &mut ChaCha8Rng,
    mut watch: impl FnMut(usize, f32, &Bert) -> Result<(), Box<dyn Error>>,
) -> Result<Bert, Box<dyn Error>> {
    let loss_of = CrossEntropyLossConfig::new().init(device);
    let mut optimizer = AdamWConfig::new()
        .with_weight_decay(WEIGHT_DECAY)
        .with_epsilon(1e-8)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(MAX_GRADIENT)))
        .init();
    let steps = training.epochs * batches(sentences, BATCH, rng).len();
    let mut step = 0;
    for epoch in 1..=training.epochs {
        let mut losses = 0.0;
        for batch in batches(sentences, BATCH, rng) {
            let (sequences, classes) = tensors(&batch, training.token_dropout, rng, device);
            let loss = loss_of.forward(network.forward(&sequences), classes);
            losses += loss.clone().into_scalar::<f32>() * batch.len() as f32;
            let gradients = GradientsParams::from_grads(loss.backward(), &network);
            network = optimizer.step(rate_at(training.rate, step, steps), network, gradients);
            step += 1;
        }
        watch(epoch, losses / sentences.len().max(1) as f32, &network)?;
    }
    Ok(network)
}

fn rate_at(highest: f64, step: usize, steps: usize) -> f64 {
    let done = (step + 1) as f64 / steps as f64;
    let level = if done < WARM_UP {
        done / WARM_UP
    } else {
        let fallen = (done - WARM_UP) / (1.0 - WARM_UP);
        f64::midpoint(1.0, (std::f64::consts::PI * fallen).cos())
    };
    highest * level
}
