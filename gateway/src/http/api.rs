//! The APIs of the gateway, by request path.

use kaskade_oip::{SERVICE, health};

use crate::http::other_paths;

/// Paths of text-embeddings-inference and of Hugging Face's Inference API.
const TEI_PATHS: [&str; 6] = ["/", "/predict", "/rerank", "/embed", "/similarity", "/decode"];

/// Paths of vLLM besides those of OpenAI. `/tokenize` also serves text-embeddings-inference, with a different body.
const VLLM_PATHS: [&str; 2] = ["/tokenize", "/detokenize"];

/// An API, which determines the form of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// `{"error": text}`.
    Oip,
    /// `{"error": {message, type, param, code}}`.
    OpenAi,
    /// `{"error": text, "error_type": text}`.
    Tei,
    /// `{"type": "error", "error": {type, message}}`: used only to refuse paths of the Anthropic API.
    Anthropic,
    /// A gRPC status, in headers.
    Grpc,
}

impl Api {
    /// Returns the API of a path.
    pub(crate) fn from_path(path: &str) -> Self {
        if let Some(remedy) = other_paths::remedy(path) {
            remedy.api
        } else if path.starts_with("/v1/") || path == "/v2/rerank" || VLLM_PATHS.contains(&path) {
            Self::OpenAi
        } else if TEI_PATHS.contains(&path) {
            Self::Tei
        } else if is_method(path) {
            Self::Grpc
        } else {
            Self::Oip
        }
    }
}

/// Returns whether a path is a gRPC method of one of the services.
fn is_method(path: &str) -> bool {
    method(path).is_some() || is_grpc_health(path)
}

fn is_grpc_health(path: &str) -> bool {
    let rest = path
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(health::SERVICE));
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Returns whether a path is a gRPC method that needs neither a key nor a permit.
pub(crate) fn is_grpc_probe(path: &str) -> bool {
    matches!(method(path), Some("ServerLive" | "ServerReady")) || is_grpc_health(path)
}

/// Returns whether a path is a gRPC method with a request stream.
pub(crate) fn is_grpc_stream(path: &str) -> bool {
    method(path) == Some("ModelStreamInfer")
}

fn method(path: &str) -> Option<&str> {
    path.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_belongs_to_an_api() {
        assert_eq!(Api::from_path("/v2/models/a/infer"), Api::Oip);
        assert_eq!(Api::from_path("/v1/chat/completions"), Api::OpenAi);
        for path in TEI_PATHS {
            assert_eq!(Api::from_path(path), Api::Tei, "{path}");
        }
        assert_eq!(Api::from_path("/v2/rerank"), Api::OpenAi);
        assert_eq!(Api::from_path("/tokenize"), Api::OpenAi);
        assert_eq!(
            Api::from_path("/inference.GRPCInferenceService/ModelInfer"),
            Api::Grpc
        );
    }

    #[test]
    fn methods_are_told_from_other_paths() {
        assert!(is_method("/inference.GRPCInferenceService/ModelInfer"));
        assert!(!is_method("/inference.GRPCInferenceServices/ModelInfer"));
        assert!(!is_method("/v2/models/app/infer"));
        assert!(is_grpc_probe("/inference.GRPCInferenceService/ServerReady"));
        assert!(is_grpc_probe("/grpc.health.v1.Health/Check"));
        assert!(!is_grpc_probe("/grpc.health.v1.Healthy/Check"));
        assert!(!is_grpc_probe("/inference.GRPCInferenceService/ModelReady"));
    }
}
