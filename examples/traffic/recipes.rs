//! The detectors and the classifiers of digits and signs: size of each variant, and how it is trained.

use kaskade_models::architectures::cnn::StageConfig;

/// One variant.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// Its layers.
    pub layers: Layers,
    /// Passes over the training samples.
    pub epochs: usize,
    /// Highest learning rate.
    pub rate: f64,
}

/// Layers between an image and its classes.
#[derive(Debug)]
pub(crate) enum Layers {
    /// A perceptron with these hidden layers.
    Mlp(&'static [usize]),
    /// A convolutional network with these stages.
    Cnn(&'static [StageConfig]),
}

const fn stage(channels: usize, stride: usize, blocks: usize) -> StageConfig {
    StageConfig {
        channels,
        stride,
        blocks,
    }
}

/// What finds objects in the cells of a scene.
pub(crate) const DETECTORS: &[Recipe] = &[
    Recipe {
        name: "find-tiny",
        layers: Layers::Mlp(&[16]),
        epochs: 20,
        rate: 4e-3,
    },
    Recipe {
        name: "find-small",
        layers: Layers::Mlp(&[64]),
        epochs: 20,
        rate: 3e-3,
    },
    Recipe {
        name: "find-medium",
        layers: Layers::Cnn(&[stage(16, 1, 0), stage(32, 2, 0)]),
        epochs: 14,
        rate: 3e-3,
    },
    Recipe {
        name: "find-large",
        layers: Layers::Cnn(&[stage(24, 1, 1), stage(40, 2, 1)]),
        epochs: 9,
        rate: 2e-3,
    },
];

/// What reads digits.
pub(crate) const DIGITS: &[Recipe] = &[
    Recipe {
        name: "digit-tiny",
        layers: Layers::Mlp(&[10]),
        epochs: 30,
        rate: 6e-3,
    },
    Recipe {
        name: "digit-small",
        layers: Layers::Mlp(&[64]),
        epochs: 30,
        rate: 4e-3,
    },
    Recipe {
        name: "digit-medium",
        layers: Layers::Cnn(&[stage(16, 1, 0), stage(32, 2, 0)]),
        epochs: 24,
        rate: 4e-3,
    },
    Recipe {
        name: "digit-large",
        layers: Layers::Cnn(&[stage(32, 1, 1), stage(48, 2, 1)]),
        epochs: 16,
        rate: 3e-3,
    },
];

/// What tells signs apart.
pub(crate) const SIGNS: &[Recipe] = &[
    Recipe {
        name: "sign-tiny",
        layers: Layers::Mlp(&[6]),
        epochs: 30,
        rate: 6e-3,
    },
    Recipe {
        name: "sign-small",
        layers: Layers::Mlp(&[48]),
        epochs: 30,
        rate: 4e-3,
    },
    Recipe {
        name: "sign-large",
        layers: Layers::Cnn(&[stage(32, 1, 1), stage(48, 2, 1)]),
        epochs: 16,
        rate: 3e-3,
    },
];
