//! The families: size of each variant, and how it is trained.

use clap::ValueEnum;
use kaskade_models::architectures::cnn::StageConfig;

use crate::augment::Augmentation;

/// A family, tiny to largest.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Family {
    /// For the 8x8 digits of `examples/digits/data`.
    Digits,
    /// What is between and below those, for a cascade of eight.
    Eight,
    /// For images of 28x28.
    Mnist,
}

/// One variant.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// Its layers.
    pub layers: Layers,
    /// Passes over the training images.
    pub epochs: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// How far its images are changed, as a share of the family's limits: a small network has room for few variations.
    pub augment: f32,
}

/// Layers between the image and its classes.
#[derive(Debug)]
pub(crate) enum Layers {
    /// A perceptron with these hidden layers.
    Mlp(&'static [usize]),
    /// A convolutional network with these stages.
    Cnn(&'static [StageConfig]),
}

impl Family {
    /// Its variants, smallest to largest.
    pub(crate) fn recipes(self) -> &'static [Recipe] {
        match self {
            Self::Digits => DIGITS,
            Self::Eight => EIGHT,
            Self::Mnist => MNIST,
        }
    }

    /// How far its images may be changed.
    pub(crate) fn augmentation(self) -> Augmentation {
        match self {
            Self::Digits | Self::Eight => Augmentation {
                shift: 0.8,
                turn: 12.0,
                scale: 0.12,
                slant: 0.15,
                noise: 0.08,
            },
            Self::Mnist => Augmentation {
                shift: 2.0,
                turn: 12.0,
                scale: 0.12,
                slant: 0.15,
                noise: 0.05,
            },
        }
    }
}

const fn stage(channels: usize, stride: usize, blocks: usize) -> StageConfig {
    StageConfig {
        channels,
        stride,
        blocks,
    }
}

const DIGITS: &[Recipe] = &[
    Recipe {
        name: "digits-tiny",
        layers: Layers::Mlp(&[8]),
        epochs: 200,
        rate: 1e-2,
        augment: 0.3,
    },
    Recipe {
        name: "digits-small",
        layers: Layers::Mlp(&[128]),
        epochs: 200,
        rate: 4e-3,
        augment: 0.6,
    },
    Recipe {
        name: "digits-medium",
        layers: Layers::Cnn(&[stage(24, 1, 0), stage(48, 2, 0)]),
        epochs: 120,
        rate: 4e-3,
        augment: 1.0,
    },
    Recipe {
        name: "digits-large",
        layers: Layers::Cnn(&[stage(96, 1, 5)]),
        epochs: 40,
        rate: 1e-3,
        augment: 1.0,
    },
];

/// With the four above, from 0.3 to 900 thousand weights, each step up two to four times as many.
const EIGHT: &[Recipe] = &[
    Recipe {
        name: "eight-nano",
        layers: Layers::Mlp(&[4]),
        epochs: 200,
        rate: 1e-2,
        augment: 0.1,
    },
    Recipe {
        name: "eight-mini",
        layers: Layers::Mlp(&[32]),
        epochs: 200,
        rate: 6e-3,
        augment: 0.5,
    },
    Recipe {
        name: "eight-broad",
        layers: Layers::Cnn(&[stage(32, 1, 1), stage(64, 2, 0)]),
        epochs: 80,
        rate: 3e-3,
        augment: 1.0,
    },
    Recipe {
        name: "eight-deep",
        layers: Layers::Cnn(&[stage(56, 1, 3)]),
        epochs: 50,
        rate: 2e-3,
        augment: 1.0,
    },
];

const MNIST: &[Recipe] = &[
    Recipe {
        name: "mnist-tiny",
        layers: Layers::Mlp(&[16]),
        epochs: 30,
        rate: 5e-3,
        augment: 0.1,
    },
    Recipe {
        name: "mnist-small",
        layers: Layers::Mlp(&[256]),
        epochs: 30,
        rate: 2e-3,
        augment: 0.5,
    },
    Recipe {
        name: "mnist-medium",
        layers: Layers::Cnn(&[stage(16, 2, 0), stage(32, 2, 0)]),
        epochs: 30,
        rate: 4e-3,
        augment: 0.7,
    },
    Recipe {
        name: "mnist-large",
        layers: Layers::Cnn(&[stage(32, 2, 1), stage(64, 2, 1)]),
        epochs: 15,
        rate: 2e-3,
        augment: 1.0,
    },
    Recipe {
        name: "mnist-largest",
        layers: Layers::Cnn(&[stage(64, 2, 2), stage(128, 2, 3)]),
        epochs: 8,
        rate: 1e-3,
        augment: 1.0,
    },
];
