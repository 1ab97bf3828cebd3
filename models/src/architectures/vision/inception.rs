//! `Inception` v3 (Szegedy et al. 2016, section 6) as built by timm and torchvision: modules of parallel branches whose
//! channels are concatenated.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::checkpoint::timm::INCEPTION;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = INCEPTION;
/// Epsilon of the batch norms.
const EPSILON: f64 = 1e-3;

/// Window of a convolution.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    /// Square of this size, centred on each pixel.
    Centred(usize),
    /// Square of 3 pixels inside the image, with this stride.
    Inside(usize),
    /// Rectangle of this height and width, centred on each pixel.
    Line([usize; 2]),
}
use Kernel::{Centred, Inside, Line};

/// A convolution: name, outputs and window.
type Part = (&'static str, usize, Kernel);

/// A branch: convolutions in order, and convolutions of the result whose channels are concatenated, if there are any.
type Branch = (&'static [Part], &'static [Part]);

/// Last branch of a module: pooling of the input.
#[derive(Debug, Clone, Copy)]
enum Pool {
    /// Mean of 3x3 pixels, and a convolution with this number of outputs.
    Mean(usize),
    /// Maximum of 3x3 pixels, with stride 2.
    Largest,
}

const ROW: Kernel = Line([1, 7]);
const COLUMN: Kernel = Line([7, 1]);

/// Branches of the modules 5b to 5d.
const FIRST: &[Branch] = &[
    (&[("branch1x1", 64, Centred(1))], &[]),
    (
        &[("branch5x5_1", 48, Centred(1)), ("branch5x5_2", 64, Centred(5))],
        &[],
    ),
    (
        &[
            ("branch3x3dbl_1", 64, Centred(1)),
            ("branch3x3dbl_2", 96, Centred(3)),
            ("branch3x3dbl_3", 96, Centred(3)),
        ],
        &[],
    ),
];
/// Branches of module 6a.
const SECOND: &[Branch] = &[
    (&[("branch3x3", 384, Inside(2))], &[]),
    (
        &[
            ("branch3x3dbl_1", 64, Centred(1)),
            ("branch3x3dbl_2", 96, Centred(3)),
            ("branch3x3dbl_3", 96, Inside(2)),
        ],
        &[],
    ),
];
/// Branches of module 7a.
const FOURTH: &[Branch] = &[
    (
        &[("branch3x3_1", 192, Centred(1)), ("branch3x3_2", 320, Inside(2))],
        &[],
    ),
    (
        &[
            ("branch7x7x3_1", 192, Centred(1)),
            ("branch7x7x3_2", 192, ROW),
            ("branch7x7x3_3", 192, COLUMN),
            ("branch7x7x3_4", 192, Inside(2)),
        ],
        &[],
    ),
];
/// Branches of the modules 7b and 7c.
const FIFTH: &[Branch] = &[
    (&[("branch1x1", 320, Centred(1))], &[]),
    (
        &[("branch3x3_1", 384, Centred(1))],
        &[
            ("branch3x3_2a", 384, Line([1, 3])),
            ("branch3x3_2b", 384, Line([3, 1])),
        ],
    ),
    (
        &[
            ("branch3x3dbl_1", 448, Centred(1)),
            ("branch3x3dbl_2", 384, Centred(3)),
        ],
        &[
            ("branch3x3dbl_3a", 384, Line([1, 3])),
            ("branch3x3dbl_3b", 384, Line([3, 1])),
        ],
    ),
];

/// Returns the branches of a module from 6b to 6e, whose inner convolutions have `inner` outputs.
macro_rules! third {
    ($inner:literal) => {
        &[
            (&[("branch1x1", 192, Centred(1))], &[]),
            (
                &[
                    ("branch7x7_1", $inner, Centred(1)),
                    ("branch7x7_2", $inner, ROW),
                    ("branch7x7_3", 192, COLUMN),
                ],
                &[],
            ),
            (
                &[
                    ("branch7x7dbl_1", $inner, Centred(1)),
                    ("branch7x7dbl_2", $inner, COLUMN),
                    ("branch7x7dbl_3", $inner, ROW),
                    ("branch7x7dbl_4", $inner, COLUMN),
                    ("branch7x7dbl_5", 192, ROW),
                ],
                &[],
            ),
        ]
    };
}

/// Modules in order.
const MODULES: [(&str, &[Branch], Pool); 11] = [
    ("Mixed_5b", FIRST, Pool::Mean(32)),
    ("Mixed_5c", FIRST, Pool::Mean(64)),
    ("Mixed_5d", FIRST, Pool::Mean(64)),
    ("Mixed_6a", SECOND, Pool::Largest),
    ("Mixed_6b", third!(128), Pool::Mean(192)),
    ("Mixed_6c", third!(160), Pool::Mean(192)),
    ("Mixed_6d", third!(160), Pool::Mean(192)),
    ("Mixed_6e", third!(192), Pool::Mean(192)),
    ("Mixed_7a", FOURTH, Pool::Largest),
    ("Mixed_7b", FIFTH, Pool::Mean(192)),
    ("Mixed_7c", FIFTH, Pool::Mean(192)),
];

pub(in crate::architectures) struct Inception;

impl Family for Inception {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let multiplier = config.optional::<f64>("width_multiplier")?.unwrap_or(1.0);
        if !(multiplier > 0.0 && multiplier <= 16.0) {
            return Err(config.invalid_value("width_multiplier", "it must be above 0 and at most 16"));
        }
        if builder.size().into_iter().any(|side| side < SMALLEST) {
            let reason = format!("images must have at least {SMALLEST} pixels per side");
            return Err(config.invalid_value("image_size", reason));
        }
        let network = Network { multiplier };
        let base = Self::BASE;
        for part in [
            ("Conv2d_1a_3x3", 32, Inside(2)),
            ("Conv2d_2a_3x3", 32, Inside(1)),
            ("Conv2d_2b_3x3", 64, Centred(3)),
        ] {
            network.convolve(builder, base, part)?;
        }
        builder.max_pool(inside(2));
        for part in [
            ("Conv2d_3b_1x1", 80, Centred(1)),
            ("Conv2d_4a_3x3", 192, Inside(1)),
        ] {
            network.convolve(builder, base, part)?;
        }
        builder.max_pool(inside(2));
        for (name, branches, pool) in MODULES {
            network.module(builder, &format!("{base}.{name}"), branches, pool)?;
        }
        builder.mean();
        Ok(())
    }
}

/// Smallest side of an image that every module can read, pixels.
const SMALLEST: usize = 75;

/// Settings of a network.
struct Network {
    /// Factor of the channels.
    multiplier: f64,
}

impl Network {
    /// Adds a module.
    fn module<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        branches: &[Branch],
        pool: Pool,
    ) -> Result<(), LoadError> {
        builder.fork(branches.len() + 1, |builder, index| {
            let Some((parts, ends)) = branches.get(index) else {
                return self.pool(builder, name, pool);
            };
            for part in *parts {
                self.convolve(builder, name, *part)?;
            }
            if ends.is_empty() {
                return Ok(());
            }
            builder.fork(ends.len(), |builder, end| match ends.get(end) {
                Some(part) => self.convolve(builder, name, *part),
                None => Ok(()),
            })
        })
    }

    /// Adds the pooling of a module.
    fn pool<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        pool: Pool,
    ) -> Result<(), LoadError> {
        match pool {
            Pool::Mean(outputs) => {
                builder.pool_mean_padded(Window::centred(3, 1));
                self.convolve(builder, name, ("branch_pool", outputs, Centred(1)))
            }
            Pool::Largest => {
                builder.max_pool(inside(2));
                Ok(())
            }
        }
    }

    /// Adds a convolution with its batch norm and an activation.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        module: &str,
        (name, outputs, kernel): Part,
    ) -> Result<(), LoadError> {
        let name = format!("{module}.{name}");
        let (convolution, norm) = (format!("{name}.conv"), format!("{name}.bn"));
        let norm = BatchNorm {
            name: &norm,
            epsilon: EPSILON,
        };
        let outputs = ((outputs as f64 * self.multiplier) as usize).max(1);
        match kernel {
            Centred(size) => {
                builder.convolve(&convolution, Some(norm), outputs, Window::centred(size, 1))?;
            }
            Inside(stride) => builder.convolve(&convolution, Some(norm), outputs, inside(stride))?,
            Line(sides) => builder.convolve_rectangle(&convolution, norm, outputs, sides)?,
        }
        builder.activate(Activation::Relu);
        Ok(())
    }
}

/// Returns a window of 3x3 pixels inside the image.
fn inside(stride: usize) -> Window {
    Window {
        kernel: 3,
        stride,
        border: [0; 4],
    }
}
