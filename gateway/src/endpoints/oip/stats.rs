//! Model statistics in the form of Triton's extension: requests of this gateway, by version.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use super::answer;
use super::metadata::{of_version, versions};
use crate::apps::app_state::Totals;
use crate::http::path_params::Path;
use crate::state::{GatewayState, ServedApp};

type Apps = State<Arc<GatewayState>>;

pub(super) async fn all(State(shared): Apps) -> Response<Body> {
    let stats: Vec<Value> = shared.apps().iter().flat_map(|app| of_app(app, None)).collect();
    answer(Ok(json!({"model_stats": stats})))
}

pub(super) async fn model(State(shared): Apps, Path(model): Path<String>) -> Response<Body> {
    answer(
        shared
            .app(&model)
            .map(|app| json!({"model_stats": of_app(&app, None)})),
    )
}

pub(super) async fn version(
    State(shared): Apps,
    Path((model, version)): Path<(String, String)>,
) -> Response<Body> {
    let app = of_version(&shared, &model, &version);
    answer(app.map(|app| json!({"model_stats": of_app(&app, Some(&version))})))
}

/// Counts of one version.
pub(crate) struct Row {
    pub(crate) version: String,
    pub(crate) totals: Totals,
    /// Failures of the app, reported at its first version because a failure has no version.
    pub(crate) failures: u64,
}

/// Returns the counts of an app's versions, or of a single one.
pub(crate) fn rows(app: &ServedApp, only: Option<&str>) -> Vec<Row> {
    let (totals, failures) = app.state.totals();
    let versions = versions(app).into_iter();
    versions
        .enumerate()
        .filter(|(_, version)| only.is_none_or(|only| only == version))
        .map(|(place, version)| {
            let totals = totals.get(&version).copied().unwrap_or_default();
            Row {
                version,
                totals,
                failures: if place == 0 { failures } else { 0 },
            }
        })
        .collect()
}

fn of_app(app: &ServedApp, only: Option<&str>) -> Vec<Value> {
    let duration = |count: u64, micros: u64| json!({"count": count, "ns": micros.saturating_mul(1_000)});
    let none = duration(0, 0);
    let stats = rows(app, only).into_iter().map(|row| {
        let Totals {
            runs,
            wait_us,
            run_us,
            newest_ms,
        } = row.totals;
        json!({
            "name": app.options.name,
            "version": row.version,
            "last_inference": newest_ms,
            "inference_count": runs,
            "execution_count": runs,
            "inference_stats": {
                "success": duration(runs, wait_us.saturating_add(run_us)),
                "fail": duration(row.failures, 0),
                "queue": duration(runs, wait_us),
                "compute_input": none,
                "compute_infer": duration(runs, run_us),
                "compute_output": none,
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [],
        })
    });
    stats.collect()
}
