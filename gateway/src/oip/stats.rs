//! Statistics of models, in the form of Triton's extension: requests of this gateway, by version.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Response;
use serde_json::{Value, json};

use super::answer;
use super::metadata::{of_version, versions};
use crate::shared::{Served, Shared};

type Apps = State<Arc<Shared>>;

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

fn of_app(app: &Served, only: Option<&str>) -> Vec<Value> {
    let (totals, failures) = app.watched.totals();
    let last = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let duration = |count: u64, micros: u64| json!({"count": count, "ns": micros.saturating_mul(1_000)});
    let none = duration(0, 0);
    let stats = versions(app)
        .into_iter()
        .filter(|version| only.is_none_or(|only| only == version));
    stats
        .map(|version| {
            let count = totals.get(&version).copied().unwrap_or_default();
            let busy = count.wait_us.saturating_add(count.run_us);
            json!({
                "name": app.options.name,
                "version": version,
                "last_inference": if count.runs > 0 { last as u64 } else { 0 },
                "inference_count": count.runs,
                "execution_count": count.runs,
                "inference_stats": {
                    "success": duration(count.answers, busy),
                    // A failure has no version: it is the app's.
                    "fail": duration(failures, 0),
                    "queue": duration(count.runs, count.wait_us),
                    "compute_input": none,
                    "compute_infer": duration(count.runs, count.run_us),
                    "compute_output": none,
                    "cache_hit": none,
                    "cache_miss": none,
                },
                "batch_stats": [],
            })
        })
        .collect()
}
