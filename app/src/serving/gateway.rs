//! Configures the HTTP gateway of an app from the app's file.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AnswerKind, AppOptions, Gateway, Limits, TlsFiles, TokenizerPath};
use kaskade_models::folder_of_onnx;

use super::{ServingError, size};
use crate::config::gateway::{GatewayConfig, TenantConfig, TlsConfig};
use crate::config::scalar::HumanDuration;
use crate::config::{App, Task};
use crate::family::FamilyClasses;
use crate::ranker;

/// Starts the listener of the app's gateway. It serves no app until [`Gateway::serve`] adds one, with [`options`].
///
/// # Errors
/// [`ServingError::Gateway`] if the address is taken; [`ServingError::Key`] if the key of a tenant cannot be read.
pub fn listen(app: &App, address: SocketAddr) -> Result<Gateway, ServingError> {
    Ok(Gateway::listen(address, limits(app)?)?)
}

/// Returns the problems of the key and certificate files named in the app's file. Only a gateway reads them.
pub fn problems(app: &App) -> Vec<String> {
    let (mut keys, mut problems) = (Vec::new(), Vec::new());
    for (tenant, config) in &app.gateway.keys {
        match key(tenant.as_str(), config) {
            Ok(key) => keys.push(key),
            Err(error) => problems.push(error.to_string()),
        }
    }
    problems.extend(shared_key(app, &keys).map(|error| error.to_string()));
    let tls = app
        .gateway
        .tls
        .as_ref()
        .and_then(|config| files(config).check().err());
    let tls = tls.map(|error| format!("gateway.tls: {error}"));
    problems.extend(tls);
    problems
}

/// Returns an error if two tenants have the same key, so that requests of one would count as those of the other.
fn shared_key(app: &App, keys: &[TenantKey]) -> Option<ServingError> {
    let mut tenants = BTreeMap::new();
    let shared = keys.iter().find_map(|key| {
        let first = tenants.insert(key.key.as_str(), key.tenant.as_str())?;
        Some((first, key.tenant.as_str()))
    });
    let (first, second) = shared?;
    let config = app
        .gateway
        .keys
        .iter()
        .find(|(tenant, _)| tenant.as_str() == second);
    Some(ServingError::Key {
        tenant: second.to_owned(),
        path: config
            .map(|(_, config)| config.key_file.clone())
            .unwrap_or_default(),
        reason: format!("tenant `{first}` has the same key; every tenant needs its own"),
    })
}

fn files(tls: &TlsConfig) -> TlsFiles {
    TlsFiles {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    }
}

/// Returns the limits set in the app's file.
pub(super) fn limits(app: &App) -> Result<Limits, ServingError> {
    let config = &app.gateway;
    let keys = config
        .keys
        .iter()
        .map(|(tenant, config)| key(tenant.as_str(), config));
    let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
    if let Some(error) = shared_key(app, &keys) {
        return Err(error);
    }
    Ok(Limits {
        max_in_flight: size(config.max_in_flight),
        max_body: usize::try_from(config.max_body.bytes()).unwrap_or(usize::MAX),
        max_in_flight_bytes: usize::try_from(config.max_in_flight_bytes.bytes()).unwrap_or(usize::MAX),
        shutdown_delay: config
            .shutdown_delay
            .map(HumanDuration::duration)
            .unwrap_or_default(),
        grace: app.ingress.drain_timeout.duration(),
        tls: config.tls.as_ref().map(files),
        cors: config.cors.clone(),
        keys,
        ..Limits::default()
    })
}

fn key(tenant: &str, config: &TenantConfig) -> Result<TenantKey, ServingError> {
    let refused = |reason: String| ServingError::Key {
        tenant: tenant.to_owned(),
        path: config.key_file.clone(),
        reason,
    };
    let text = std::fs::read_to_string(&config.key_file).map_err(|error| refused(error.to_string()))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(refused("the file is empty".to_owned()));
    }
    Ok(TenantKey {
        tenant: tenant.to_owned(),
        key: key.to_owned(),
        max_in_flight: config.max_in_flight.map(size),
        rate: config.requests_per_s.map(f64::from),
        operator: config.operator,
    })
}

/// Returns the options of the app in a gateway.
pub fn options(app: &App) -> AppOptions {
    let GatewayConfig { streaming, .. } = app.gateway;
    AppOptions::new(app.name.as_str())
        .default_budget(app.ingress.default_budget.duration())
        .max_budget(app.ingress.max_budget.duration())
        .streaming(streaming.into())
        .signature((app.task == Task::Ranking).then(ranker::signature))
        .answers(answers(app))
        .labels(labels(app))
        .tokenizers(tokenizers(app))
        .max_model_len(app.generation.max_model_len.map(size))
}

/// Returns the kind of answers of an app. `None` if it is unknown: variants of other programs may give other answers,
/// the root of a pipeline has its own task, and the answers of an ONNX model are unknown unless the app states its
/// task.
fn answers(app: &App) -> Option<AnswerKind> {
    let is_stated = app.task != Task::default();
    let is_own = app
        .variants
        .iter()
        .all(|variant| variant.dir.is_some() || variant.file.is_some() && is_stated);
    (is_own && app.pipeline.is_none()).then_some(match app.task {
        Task::Generation => AnswerKind::Text,
        Task::Embedding => AnswerKind::Embedding,
        Task::Classification | Task::MultiLabel | Task::TokenClassification => AnswerKind::Classes,
        Task::Reranking | Task::Ranking => AnswerKind::Relevance,
        Task::QuestionAnswering => AnswerKind::Span,
    })
}

/// Returns the tokenizer paths of an app's variants, in the order of the variants.
fn tokenizers(app: &App) -> Vec<TokenizerPath> {
    let paths = app.variants.iter().filter_map(|variant| {
        let beside = || variant.file.as_deref().map(folder_of_onnx);
        Some(TokenizerPath {
            variant: variant.name.as_str().to_owned(),
            path: variant.dir.as_deref().or_else(beside)?.to_owned(),
        })
    });
    paths.collect()
}

/// Returns the class names of an app; empty if no variant states them.
fn labels(app: &App) -> Vec<String> {
    FamilyClasses::from_app(app).names().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(more: &str, source: &str) -> Option<AnswerKind> {
        let text = format!("name = \"a\"\n{more}\n[[variants]]\nname = \"v\"\n{source}\n");
        answers(&App::parse(&text).unwrap())
    }

    /// The gateway refuses requests for other answers, so the kind must be unknown if a pipeline or ONNX model may give
    /// them.
    #[test]
    fn the_kind_of_answers_is_that_of_the_task_if_the_models_are_known() {
        let (dir, onnx) = ("dir = \"v\"", "file = \"v.onnx\"");
        assert_eq!(kind("", dir), Some(AnswerKind::Classes));
        assert_eq!(kind("task = \"embedding\"", dir), Some(AnswerKind::Embedding));
        assert_eq!(kind("task = \"embedding\"", onnx), Some(AnswerKind::Embedding));
        assert_eq!(kind("", onnx), None);
        let pipeline = "[[pipeline.tasks]]\nname = \"detect\"\nvariants = [\"v\"]";
        assert_eq!(kind(pipeline, dir), None);
    }

    /// One tenant silently became the other, with the rights of an operator.
    #[test]
    fn tenants_with_the_same_key_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, key: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, key).unwrap();
            path.display().to_string()
        };
        let app = |blue: &str, operations: &str| {
            let text = format!(
                "name = \"a\"\n[[variants]]\nname = \"v\"\ndir = \"v\"\n[gateway.keys.blue]\nkey_file = {blue:?}\n\
                 [gateway.keys.operations]\nkey_file = {operations:?}\noperator = true\n"
            );
            App::parse(&text).unwrap()
        };
        let (one, same, other) = (file("1", "secret\n"), file("2", "secret"), file("3", "another"));
        let shared = app(&one, &same);
        let said = limits(&shared).unwrap_err().to_string();
        assert!(
            said.contains("`operations`") && said.contains("tenant `blue` has the same key"),
            "{said}"
        );
        assert_eq!(problems(&shared), [said]);
        assert_eq!(limits(&app(&one, &other)).unwrap().keys.len(), 2);
    }
}
