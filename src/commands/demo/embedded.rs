//! The digits family and its images, embedded in this program: the demo needs no file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use kaskade::Signature;
use kaskade::models::entities::AggregationStrategy;
use kaskade::models::idx::LabelledImages;
use kaskade_app::config::App;
use kaskade_app::config::data::DataSet;
use kaskade_app::config::family_file::FamilyFile;
use kaskade_app::data::Samples;
use kaskade_app::family::{Family, Source, VariantSpec, cores_of_workers, memory_of_workers};

/// The files of one checkpoint directory of `examples/digits`.
macro_rules! checkpoint {
    ($directory:literal) => {
        (
            $directory,
            Source::Embedded {
                config: include_bytes!(concat!("../../../examples/digits/", $directory, "/config.json")),
                weights: include_bytes!(concat!(
                    "../../../examples/digits/",
                    $directory,
                    "/model.safetensors"
                )),
            },
        )
    };
}

const CHECKPOINTS: [(&str, Source); 4] = [
    checkpoint!("weights/digits-tiny"),
    checkpoint!("weights/digits-small"),
    checkpoint!("weights/digits-medium"),
    checkpoint!("weights/digits-large"),
];

const IMAGES: (&str, &[u8]) = (
    "data/images.idx3-ubyte",
    include_bytes!("../../../examples/digits/data/images.idx3-ubyte"),
);

const LABELS: (&str, &[u8]) = (
    "data/labels.idx1-ubyte",
    include_bytes!("../../../examples/digits/data/labels.idx1-ubyte"),
);

/// Returns the app of `examples/digits/app.toml`.
///
/// # Errors
/// When that file is not a valid app.
pub(crate) fn app() -> anyhow::Result<App> {
    let located =
        |file: &'static str| move |(line, reason)| anyhow::anyhow!("examples/digits/{file}:{line}: {reason}");
    let app = App::parse(include_str!("../../../examples/digits/app.toml")).map_err(located("app.toml"))?;
    let family = FamilyFile::parse(include_str!("../../../examples/digits/family.toml"));
    Ok(app.with_family(family.map_err(located("family.toml"))?))
}

/// Returns the models of the app.
///
/// # Errors
/// When the app names a checkpoint that is not in this program.
pub(crate) fn family(app: &App) -> anyhow::Result<Family> {
    let members = app.variants.iter().map(|variant| {
        let held = CHECKPOINTS
            .iter()
            .find(|(directory, _)| Some(Path::new(directory)) == variant.dir.as_deref());
        let (_, source) =
            held.with_context(|| format!("{} is not embedded in this program", variant.name))?;
        Ok(VariantSpec {
            name: variant.name.to_string(),
            device: app.device_of(variant),
            source: source.clone(),
            task: app.task,
            in_pipeline: app.pipeline.is_some(),
            aggregation_strategy: AggregationStrategy::default(),
            dtype: variant.dtype,
            cores: variant.cores,
            share: app.core_share,
            generation: (&app.generation).into(),
            price: variant.price,
            // All of them have their classes in one order.
            classes: Arc::default(),
        })
    });
    Ok(Family {
        members: members.collect::<anyhow::Result<_>>()?,
        memory: memory_of_workers(app),
        cores: cores_of_workers(app),
        max_batch: app.batching.max_batch.get() as usize,
    })
}

/// Returns a labelled set as inputs of a model.
///
/// # Errors
/// When the app names files that are not in this program, or the set does not fit the model.
pub(crate) fn samples(set: Option<&DataSet>, signature: &Signature) -> anyhow::Result<Samples> {
    let Some(DataSet::Idx(idx)) = set else {
        bail!("the app of the demo names no images");
    };
    if idx.images != Path::new(IMAGES.0) || idx.labels != Path::new(LABELS.0) {
        bail!("{} is not embedded in this program", idx.images.display());
    }
    let images = LabelledImages::parse(IMAGES, LABELS)?;
    Ok(Samples::from_images(&images, idx, signature)?)
}
