//! Parses `preprocessor_config.json`, the settings of transformers' image processors.

use serde::Deserialize;

use super::Transparency;
use super::resample::Filter;
use crate::checkpoint::{Config, LoadError};

/// Keys of steps that are implemented, or do not affect the result.
const KNOWN_STEPS: [&str; 6] = [
    "do_resize",
    "do_center_crop",
    "do_rescale",
    "do_normalize",
    "do_convert_rgb",
    // Concerns segmentation labels, which a classifier does not have.
    "do_reduce_labels",
];

/// Defaults of an image processor for missing keys.
struct Defaults {
    /// Class name without `ImageProcessor` or `FeatureExtractor`.
    name: &'static str,
    size: Size,
    crop: Option<[usize; 2]>,
    filter: Filter,
    mean: [f64; 3],
    std: [f64; 3],
}

/// Processor with a rescale offset and a second division by the standard deviation.
const EFFICIENTNET: &str = "EfficientNet";
/// Processor that reverses the channel order and does not normalise.
const MOBILE_VIT: &str = "MobileViT";
/// Processor that resizes to more than its size, by `crop_pct`, and then crops.
const POOL_FORMER: &str = "PoolFormer";
/// Processor of timm models, with the steps of torchvision.
const TIMM: &str = "TimmWrapper";
/// Processors that convert to RGB by default.
const CONVERT_RGB: [&str; 4] = ["CLIP", "Siglip", "Bit", "ChineseCLIP"];
/// Key of a step that only `MobileViT` has.
const REVERSE: &str = "do_flip_channel_order";
const STANDARD: [f64; 3] = [0.5; 3];
const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];
const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];

const PROCESSORS: [Defaults; 17] = [
    Defaults {
        name: "ViT",
        size: Size::Exactly([224, 224]),
        crop: None,
        filter: Filter::Bilinear,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "DeiT",
        size: Size::Exactly([256, 256]),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "Siglip",
        size: Size::Exactly([224, 224]),
        crop: None,
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "CLIP",
        size: Size::Shortest(224),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: CLIP_MEAN,
        std: CLIP_STD,
    },
    Defaults {
        name: "Bit",
        size: Size::Shortest(224),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: CLIP_MEAN,
        std: CLIP_STD,
    },
    Defaults {
        name: "ConvNext",
        size: Size::Shortest(384),
        crop: None,
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "Beit",
        size: Size::Exactly([224, 224]),
        crop: None,
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: EFFICIENTNET,
        size: Size::Exactly([346, 346]),
        crop: None,
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "MobileNetV1",
        size: Size::Shortest(256),
        crop: Some([224, 224]),
        filter: Filter::Bilinear,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: "MobileNetV2",
        size: Size::Shortest(256),
        crop: Some([224, 224]),
        filter: Filter::Bilinear,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: MOBILE_VIT,
        size: Size::Shortest(224),
        crop: Some([256, 256]),
        filter: Filter::Bicubic,
        mean: STANDARD,
        std: STANDARD,
    },
    Defaults {
        name: TIMM,
        size: Size::Shortest(256),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
    },
    Defaults {
        name: POOL_FORMER,
        size: Size::Shortest(224),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
    },
    Defaults {
        name: "Segformer",
        size: Size::Exactly([512, 512]),
        crop: None,
        filter: Filter::Bilinear,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
    },
    Defaults {
        name: "Pvt",
        size: Size::Exactly([224, 224]),
        crop: None,
        filter: Filter::Bicubic,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
    },
    Defaults {
        name: "DINOv3ViT",
        size: Size::Exactly([224, 224]),
        crop: None,
        filter: Filter::Bilinear,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
    },
    Defaults {
        name: "ChineseCLIP",
        size: Size::Shortest(224),
        crop: Some([224, 224]),
        filter: Filter::Bicubic,
        mean: CLIP_MEAN,
        std: CLIP_STD,
    },
];

/// Size after resizing; height before width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// This size; the aspect ratio may change.
    Exactly([usize; 2]),
    /// Length of the shorter side; the aspect ratio stays.
    Shortest(usize),
}

/// Steps of an image processor, in order of execution.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) resize: Option<(Size, Filter)>,
    /// Height and width of the centre crop.
    pub(super) crop: Option<[usize; 2]>,
    /// Factor for every byte.
    pub(super) rescale: Option<f64>,
    /// Mean and standard deviation, per channel.
    pub(super) normalise: Option<(Vec<f32>, Vec<f32>)>,
    /// Treatment of transparent images.
    pub(super) transparency: Transparency,
    /// Whether the channel order is reversed.
    pub(super) reversed: bool,
    /// Whether the offset of a crop is rounded half to even (torchvision) instead of down.
    pub(super) rounded: bool,
}

/// A size in any of the forms that transformers has used.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "it must be a number, [height, width], {\"height\": .., \"width\": ..} or {\"shortest_edge\": ..}"
)]
enum Written {
    Side(usize),
    Sides([usize; 2]),
    Dictionary {
        height: Option<usize>,
        width: Option<usize>,
        shortest_edge: Option<usize>,
        longest_edge: Option<usize>,
        max_height: Option<usize>,
        max_width: Option<usize>,
    },
}

/// One value for all channels, or one per channel.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "it must be a number, or a list of one number per channel"
)]
enum PerChannel {
    All(f64),
    Each(Vec<f64>),
}

impl Settings {
    /// Reads the settings for a model with `channels` channels.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for a processor or step that is not implemented, and for invalid values.
    pub(super) fn read(config: &Config, channels: usize) -> Result<Self, LoadError> {
        let defaults = defaults(config)?;
        refuse_unknown_steps(config, defaults)?;
        let does = |key: &str, default: bool| Ok(config.optional::<bool>(key)?.unwrap_or(default));
        let square = matches!(defaults.size, Size::Exactly(_)) && defaults.name != "Siglip";
        let size = size(config, "size", square)?.unwrap_or(defaults.size);
        let mut crop = if does("do_center_crop", defaults.crop.is_some())? {
            match self::size(config, "crop_size", true)? {
                Some(Size::Exactly(sides)) => Some(sides),
                Some(Size::Shortest(_)) => {
                    return Err(config.invalid_value("crop_size", "a crop needs `height` and `width`"));
                }
                None => Some(
                    defaults
                        .crop
                        .or((defaults.name == EFFICIENTNET).then_some([289, 289]))
                        .ok_or_else(|| config.invalid_value("crop_size", "`do_center_crop` needs it"))?,
                ),
            }
        } else {
            None
        };
        let filter = config.optional::<Filter>("resample")?.unwrap_or(defaults.filter);
        let size = if defaults.name == POOL_FORMER {
            poolformer(config, size)?
        } else {
            size
        };
        let mut resize = does("do_resize", true)?.then_some((size, filter));
        if let (true, Some((Size::Shortest(side), filter))) = (defaults.name == "ConvNext", resize) {
            (resize, crop) = convnext(config, side, filter, crop)?;
        }
        let rescale = does("do_rescale", true)?
            .then(|| Ok(config.optional::<f64>("rescale_factor")?.unwrap_or(1.0 / 255.0)))
            .transpose()?;
        let mut normalise = if defaults.name != MOBILE_VIT && does("do_normalize", true)? {
            let mean = per_channel(config, "image_mean", channels, defaults.mean)?;
            let std = per_channel(config, "image_std", channels, defaults.std)?;
            if std.iter().any(|value| *value <= 0.0) {
                return Err(config.invalid_value("image_std", "every value must be above 0"));
            }
            Some((mean, std))
        } else {
            None
        };
        if defaults.name == EFFICIENTNET {
            let std = per_channel(config, "image_std", channels, defaults.std)?;
            let offset = rescale.is_some() && does("rescale_offset", false)?;
            let again = does("include_top", true)?.then_some(std.as_slice());
            normalise = efficientnet(normalise, offset, again);
        }
        let on_white = does("do_convert_rgb", CONVERT_RGB.contains(&defaults.name))?;
        Ok(Self {
            transparency: if on_white {
                Transparency::OnWhite
            } else {
                Transparency::Dropped
            },
            resize,
            crop,
            rescale,
            normalise,
            rounded: defaults.name == TIMM,
            reversed: defaults.name == MOBILE_VIT && does(REVERSE, true)?,
        })
    }

    /// Returns height and width of every preprocessed image, if they do not depend on the image.
    pub(super) fn fixed_size(&self) -> Option<[usize; 2]> {
        match (self.crop, self.resize) {
            (Some(sides), _) | (None, Some((Size::Exactly(sides), _))) => Some(sides),
            _ => None,
        }
    }
}

/// Returns the normalisation of `EfficientNetImageProcessor`: with `offset`, subtracts 1 before; with `again`, divides
/// by it afterwards.
fn efficientnet(
    normalise: Option<(Vec<f32>, Vec<f32>)>,
    offset: bool,
    again: Option<&[f32]>,
) -> Option<(Vec<f32>, Vec<f32>)> {
    if normalise.is_none() && !offset && again.is_none() {
        return None;
    }
    let channels = normalise.as_ref().map(|(mean, _)| mean.len());
    let channels = channels.or(again.map(<[f32]>::len)).unwrap_or(1);
    let (mut mean, mut std) = normalise.unwrap_or((vec![0.0; channels], vec![1.0; channels]));
    if offset {
        for mean in &mut mean {
            *mean += 1.0;
        }
    }
    for (std, again) in std.iter_mut().zip(again.into_iter().flatten()) {
        *std *= again;
    }
    Some((mean, std))
}

/// Returns resize and crop of `ConvNextImageProcessor`: below 384 pixels it crops a larger image, else it resizes
/// without keeping the aspect ratio.
#[expect(clippy::type_complexity, reason = "a pair of two steps")]
fn convnext(
    config: &Config,
    side: usize,
    filter: Filter,
    crop: Option<[usize; 2]>,
) -> Result<(Option<(Size, Filter)>, Option<[usize; 2]>), LoadError> {
    if crop.is_some() {
        return Err(config.invalid_value("do_center_crop", "ConvNextImageProcessor crops by `crop_pct`"));
    }
    if side >= 384 {
        return Ok((Some((Size::Exactly([side, side]), filter)), None));
    }
    let larger = (side as f64 / share(config, 224.0 / 256.0)?) as usize;
    Ok((Some((Size::Shortest(larger), filter)), Some([side, side])))
}

/// Returns the resize of `PoolFormerImageProcessor`, of which the crop keeps the fraction `crop_pct`.
fn poolformer(config: &Config, stated: Size) -> Result<Size, LoadError> {
    let share = share(config, 0.9)?;
    let larger = |side: usize| (side as f64 / share) as usize;
    Ok(match stated {
        Size::Exactly([height, width]) if height != width => Size::Exactly([larger(height), larger(width)]),
        Size::Shortest(side) | Size::Exactly([side, _]) => Size::Shortest(larger(side)),
    })
}

/// Reads the fraction of a resized image that a crop keeps.
fn share(config: &Config, default: f64) -> Result<f64, LoadError> {
    let share = config.optional::<f64>("crop_pct")?.unwrap_or(default);
    if share > 0.0 && share <= 1.0 {
        return Ok(share);
    }
    Err(config.invalid_value("crop_pct", "it must be above 0 and at most 1"))
}

fn defaults(config: &Config) -> Result<&'static Defaults, LoadError> {
    let mut named = None;
    for key in ["image_processor_type", "feature_extractor_type"] {
        if let Some(name) = config.optional::<String>(key)? {
            named.get_or_insert((key, name));
        }
    }
    let (key, name) = named.unwrap_or(("image_processor_type", "ViTImageProcessor".to_owned()));
    let stem = [
        "ImageProcessorFast",
        "ImageProcessorPil",
        "ImageProcessor",
        "FeatureExtractor",
    ]
    .iter()
    .find_map(|ending| name.strip_suffix(ending));
    PROCESSORS
        .iter()
        .find(|processor| Some(processor.name) == stem)
        .ok_or_else(|| {
            let known: Vec<String> = PROCESSORS
                .iter()
                .map(|processor| format!("{}ImageProcessor", processor.name))
                .collect();
            config.invalid_value(
                key,
                format!("the supported image processors are {}", known.join(", ")),
            )
        })
}

/// Rejects steps that are enabled but not implemented: without them the model would get different pixels.
fn refuse_unknown_steps(config: &Config, defaults: &Defaults) -> Result<(), LoadError> {
    let is_known = |key: &str| KNOWN_STEPS.contains(&key) || (key == REVERSE && defaults.name == MOBILE_VIT);
    let unknown = config
        .keys()
        .keys()
        .map(String::as_str)
        .find(|key| key.starts_with("do_") && !is_known(key))
        .map(str::to_owned);
    match unknown {
        Some(key) if config.optional::<bool>(&key)?.unwrap_or(false) => Err(config.invalid_value(
            &key,
            "this step is not supported; prepare the images and send tensors",
        )),
        _ => Ok(()),
    }
}

/// Reads a size. A single number means both sides if `square`, else the shorter side.
fn size(config: &Config, key: &str, square: bool) -> Result<Option<Size>, LoadError> {
    let size = match config.optional::<Written>(key)? {
        None => return Ok(None),
        Some(Written::Side(side)) if square => Size::Exactly([side, side]),
        Some(Written::Side(side)) => Size::Shortest(side),
        Some(Written::Sides(sides)) => Size::Exactly(sides),
        Some(Written::Dictionary {
            height,
            width,
            shortest_edge,
            longest_edge: None,
            max_height: None,
            max_width: None,
        }) => match (height, width, shortest_edge) {
            (Some(height), Some(width), None) => Size::Exactly([height, width]),
            (None, None, Some(side)) => Size::Shortest(side),
            _ => {
                return Err(
                    config.invalid_value(key, "it must have `height` and `width`, or `shortest_edge`")
                );
            }
        },
        Some(Written::Dictionary { .. }) => {
            return Err(config.invalid_value(key, "`height` and `width`, or `shortest_edge`, are supported"));
        }
    };
    let sides = match size {
        Size::Exactly(sides) => sides,
        Size::Shortest(shorter) => [shorter; 2],
    };
    if super::check_size(sides[1], sides[0]).is_err() {
        return Err(config.invalid_value(
            key,
            "every side must be from 1 to 65535, and the pixels at most 33554432",
        ));
    }
    Ok(Some(size))
}

fn per_channel(
    config: &Config,
    key: &str,
    channels: usize,
    default: [f64; 3],
) -> Result<Vec<f32>, LoadError> {
    let values = match config.optional(key)? {
        Some(PerChannel::All(value)) => vec![value; channels],
        Some(PerChannel::Each(values)) => values,
        None if channels == 3 => default.to_vec(),
        None => return Err(config.invalid_value(key, "a model without three channels needs it")),
    };
    if values.len() != channels {
        return Err(config.invalid_value(key, format!("the model has {channels} channels")));
    }
    Ok(values.into_iter().map(|value| value as f32).collect())
}
