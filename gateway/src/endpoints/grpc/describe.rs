//! Readiness, metadata, configuration, statistics and the list of models, as messages.

use std::sync::Arc;

use kaskade_models::Datatype;
use kaskade_oip::proto::model_metadata_response::TensorMetadata;
use kaskade_oip::proto::repository_index_response::ModelIndex;
use kaskade_oip::proto::{
    DataType, InferStatistics, ModelConfig, ModelConfigResponse, ModelInput, ModelMetadataResponse,
    ModelOutput, ModelStatistics, ModelStatisticsResponse, ModelTransactionPolicy, RepositoryIndexResponse,
    StatisticDuration,
};

use crate::apps::observed_signature::TensorInfo;
use crate::endpoints::health::{app_not_ready, variant_not_ready};
use crate::endpoints::oip::metadata::{index_state, of_version, tensors, versions};
use crate::endpoints::oip::stats::{Row, rows};
use crate::http::failure::Failure;
use crate::state::{GatewayState, ServedApp};

/// Returns the app of that name, if it has the version.
fn app(shared: &GatewayState, name: &str, version: Option<&str>) -> Result<Arc<ServedApp>, Failure> {
    match version {
        Some(version) => of_version(shared, name, version),
        None => shared.app(name),
    }
}

/// Returns why an app, or one version of it, is not ready; `None` if it is.
pub(super) fn not_ready(
    shared: &GatewayState,
    name: &str,
    version: Option<&str>,
) -> Result<Option<String>, Failure> {
    let app = app(shared, name, version)?;
    Ok(match version {
        Some(version) => variant_not_ready(&app, version),
        None => app_not_ready(shared, &app),
    })
}

pub(super) async fn metadata(
    shared: &GatewayState,
    name: &str,
    version: Option<&str>,
) -> Result<ModelMetadataResponse, Failure> {
    let app = app(shared, name, version)?;
    let (inputs, outputs) = tensors(&app).await;
    let list = |tensors: Vec<TensorInfo>| -> Vec<TensorMetadata> {
        let tensors = tensors.into_iter();
        tensors
            .map(|tensor| TensorMetadata {
                name: tensor.name,
                datatype: tensor.datatype.name().to_owned(),
                shape: tensor.shape,
            })
            .collect()
    };
    Ok(ModelMetadataResponse {
        name: name.to_owned(),
        versions: version.map_or_else(|| versions(&app), |version| vec![version.to_owned()]),
        platform: "kaskade".to_owned(),
        inputs: list(inputs),
        outputs: list(outputs),
    })
}

/// Returns the configuration as Triton's clients read it. Requests have no batch dimension: the app batches by itself.
pub(super) async fn config(
    shared: &GatewayState,
    name: &str,
    version: Option<&str>,
) -> Result<ModelConfigResponse, Failure> {
    let app = app(shared, name, version)?;
    let (inputs, outputs) = tensors(&app).await;
    let input = inputs.into_iter().map(|tensor| ModelInput {
        name: tensor.name,
        data_type: data_type(tensor.datatype).into(),
        dims: tensor.shape,
    });
    let output = outputs.into_iter().map(|tensor| ModelOutput {
        name: tensor.name,
        data_type: data_type(tensor.datatype).into(),
        dims: tensor.shape,
    });
    let config = ModelConfig {
        name: name.to_owned(),
        platform: "kaskade".to_owned(),
        backend: "kaskade".to_owned(),
        max_batch_size: 0,
        input: input.collect(),
        output: output.collect(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: false }),
    };
    Ok(ModelConfigResponse { config: Some(config) })
}

const fn data_type(datatype: Datatype) -> DataType {
    match datatype {
        Datatype::Bool => DataType::TypeBool,
        Datatype::U8 => DataType::TypeUint8,
        Datatype::U16 => DataType::TypeUint16,
        Datatype::U32 => DataType::TypeUint32,
        Datatype::U64 => DataType::TypeUint64,
        Datatype::I8 => DataType::TypeInt8,
        Datatype::I16 => DataType::TypeInt16,
        Datatype::I32 => DataType::TypeInt32,
        Datatype::I64 => DataType::TypeInt64,
        Datatype::F16 => DataType::TypeFp16,
        Datatype::Bf16 => DataType::TypeBf16,
        Datatype::F32 => DataType::TypeFp32,
        Datatype::F64 => DataType::TypeFp64,
        Datatype::Bytes => DataType::TypeString,
    }
}

/// Returns the statistics of an app, or of all without a name.
pub(super) fn statistics(
    shared: &GatewayState,
    name: Option<&str>,
    version: Option<&str>,
) -> Result<ModelStatisticsResponse, Failure> {
    let apps = match name {
        Some(name) => vec![app(shared, name, version)?],
        None => shared.apps(),
    };
    let stats = apps.iter().flat_map(|app| {
        let rows = rows(app, version).into_iter();
        rows.map(|row| statistic(&app.options.name, row))
            .collect::<Vec<_>>()
    });
    Ok(ModelStatisticsResponse {
        model_stats: stats.collect(),
    })
}

fn statistic(name: &str, row: Row) -> ModelStatistics {
    let duration = |count: u64, micros: u64| {
        Some(StatisticDuration {
            count,
            ns: micros.saturating_mul(1_000),
        })
    };
    let totals = row.totals;
    ModelStatistics {
        name: name.to_owned(),
        version: row.version,
        last_inference: totals.newest_ms,
        inference_count: totals.runs,
        execution_count: totals.runs,
        inference_stats: Some(InferStatistics {
            success: duration(totals.runs, totals.wait_us.saturating_add(totals.run_us)),
            fail: duration(row.failures, 0),
            queue: duration(totals.runs, totals.wait_us),
            compute_input: duration(0, 0),
            compute_infer: duration(totals.runs, totals.run_us),
            compute_output: duration(0, 0),
            cache_hit: duration(0, 0),
            cache_miss: duration(0, 0),
        }),
    }
}

/// Returns all apps with their versions, or those that are ready.
pub(super) fn index(shared: &GatewayState, ready: bool) -> RepositoryIndexResponse {
    let mut models = Vec::new();
    for app in shared.apps() {
        for version in versions(&app) {
            let reason = variant_not_ready(&app, &version);
            if ready && reason.is_some() {
                continue;
            }
            models.push(ModelIndex {
                name: app.options.name.clone(),
                version,
                state: index_state(reason.as_ref()).to_owned(),
                reason: reason.unwrap_or_default(),
            });
        }
    }
    RepositoryIndexResponse { models }
}
