//! Paths of other servers, and paths of this one as clients with a wrong address send them: what to send instead.

use crate::http::api::Api;

/// What to do about a path that the gateway does not have.
#[derive(Debug, PartialEq)]
pub(crate) struct Remedy {
    /// The path, and what begins with it and a slash.
    path: &'static str,
    /// The last part of the path, below `path`; any if it is empty, and any that ends with it if it begins with a colon.
    last: &'static str,
    /// The API whose form the error has.
    pub(crate) api: Api,
    /// What to send.
    pub(crate) say: &'static str,
}

const REMEDIES: &[Remedy] = &[
    of(
        "/chat/completions",
        Api::OpenAi,
        "it is `/v1/chat/completions`: end the address of the gateway, `base_url`, with `/v1`",
    ),
    of(
        "/completions",
        Api::OpenAi,
        "it is `/v1/completions`: end the address of the gateway, `base_url`, with `/v1`",
    ),
    of(
        "/embeddings",
        Api::OpenAi,
        "it is `/v1/embeddings`: end the address of the gateway, `base_url`, with `/v1`",
    ),
    of(
        "/responses",
        Api::OpenAi,
        "it is `/v1/responses`: end the address of the gateway, `base_url`, with `/v1`",
    ),
    of(
        "/models",
        Api::OpenAi,
        "it is `/v1/models`: end the address of the gateway, `base_url`, with `/v1`",
    ),
    of(
        "/v1/v1",
        Api::OpenAi,
        "end the address of the gateway, `base_url`, with `/v1` once",
    ),
    of(
        "/v1/messages",
        Api::Anthropic,
        "the API of Anthropic is not served; send a chat of OpenAI's API to `/v1/chat/completions`",
    ),
    of(
        "/api/chat",
        Api::Oip,
        "the API of Ollama is not served; send a chat to `/v1/chat/completions`",
    ),
    of(
        "/api/generate",
        Api::Oip,
        "the API of Ollama is not served; send a completion to `/v1/completions`",
    ),
    of(
        "/api/tags",
        Api::Oip,
        "the API of Ollama is not served; `/v1/models` lists the apps",
    ),
    of(
        "/api/embed",
        Api::Oip,
        "the API of Ollama is not served; send texts to `/v1/embeddings`",
    ),
    of(
        "/api/embeddings",
        Api::Oip,
        "the API of Ollama is not served; send texts to `/v1/embeddings`",
    ),
    of(
        "/api",
        Api::Oip,
        "the API of Ollama is not served; send requests of OpenAI's API to `/v1`",
    ),
    of(
        "/generate",
        Api::Tei,
        "the API of text-generation-inference is not served; send a completion to `/v1/completions`",
    ),
    of(
        "/generate_stream",
        Api::Tei,
        "the API of text-generation-inference is not served; send a completion with `stream` to `/v1/completions`",
    ),
    of(
        "/embed_all",
        Api::Tei,
        "vectors of tokens are not served; send texts to `/embed`",
    ),
    of(
        "/embed_sparse",
        Api::Tei,
        "sparse vectors are not served; send texts to `/embed`",
    ),
    below(
        "/v2/models",
        "generate",
        "send tensors to `/v2/models/{app}/infer`, or a completion to `/v1/completions`",
    ),
    below(
        "/v2/models",
        "generate_stream",
        "send a completion with `stream` to `/v1/completions`",
    ),
    of(
        "/v1/embed",
        Api::OpenAi,
        "the API of Cohere is served for ranking alone; send texts to `/v1/embeddings`",
    ),
    of(
        "/v2/embed",
        Api::OpenAi,
        "the API of Cohere is served for ranking alone; send texts to `/v1/embeddings`",
    ),
    of(
        "/v1/chat",
        Api::OpenAi,
        "the API of Cohere is served for ranking alone; send a chat to `/v1/chat/completions`",
    ),
    of(
        "/v2/chat",
        Api::OpenAi,
        "the API of Cohere is served for ranking alone; send a chat to `/v1/chat/completions`",
    ),
    of(
        "/v1/score",
        Api::OpenAi,
        "send a query and its `documents` to `/v1/rerank`",
    ),
    of(
        "/score",
        Api::OpenAi,
        "send a query and its `documents` to `/v1/rerank`",
    ),
    of("/v1/pooling", Api::OpenAi, "send texts to `/v1/embeddings`"),
    of("/pooling", Api::OpenAi, "send texts to `/v1/embeddings`"),
    of(
        "/v1/classify",
        Api::OpenAi,
        "send texts as `inputs` to `/predict`",
    ),
    of("/classify", Api::OpenAi, "send texts as `inputs` to `/predict`"),
    below(
        "/v1/models",
        ":predict",
        "version 1 of the protocol of KServe and TensorFlow Serving is not served; send tensors to `/v2/models/{app}/infer`",
    ),
    below(
        "/v1/models",
        ":explain",
        "version 1 of KServe's protocol is not served; send tensors to `/v2/models/{app}/infer`",
    ),
    of("/ping", Api::Oip, "the probes are `/live` and `/ready`"),
    of("/version", Api::Oip, "`/v2` has the version"),
    of("/load", Api::Oip, "`/metrics` has the requests in flight"),
    of(
        "/info",
        Api::Tei,
        "`/v1/models` lists the apps, and `/v2/models/{app}` describes one",
    ),
    of(
        "/completion",
        Api::OpenAi,
        "the API of llama.cpp is not served; send a completion to `/v1/completions`",
    ),
    of(
        "/tokenizer_info",
        Api::OpenAi,
        "files of tokenizers are not served; send texts to `/tokenize`, or read the tokenizer from the checkpoint",
    ),
    of(
        "/v2/repository/models",
        Api::Oip,
        "models are loaded as the plan places them; `kaskade plan apply` changes it",
    ),
    of("/v2/systemsharedmemory", Api::Oip, NO_SHARED_MEMORY),
    of("/v2/cudasharedmemory", Api::Oip, NO_SHARED_MEMORY),
    of(
        "/v2/trace",
        Api::Oip,
        "traces are set by `[telemetry]` in the app's file",
    ),
    of("/v2/logging", Api::Oip, "the log is set by `KASKADE_LOG`"),
];

const NO_SHARED_MEMORY: &str = "shared memory is not served; send tensors in the body";

const fn of(path: &'static str, api: Api, say: &'static str) -> Remedy {
    Remedy {
        path,
        last: "",
        api,
        say,
    }
}

const fn below(path: &'static str, last: &'static str, say: &'static str) -> Remedy {
    Remedy {
        path,
        last,
        api: Api::Oip,
        say,
    }
}

/// Returns what to do about a path of another server; `None` for all others. Paths that the gateway has come first.
pub(crate) fn remedy(path: &str) -> Option<&'static Remedy> {
    if path.starts_with("/v1/chat/completions") {
        return None;
    }
    REMEDIES.iter().find(|remedy| {
        let rest = path.strip_prefix(remedy.path);
        rest.is_some_and(|rest| {
            (rest.is_empty() || rest.starts_with('/'))
                && (remedy.last.is_empty()
                    || rest.rsplit('/').next().is_some_and(|last| remedy.is_last(last)))
        })
    })
}

impl Remedy {
    /// Returns whether it is for paths with this last part.
    fn is_last(&self, part: &str) -> bool {
        part == self.last || self.last.starts_with(':') && part.ends_with(self.last)
    }
}

/// Returns a path without empty parts, which addresses with a slash at their end make; `None` if it has none.
pub(crate) fn without_empty_parts(path: &str) -> Option<String> {
    if path.len() < 2 || !(path.contains("//") || path.ends_with('/')) {
        return None;
    }
    let parts = path.split('/').filter(|part| !part.is_empty());
    let joined: String = parts.flat_map(|part| ["/", part]).collect();
    Some(if joined.is_empty() { "/".to_owned() } else { joined })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_servers_say_what_to_send() {
        for (path, api, say) in [
            ("/chat/completions", Api::OpenAi, "`/v1/chat/completions`"),
            ("/models/app", Api::OpenAi, "`/v1/models`"),
            (
                "/v1/messages/count_tokens",
                Api::Anthropic,
                "`/v1/chat/completions`",
            ),
            ("/api/tags", Api::Oip, "`/v1/models`"),
            ("/api/version", Api::Oip, "`/v1`"),
            ("/v2/models/app/generate", Api::Oip, "/infer"),
            (
                "/v2/models/app/versions/1/generate_stream",
                Api::Oip,
                "`/v1/completions`",
            ),
            ("/generate_stream", Api::Tei, "`stream`"),
            ("/v1/score", Api::OpenAi, "`/v1/rerank`"),
            ("/v1/models/digits:predict", Api::Oip, "/infer"),
            ("/v2/repository/models/app/load", Api::Oip, "plan apply"),
            (
                "/v2/systemsharedmemory/region/x/register",
                Api::Oip,
                "in the body",
            ),
            ("/info", Api::Tei, "`/v1/models`"),
        ] {
            let found = remedy(path).unwrap();
            assert_eq!(found.api, api, "{path}");
            assert!(found.say.contains(say), "{path}: {}", found.say);
        }
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v2/models/app/infer",
            "/v2/models/generate/infer",
            "/embed",
            "/v1/messagesx",
            "/v1/models/predict",
            "/v2/repository/index",
            "/information",
            "/v2/rerank",
        ] {
            assert_eq!(remedy(path), None, "{path}");
        }
    }

    #[test]
    fn empty_parts_of_paths_are_left_out() {
        let of = |path: &str| without_empty_parts(path);
        assert_eq!(of("//v1/models").as_deref(), Some("/v1/models"));
        assert_eq!(
            of("/v1//chat/completions/").as_deref(),
            Some("/v1/chat/completions")
        );
        assert_eq!(of("//").as_deref(), Some("/"));
        for path in ["/", "/v1/models", ""] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
