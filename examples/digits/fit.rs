//! Fitting a network to labelled images: `AdamW`, a warm-up and a cosine, every image changed again in every epoch.

use std::time::Instant;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::augment::Augmentation;

/// Images per step.
const BATCH: usize = 32;
/// Share of the steps over which the learning rate rises to its highest.
const WARM_UP: f64 = 0.05;
const WEIGHT_DECAY: f32 = 0.02;

/// Images as the network takes them.
pub(crate) struct Images {
    /// Pixels per row.
    pub width: usize,
    /// Each image's pixels, from 0 to 1, and its class.
    pub samples: Vec<(Vec<f32>, u8)>,
}

/// How a network is fitted.
pub(crate) struct Fitting {
    /// Passes over the images.
    pub epochs: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// How images are changed.
    pub augmentation: Augmentation,
    /// Where it is computed: a device with automatic differentiation.
    pub device: Device,
}

impl Fitting {
    /// The network, fitted. Prints the loss ten times on the way.
    pub(crate) fn run<M: Module>(
        &self,
        mut network: M,
        forward: fn(&M, Tensor<2>) -> Tensor<2>,
        images: &Images,
        rng: &mut ChaCha8Rng,
    ) -> M {
        let loss_of = CrossEntropyLossConfig::new().init(&self.device);
        let mut optimizer = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY).init();
        let mut order: Vec<&(Vec<f32>, u8)> = images.samples.iter().collect();
        let steps = self.epochs * order.len().div_ceil(BATCH);
        let (mut step, mut shown) = (0, Instant::now());
        for epoch in 1..=self.epochs {
            order.shuffle(rng);
            let mut losses = 0.0;
            for batch in order.chunks(BATCH) {
                let (inputs, classes) = self.batch(batch, images.width, rng);
                let loss = loss_of.forward(forward(&network, inputs), classes);
                losses += loss.clone().into_scalar::<f32>() * batch.len() as f32;
                let gradients = GradientsParams::from_grads(loss.backward(), &network);
                network = optimizer.step(self.rate_at(step, steps), network, gradients);
                step += 1;
            }
            if epoch % self.epochs.div_ceil(10) == 0 || epoch == self.epochs {
                eprintln!(
                    "  epoch {epoch:>3}/{}  loss {:.4}  {:.1} s",
                    self.epochs,
                    losses / order.len() as f32,
                    shown.elapsed().as_secs_f64()
                );
                shown = Instant::now();
            }
        }
        network
    }

    fn batch(
        &self,
        samples: &[&(Vec<f32>, u8)],
        width: usize,
        rng: &mut ChaCha8Rng,
    ) -> (Tensor<2>, Tensor<1, Int>) {
        let mut pixels = Vec::new();
        for (image, _) in samples {
            self.augmentation.apply(image, width, rng, &mut pixels);
        }
        let classes: Vec<i64> = samples.iter().map(|(_, class)| i64::from(*class)).collect();
        let shape = [samples.len(), pixels.len() / samples.len()];
        (
            Tensor::from_data(TensorData::new(pixels, shape), &self.device),
            Tensor::from_data(TensorData::new(classes, [samples.len()]), &self.device),
        )
    }

    fn rate_at(&self, step: usize, steps: usize) -> f64 {
        let done = (step + 1) as f64 / steps as f64;
        let level = if done < WARM_UP {
            done / WARM_UP
        } else {
            let fallen = (done - WARM_UP) / (1.0 - WARM_UP);
            f64::midpoint(1.0, (std::f64::consts::PI * fallen).cos())
        };
        self.rate * level
    }
}
