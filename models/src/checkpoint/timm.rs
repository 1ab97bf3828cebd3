//! timm checkpoints (Wightman 2019), as published or as saved by transformers (`TimmWrapperForImageClassification`).
//!
//! Their `config.json` has an `architecture`, such as `resnet50`, which determines the dimensions, and the
//! preprocessing in `pretrained_cfg`. This module translates both to the keys of the corresponding transformers class,
//! and renames the tensors likewise; errors use the translated names.

mod beit;
mod blocks;
mod eva;
mod layouts;
mod mixer;
mod mobilevit;
mod plain;
mod regnet;
mod repvgg;
mod resnet;
mod swin;
mod vit;

use serde_json::{Map, Value, json};

use super::{Config, LoadError};

/// Key of the architecture name.
const ARCHITECTURE: &str = "architecture";
/// Key of the preprocessing settings.
const PREPARATION: &str = "pretrained_cfg";
/// `model_type` of checkpoints saved by transformers.
const MODEL_TYPE: &str = "timm_wrapper";
/// Key: a ViT fuses query, key and value into one layer.
pub(crate) const PACKED: &str = "packed_projections";
/// Key: a ViT has a norm before its blocks.
pub(crate) const NORM_FIRST: &str = "norm_first";
/// Key: the blocks of a ViT have layer scales.
pub(crate) const SCALED: &str = "layer_scale";
/// Key: the class token of a ViT has no position embedding.
pub(crate) const BARE_TOKENS: &str = "class_without_position";
/// Key: a `ResNet` is of variant D.
pub(crate) const TWEAKED: &str = "resnet_d";
pub(crate) use blocks::BLOCKS;
pub(crate) use eva::{EVA, INNER_NORM, REFERENCE_GRID};
pub(crate) use mixer::MIXER;
pub(crate) use plain::{DENSENET, INCEPTION, VGG};
pub(crate) use repvgg::REPVGG;
pub(crate) use resnet::RESNET;
/// Prefix that transformers adds to tensor names.
const PREFIX: &str = "timm_model.";
/// Arguments that all architectures ignore, because other keys state them too or they concern training.
const COMMON: [&str; 5] = [
    "num_classes",
    "in_chans",
    "global_pool",
    "drop_rate",
    "drop_path_rate",
];
/// Maximum width, depth and extent in names and `model_args`.
const MAX_SIZE: usize = 1 << 16;

/// `ResNet`: blocks per stage, and whether they are bottlenecks.
const RESNETS: [(&str, [usize; 4], bool); 6] = [
    ("resnet18", [2, 2, 2, 2], false),
    ("resnet26", [2, 2, 2, 2], true),
    ("resnet34", [3, 4, 6, 3], false),
    ("resnet50", [3, 4, 6, 3], true),
    ("resnet101", [3, 4, 23, 3], true),
    ("resnet152", [3, 8, 36, 3], true),
];
/// Like [`RESNETS`], for `ResNet`-D.
const TWEAKED_RESNETS: [(&str, [usize; 4], bool); 7] = [
    ("resnet18d", [2, 2, 2, 2], false),
    ("resnet26d", [2, 2, 2, 2], true),
    ("resnet34d", [3, 4, 6, 3], false),
    ("resnet50d", [3, 4, 6, 3], true),
    ("resnet101d", [3, 4, 23, 3], true),
    ("resnet152d", [3, 8, 36, 3], true),
    ("resnet200d", [3, 24, 36, 3], true),
];
/// `ConvNeXt`: blocks per stage, and channels of the first stage.
const CONVNEXTS: [(&str, [usize; 4], usize); 9] = [
    ("convnext_atto", [2, 2, 6, 2], 40),
    ("convnext_femto", [2, 2, 6, 2], 48),
    ("convnext_pico", [2, 2, 6, 2], 64),
    ("convnext_nano", [2, 2, 8, 2], 80),
    ("convnext_tiny", [3, 3, 9, 3], 96),
    ("convnext_small", [3, 3, 27, 3], 96),
    ("convnext_base", [3, 3, 27, 3], 128),
    ("convnext_large", [3, 3, 27, 3], 192),
    ("convnext_xlarge", [3, 3, 27, 3], 256),
];
/// Like [`CONVNEXTS`], for `ConvNeXt` V2.
const CONVNEXTS_2: [(&str, [usize; 4], usize); 9] = [
    ("convnextv2_atto", [2, 2, 6, 2], 40),
    ("convnextv2_femto", [2, 2, 6, 2], 48),
    ("convnextv2_pico", [2, 2, 6, 2], 64),
    ("convnextv2_nano", [2, 2, 8, 2], 80),
    ("convnextv2_tiny", [3, 3, 9, 3], 96),
    ("convnextv2_small", [3, 3, 27, 3], 96),
    ("convnextv2_base", [3, 3, 27, 3], 128),
    ("convnextv2_large", [3, 3, 27, 3], 192),
    ("convnextv2_huge", [3, 3, 27, 3], 352),
];
/// A parsed architecture name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Named {
    ResNet {
        depths: [usize; 4],
        bottleneck: bool,
        tweaked: bool,
    },
    ConvNext {
        depths: [usize; 4],
        width: usize,
        /// Whether the network is version 2.
        second: bool,
    },
    Vit(vit::Network),
    Blocks(blocks::Network),
    Plain(plain::Network),
    RegNet(regnet::Network),
    /// A variant of `ResNet` that transformers lacks.
    OtherResNet(resnet::Network),
    Swin(swin::Network),
    Beit(beit::Network),
    Eva(eva::Network),
    Mixer(mixer::Network),
    MobileVit(mobilevit::Network),
    RepVgg(repvgg::Network),
}

/// Translates the configuration of a timm model; leaves others unchanged.
///
/// # Errors
/// [`LoadError::BadKey`] for an unsupported architecture or setting.
pub(super) fn translate(config: &mut Config) -> Result<(), LoadError> {
    if !is_timm(config)? {
        return Ok(());
    }
    let named = named(config)?;
    let [channels, height, width] = input_size(config)?;
    let arguments = config.section("model_args", &[])?;
    let channels = arguments.optional_size("in_chans")?.unwrap_or(channels);
    let expected = if matches!(named, Named::Vit(_)) {
        "token"
    } else {
        "avg"
    };
    for place in [&*config, &arguments] {
        if place
            .optional::<String>("global_pool")?
            .is_some_and(|pool| pool != expected)
        {
            return Err(place.invalid_value("global_pool", format!("only {expected} is supported")));
        }
    }
    let known: &[&str] = match named {
        Named::ResNet { .. } => &["layers", "channels"],
        Named::ConvNext { .. } => &["depths", "dims"],
        Named::Vit(_) | Named::Beit(_) | Named::Eva(_) => &[
            "embed_dim",
            "depth",
            "num_heads",
            "mlp_ratio",
            "img_size",
            "patch_size",
        ],
        Named::Blocks(_) | Named::MobileVit(_) | Named::RegNet(_) | Named::RepVgg(_) => &[],
        Named::OtherResNet(_) => resnet::ARGUMENTS,
        Named::Swin(network) => network.arguments(),
        Named::Mixer(_) => mixer::ARGUMENTS,
        Named::Plain(network) => network.arguments(),
    };
    let mut stated = arguments.keys().keys().map(String::as_str);
    if let Some(other) = stated.find(|key| !known.contains(key) && !COMMON.contains(key)) {
        let reason = format!(
            "`{other}` is not supported; {} are",
            [&COMMON, known].concat().join(", ")
        );
        return Err(config.invalid_value("model_args", reason));
    }
    let mut keys = match named {
        Named::Blocks(network) => network.keys(),
        Named::Plain(network) => network.keys(&arguments)?,
        Named::RegNet(network) => network.keys(),
        Named::OtherResNet(network) => network.keys(&arguments)?,
        Named::Swin(network) => network.keys(&arguments, [height, width])?,
        Named::Beit(network) => network.keys(config, &arguments)?,
        Named::Eva(network) => network.keys(config, &arguments)?,
        Named::Mixer(network) => network.keys(),
        Named::MobileVit(network) => network.keys(),
        Named::RepVgg(network) => network.keys(),
        Named::ResNet {
            depths,
            bottleneck,
            tweaked,
        } => resnet(&arguments, &depths, bottleneck, tweaked)?,
        Named::ConvNext {
            depths,
            width,
            second,
        } => json!({
            "model_type": if second { "convnextv2" } else { "convnext" },
            "architectures": [if second { "ConvNextV2ForImageClassification" } else { "ConvNextForImageClassification" }],
            "hidden_sizes": sizes(&arguments, "dims", &[width, 2 * width, 4 * width, 8 * width])?,
            "depths": sizes(&arguments, "depths", &depths)?,
            "patch_size": 4,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "layer_scale_init_value": 1e-6,
        }),
        Named::Vit(network) => network.keys(config, &arguments)?,
    };
    if let (Some(keys), false) = (keys.as_object_mut(), matches!(named, Named::Vit(_))) {
        keys.insert("image_size".into(), json!([height, width]));
    }
    for (key, value) in keys.as_object().into_iter().flatten() {
        config.set(key, value.clone());
    }
    config.set("num_channels", channels.into());
    if matches!(named, Named::Vit(_)) && config.optional("num_classes")? == Some(0_u32) {
        return Ok(());
    }
    name_labels(config)
}

/// Returns the keys of a `ResNet`.
fn resnet(
    arguments: &Config,
    depths: &[usize; 4],
    bottleneck: bool,
    tweaked: bool,
) -> Result<Value, LoadError> {
    let channels = sizes(arguments, "channels", &[64, 128, 256, 512])?;
    let factor = if bottleneck { 4 } else { 1 };
    let widths: Vec<usize> = channels.iter().map(|channels| channels * factor).collect();
    Ok(json!({
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "embedding_size": 64,
        "hidden_sizes": widths,
        "depths": sizes(arguments, "layers", depths)?,
        "layer_type": if bottleneck { "bottleneck" } else { "basic" },
        "hidden_act": "relu",
        TWEAKED: tweaked,
    }))
}

/// Returns whether a configuration belongs to timm.
fn is_timm(config: &Config) -> Result<bool, LoadError> {
    if !config.keys().contains_key(ARCHITECTURE) {
        return Ok(false);
    }
    Ok(match config.optional::<String>("model_type")? {
        Some(model_type) => model_type == MODEL_TYPE,
        None => config.keys().contains_key(PREPARATION),
    })
}

fn named(config: &Config) -> Result<Named, LoadError> {
    let name: String = config.required(ARCHITECTURE)?;
    for (resnets, tweaked) in [(RESNETS.as_slice(), false), (&TWEAKED_RESNETS, true)] {
        if let Some((_, depths, bottleneck)) = resnets.iter().find(|(known, ..)| *known == name) {
            return Ok(Named::ResNet {
                depths: *depths,
                bottleneck: *bottleneck,
                tweaked,
            });
        }
    }
    for (convnexts, second) in [(CONVNEXTS, false), (CONVNEXTS_2, true)] {
        if let Some((_, depths, width)) = convnexts.into_iter().find(|(known, ..)| *known == name) {
            return Ok(Named::ConvNext {
                depths,
                width,
                second,
            });
        }
    }
    let others = [
        plain::of_name(&name).map(Named::Plain),
        regnet::of_name(&name).map(Named::RegNet),
        resnet::of_name(&name).map(Named::OtherResNet),
        swin::of_name(&name).map(Named::Swin),
        beit::of_name(&name).map(Named::Beit),
        eva::of_name(&name).map(Named::Eva),
        mixer::of_name(&name).map(Named::Mixer),
        mobilevit::of_name(&name).map(Named::MobileVit),
        repvgg::of_name(&name).map(Named::RepVgg),
    ];
    if let Some(found) = others.into_iter().flatten().next() {
        return Ok(found);
    }
    if let Some(network) = blocks::of_name(&name) {
        return Ok(Named::Blocks(network));
    }
    vit::of_name(&name).map(Named::Vit).ok_or_else(|| {
        let known = RESNETS.iter().chain(&TWEAKED_RESNETS).map(|(known, ..)| *known);
        let convnexts = CONVNEXTS.iter().chain(&CONVNEXTS_2).map(|(known, ..)| *known);
        let known: Vec<&str> = known.chain(convnexts).collect();
        let reason = format!(
            "of timm's architectures {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, and {} are supported",
            known.join(", "),
            resnet::SUPPORTED,
            vit::SUPPORTED,
            plain::SUPPORTED,
            regnet::SUPPORTED,
            swin::SUPPORTED,
            beit::SUPPORTED,
            eva::SUPPORTED,
            mixer::SUPPORTED,
            mobilevit::SUPPORTED,
            repvgg::SUPPORTED,
            blocks::SUPPORTED
        );
        config.invalid_value(ARCHITECTURE, reason)
    })
}

/// Parses a size in a name, such as the 14 of `patch14`; `None` if it is not from 1 to [`MAX_SIZE`].
fn size_in_name(digits: &str) -> Option<usize> {
    let size = digits.parse().ok();
    size.filter(|size| (1..=MAX_SIZE).contains(size))
}

/// Reads four sizes from `model_args`, each at least 1.
fn sizes(arguments: &Config, key: &str, default: &[usize; 4]) -> Result<Vec<usize>, LoadError> {
    let sizes = arguments
        .optional::<Vec<usize>>(key)?
        .unwrap_or_else(|| default.to_vec());
    if sizes.len() == default.len() && sizes.iter().all(|size| (1..=MAX_SIZE).contains(size)) {
        return Ok(sizes);
    }
    Err(arguments.invalid_value(key, format!("it must have {} sizes", default.len())))
}

/// Returns channels, height and width of the images.
fn input_size(config: &Config) -> Result<[usize; 3], LoadError> {
    let preparation = config.section(PREPARATION, &[])?;
    let size = preparation.optional("input_size")?.unwrap_or([3, 224, 224]);
    if size.iter().all(|extent| (1..=MAX_SIZE).contains(extent)) {
        return Ok(size);
    }
    Err(config.invalid_value(
        PREPARATION,
        format!("`input_size` must have extents from 1 to {MAX_SIZE}"),
    ))
}

/// Number of classes for which transformers assumes `ImageNet` class names.
const IMAGENET: usize = 1000;

/// Returns the class descriptions of `ImageNet`, in class order.
fn imagenet_names() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("timm/imagenet_1k.txt").lines();
    lines.filter(|line| !line.starts_with('#'))
}

/// Sets the class names as transformers does: those of `label_names`; without them, a model of 1,000 classes gets
/// those of `ImageNet`.
fn name_labels(config: &mut Config) -> Result<(), LoadError> {
    if config.optional::<Value>("id2label")?.is_some() {
        return Ok(());
    }
    let mut classes = config.optional::<Vec<String>>("label_names")?;
    if classes.is_none() && config.optional::<usize>("num_classes")? == Some(IMAGENET) {
        classes = Some(imagenet_names().map(str::to_owned).collect());
    }
    if let Some(classes) = classes {
        let named = classes.into_iter().enumerate();
        let named: Map<String, Value> = named
            .map(|(index, name)| (index.to_string(), name.into()))
            .collect();
        config.set("id2label", named.into());
    } else if let Some(count) = config.optional::<u32>("num_classes")? {
        if count == 0 {
            return Err(config.invalid_value("num_classes", "a model without a classifier is not supported"));
        }
        config.set("num_labels", count.into());
    }
    Ok(())
}

/// Returns the preprocessing with the keys of transformers; `None` for other models.
///
/// # Errors
/// [`LoadError::BadKey`] for an unsupported step.
pub(super) fn preprocessor(config: &Config) -> Result<Option<Config>, LoadError> {
    let stated = config.keys().contains_key(PREPARATION);
    if !stated || !config.keys().contains_key(ARCHITECTURE) {
        return Ok(None);
    }
    let preparation = config.section(PREPARATION, &[])?;
    let [_, height, width] = input_size(config)?;
    let share = preparation.optional::<f64>("crop_pct")?.unwrap_or(0.875);
    if !(share > 0.0 && share <= 1.0) {
        return Err(config.invalid_value(PREPARATION, "`crop_pct` must be above 0 and at most 1"));
    }
    let larger = |side: usize| (side as f64 / share) as usize;
    let mode = preparation.optional::<String>("crop_mode")?;
    let size = match mode.as_deref() {
        None | Some("center") if height == width => json!({"shortest_edge": larger(height)}),
        Some("squash") => json!({"height": larger(height), "width": larger(width)}),
        _ => {
            let reason = "the `crop_mode` center of square images, and squash, are supported";
            return Err(config.invalid_value(PREPARATION, reason));
        }
    };
    let filter = preparation.optional::<String>("interpolation")?;
    let filters = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"];
    let filter = filter.as_deref().unwrap_or("bicubic");
    let Some(filter) = filters.iter().position(|known| *known == filter) else {
        let reason = format!("the `interpolation` must be one of {}", filters.join(", "));
        return Err(config.invalid_value(PREPARATION, reason));
    };
    let mut keys = Map::new();
    keys.insert("image_processor_type".into(), "TimmWrapperImageProcessor".into());
    keys.insert("size".into(), size);
    keys.insert("crop_size".into(), json!({"height": height, "width": width}));
    keys.insert("resample".into(), filter.into());
    for (ours, key) in [("image_mean", "mean"), ("image_std", "std")] {
        if let Some(value) = preparation.optional::<Value>(key)? {
            keys.insert(ours.into(), value);
        }
    }
    Ok(Some(Config::of_keys(config.file().to_owned(), keys)))
}

/// Returns the function that maps a timm tensor name to that of transformers; `None` for other models.
pub(super) fn renamed(config: &Config) -> Option<fn(&str) -> String> {
    if !config.keys().contains_key(ARCHITECTURE) {
        return None;
    }
    let model_type = config.keys().get("model_type").and_then(Value::as_str)?;
    match model_type {
        "resnet" if config.keys().get(TWEAKED) == Some(&Value::Bool(true)) => Some(of_tweaked_resnet),
        "resnet" => Some(of_resnet),
        "convnext" => Some(of_convnext),
        "convnextv2" => Some(of_convnext_2),
        "swin" => Some(swin::renamed),
        "swinv2" => Some(swin::renamed_second),
        "beit" => Some(beit::renamed),
        EVA => Some(eva::renamed),
        "mobilevit" => Some(mobilevit::renamed),
        "mobilevitv2" => Some(mobilevit::renamed_second),
        "regnet" if config.keys().get("layer_type").is_some_and(|kind| kind == "x") => Some(regnet::renamed),
        "regnet" => Some(regnet::renamed_squeezing),
        "vit" => Some(vit::renamed),
        _ => None,
    }
}

/// Splits a name without the prefix of transformers into its parts; also returns that name.
fn parts(name: &str) -> (Vec<&str>, &str) {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    (name.split('.').collect(), name)
}

fn of_resnet(name: &str) -> String {
    let (parts, name) = parts(name);
    let embedder = "resnet.embedder.embedder";
    match parts.as_slice() {
        ["conv1", end] => format!("{embedder}.convolution.{end}"),
        ["bn1", end] => format!("{embedder}.normalization.{end}"),
        ["fc", end] => format!("classifier.1.{end}"),
        [stage, block, rest @ ..] => {
            let number =
                |part: &str, prefix| part.strip_prefix(prefix)?.parse::<usize>().ok()?.checked_sub(1);
            let Some(stage) = number(stage, "layer") else {
                return name.to_owned();
            };
            let block = format!("resnet.encoder.stages.{stage}.layers.{block}");
            match rest {
                ["downsample", "0", end] => format!("{block}.shortcut.convolution.{end}"),
                ["downsample", "1", end] => format!("{block}.shortcut.normalization.{end}"),
                [layer, end] => match (number(layer, "conv"), number(layer, "bn")) {
                    (Some(place), _) => format!("{block}.layer.{place}.convolution.{end}"),
                    (_, Some(place)) => format!("{block}.layer.{place}.normalization.{end}"),
                    _ => name.to_owned(),
                },
                _ => name.to_owned(),
            }
        }
        _ => name.to_owned(),
    }
}

fn of_tweaked_resnet(name: &str) -> String {
    let (parts, name) = parts(name);
    let embedder = "resnet.embedder.embedder";
    let part = |layer: &str, norm: bool| {
        if norm {
            format!("{layer}.normalization")
        } else {
            format!("{layer}.convolution")
        }
    };
    match parts.as_slice() {
        ["bn1", end] => format!("{embedder}.2.normalization.{end}"),
        ["conv1", place, end] => match place.parse::<usize>() {
            // Every third layer is an activation.
            Ok(place) => format!(
                "{}.{end}",
                part(&format!("{embedder}.{}", place / 3), place % 3 == 1)
            ),
            Err(_) => name.to_owned(),
        },
        // Average pooling comes first.
        [stage, block, "downsample", "1", end] => of_resnet(&format!("{stage}.{block}.downsample.0.{end}")),
        [stage, block, "downsample", "2", end] => of_resnet(&format!("{stage}.{block}.downsample.1.{end}")),
        _ => of_resnet(name),
    }
}

fn of_convnext(name: &str) -> String {
    named_convnext(name, "convnext")
}

fn of_convnext_2(name: &str) -> String {
    named_convnext(name, "convnextv2")
}

/// Renames a tensor of `ConvNeXt`; `base` is the prefix of the base model in transformers.
fn named_convnext(name: &str, base: &str) -> String {
    let (parts, name) = parts(name);
    match parts.as_slice() {
        ["stem", "0", end] => format!("{base}.embeddings.patch_embeddings.{end}"),
        ["stem", "1", end] => format!("{base}.embeddings.layernorm.{end}"),
        ["head", "norm", end] => format!("{base}.layernorm.{end}"),
        ["head", "fc", end] => format!("classifier.{end}"),
        ["stages", stage, "downsample", place, end] => {
            format!("{base}.encoder.stages.{stage}.downsampling_layer.{place}.{end}")
        }
        ["stages", stage, "blocks", block, rest @ ..] => {
            let block = format!("{base}.encoder.stages.{stage}.layers.{block}");
            match rest {
                ["gamma"] => format!("{block}.layer_scale_parameter"),
                ["conv_dw", end] => format!("{block}.dwconv.{end}"),
                ["norm", end] => format!("{block}.layernorm.{end}"),
                ["mlp", "fc1", end] => format!("{block}.pwconv1.{end}"),
                ["mlp", "fc2", end] => format!("{block}.pwconv2.{end}"),
                ["mlp", "grn", end] => format!("{block}.grn.{end}"),
                _ => name.to_owned(),
            }
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
