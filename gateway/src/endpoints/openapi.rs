//! `/openapi.json`: the REST interface as a document of `OpenAPI` 3.1. Requests are described as far as the gateway reads them;
//! further fields are ignored.

use axum::Router;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::endpoints::oip::json_response;
use crate::http::json_body::set_field;

/// Returns the route.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/openapi.json", get(serve))
}

async fn serve() -> Response<Body> {
    json_response(StatusCode::OK, document().to_string())
}

/// Returns the document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for (path, item) in probes()
        .into_iter()
        .chain(oip())
        .chain(openai())
        .chain(tei())
        .chain(tokens())
    {
        paths.insert(path.to_owned(), item);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Kaskade",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Open Inference Protocol v2, OpenAI's API, and the endpoints of text-embeddings-inference. An app is a model.",
        },
        "paths": paths,
        "components": {"schemas": merged([schemas(), rerank_schemas(), feedback_schemas(), token_schemas()]), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    })
}

/// Statuses of errors that every path of requests to an app may answer with.
const ERRORS: [(&str, &str); 15] = [
    (
        "400",
        "The request is malformed, or asks for what is not supported.",
    ),
    ("401", "The key is missing or not known."),
    ("403", "The user of the service may not send this request."),
    (
        "404",
        "The gateway serves no such app, or the app no such version.",
    ),
    ("408", "The body stopped arriving."),
    ("413", "The body, a request or a reply is too large."),
    ("415", "The body has a coding that cannot be read."),
    ("422", "An input is not what the model takes."),
    ("429", "A limit is reached; retry after `retry-after-ms`."),
    ("499", "The request was cancelled."),
    ("500", "The service failed."),
    ("501", "The app cannot do that."),
    ("502", "A model failed, or its answer cannot be used."),
    ("503", "Nothing can answer now; retry after `retry-after-ms`."),
    ("504", "The budget ended."),
];

fn content(kind: &str, schema: &Value) -> Value {
    json!({"description": "The answer.", "content": {kind: {"schema": schema}}})
}

fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An operation with its errors in the form of its API.
fn operation(summary: &str, body: Option<Value>, answers: &[(&str, Value)], error: &str) -> Value {
    let mut responses = Map::new();
    for (status, text) in ERRORS {
        let answer = json!({"description": text, "content": {"application/json": {"schema": named(error)}}});
        responses.insert(status.to_owned(), answer);
    }
    for (status, answer) in answers {
        responses.insert((*status).to_owned(), answer.clone());
    }
    let mut operation = json!({"summary": summary, "security": [{}, {"key": []}], "responses": responses});
    if let Some(schema) = body {
        set_field(
            &mut operation,
            "requestBody",
            json!({"required": true, "content": {"application/json": {"schema": schema}}}),
        );
    }
    operation
}

fn parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
}

fn probes() -> Vec<(&'static str, Value)> {
    let text = |summary: &str| {
        json!({"get": {"summary": summary, "responses": {
            "200": content("text/plain", &json!({"type": "string"})),
            "503": content("text/plain", &json!({"type": "string"})),
        }}})
    };
    vec![
        ("/live", text("Whether the process runs.")),
        ("/ready", text("Whether the process can answer requests.")),
        ("/health", text("As `/ready`.")),
        ("/metrics", text("Metrics in Prometheus' text format.")),
    ]
}

fn oip() -> Vec<(&'static str, Value)> {
    let object = json!({"type": "object"});
    let get = |summary: &str, schema: &Value| {
        operation(
            summary,
            None,
            &[("200", content("application/json", schema))],
            "OipError",
        )
    };
    let state = json!({"type": "object", "properties": {"live": {"type": "boolean"}, "ready": {"type": "boolean"},
            "error": {"type": "string"}, "notes": {"type": "array", "items": {"type": "string"}}}});
    let unready = content("application/json", &state);
    let health = |summary: &str| {
        let fine = content("application/json", &state);
        json!({"get": {"summary": summary, "responses": {"200": fine, "503": unready.clone()}}})
    };
    let (can, cannot) = (
        content("application/json", &object),
        content("application/json", &object),
    );
    let ready = operation(
        "Whether a model can answer.",
        None,
        &[("200", can), ("503", cannot)],
        "OipError",
    );
    let tensors =
        json!({"application/json": {"schema": named("InferAnswer")}, "application/octet-stream": {}});
    let inferred =
        json!({"description": "The answer; with binary tensors the JSON comes first.", "content": tensors});
    let infer = operation(
        "Inference.",
        Some(named("InferRequest")),
        &[("200", inferred)],
        "OipError",
    );
    let index = json!({"type": "array", "items": {"type": "object"}});
    let below = |suffix: &'static str, method: &'static str, operation: &Value| {
        let model: &'static str = match suffix {
            "" => "/v2/models/{model}",
            "/ready" => "/v2/models/{model}/ready",
            "/config" => "/v2/models/{model}/config",
            "/stats" => "/v2/models/{model}/stats",
            _ => "/v2/models/{model}/infer",
        };
        (
            model,
            json!({"parameters": [parameter("model")], method: operation}),
        )
    };
    let mut paths = vec![
        ("/v2", json!({"get": get("The server.", &named("Server"))})),
        ("/v2/health/live", health("Whether the process runs.")),
        (
            "/v2/health/ready",
            health("Whether the process can answer requests."),
        ),
        (
            "/v2/models/stats",
            json!({"get": get("Statistics of all models.", &object)}),
        ),
        (
            "/v2/repository/index",
            json!({"get": get("All models.", &index), "post": get("All models.", &index)}),
        ),
        below("", "get", &get("A model.", &named("Model"))),
        below("/ready", "get", &ready),
        below("/config", "get", &get("Its configuration.", &object)),
        below("/stats", "get", &get("Its statistics.", &object)),
        below("/infer", "post", &infer),
    ];
    let versions = json!([parameter("model"), parameter("version")]);
    paths.push((
        "/v2/models/{model}/versions/{version}",
        json!({"parameters": versions, "get": get("A version.", &named("Model"))}),
    ));
    paths.push((
        "/v2/models/{model}/versions/{version}/infer",
        json!({"parameters": versions, "post": infer}),
    ));
    paths
}

fn openai() -> Vec<(&'static str, Value)> {
    let answer = |schema: &str| {
        json!({"description": "The answer; events if `stream` is true.", "content": {
            "application/json": {"schema": named(schema)},
            "text/event-stream": {},
        }})
    };
    let post = |summary: &str, body: &str, schema: &str| json!({"post": operation(summary, Some(named(body)), &[("200", answer(schema))], "OpenAiError")});
    let get = |summary: &str, schema: &str| {
        operation(
            summary,
            None,
            &[("200", content("application/json", &named(schema)))],
            "OpenAiError",
        )
    };
    vec![
        ("/v1/models", json!({"get": get("The apps.", "List")})),
        (
            "/v1/models/{model}",
            json!({"parameters": [parameter("model")], "get": get("An app.", "ModelCard")}),
        ),
        (
            "/v1/chat/completions",
            post("An answer to messages.", "Chat", "Completion"),
        ),
        (
            "/v1/completions",
            post("Continues a prompt.", "CompletionRequest", "Completion"),
        ),
        (
            "/v1/responses",
            post("A response to messages.", "ResponseRequest", "Resource"),
        ),
        ("/v1/embeddings", post("Embeds texts.", "Embeddings", "List")),
        (
            "/v1/rerank",
            post("Ranks documents for a query.", "RerankDocuments", "Ranking"),
        ),
        (
            "/v1/feedback",
            json!({"post": operation(
                "Tells the right answer to a request that was answered before.",
                Some(named("Feedback")),
                &[("200", content("application/json", &named("FeedbackAnswer")))],
                "OpenAiError",
            )}),
        ),
    ]
}

fn tei() -> Vec<(&'static str, Value)> {
    let array = json!({"type": "array"});
    let post = |summary: &str, body: &str| {
        let fine = content("application/json", &array);
        json!({"post": operation(summary, Some(named(body)), &[("200", fine)], "TeiError")})
    };
    vec![
        (
            "/predict",
            post("Classifies texts, or finds their entities.", "Predict"),
        ),
        ("/rerank", post("Ranks texts for a query.", "Rerank")),
        ("/embed", post("Embeds texts.", "Embed")),
        ("/similarity", post("Compares a text with others.", "Similarity")),
    ]
}

/// The paths of tokens: those of vLLM, of which the first also takes the body of text-embeddings-inference, and one of the latter.
fn tokens() -> Vec<(&'static str, Value)> {
    let post = |summary: &str, body: &Value, answer: &Value, error: &str| {
        let fine = content("application/json", answer);
        json!({"post": operation(summary, Some(body.clone()), &[("200", fine)], error)})
    };
    let either = |names: &[&str]| {
        let all: Vec<Value> = names.iter().copied().map(named).collect();
        json!({"anyOf": all})
    };
    vec![
        (
            "/tokenize",
            post(
                "The tokens of a prompt or of messages (vLLM), or of texts (text-embeddings-inference).",
                &either(&["TokenizePrompt", "TokenizeChat", "TokenizeTexts"]),
                &either(&["Tokens", "TextTokens"]),
                "TokenizeError",
            ),
        ),
        (
            "/detokenize",
            post(
                "The text of tokens.",
                &named("Detokenize"),
                &named("DetokenizedText"),
                "OpenAiError",
            ),
        ),
        (
            "/decode",
            post(
                "The texts of tokens.",
                &named("Decode"),
                &json!({"type": "array", "items": {"type": "string"}}),
                "TeiError",
            ),
        ),
    ]
}

/// The schemas of tokens.
fn token_schemas() -> Value {
    let (text, flag) = (json!({"type": "string"}), json!({"type": ["boolean", "null"]}));
    let name = json!({"type": ["string", "null"]});
    let id = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let ids = json!({"type": "array", "items": id});
    let place = json!({"type": ["integer", "null"]});
    json!({
        "TokenizePrompt": object(&["prompt"], json!({
            "model": name, "prompt": text, "add_special_tokens": flag, "return_token_strings": flag,
        })),
        "TokenizeChat": object(&["messages"], json!({
            "model": name, "messages": {"type": "array", "minItems": 1, "items": object(&["role"], json!({"role": text}))},
            "add_generation_prompt": flag, "add_special_tokens": flag, "return_token_strings": flag,
        })),
        "TokenizeTexts": object(&["inputs"], json!({
            "inputs": {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 2048}]},
            "add_special_tokens": flag, "prompt_name": name,
        })),
        "Tokens": object(&["count", "max_model_len", "tokens", "token_strings"], json!({
            "count": {"type": "integer"}, "max_model_len": place, "tokens": ids,
            "token_strings": {"type": ["array", "null"], "items": text},
        })),
        "TextTokens": {"type": "array", "items": {"type": "array", "items": object(&["id", "text", "special", "start", "stop"], json!({
            "id": id, "text": text, "special": {"type": "boolean"}, "start": place, "stop": place,
        }))}},
        "Detokenize": object(&["tokens"], json!({"model": name, "tokens": ids})),
        "DetokenizedText": object(&["prompt"], json!({"prompt": text})),
        "Decode": object(&["ids"], json!({
            "ids": {"anyOf": [ids, {"type": "array", "items": ids, "minItems": 1, "maxItems": 2048}]}, "skip_special_tokens": flag,
        })),
    })
}

/// Returns one object of the fields of several.
fn merged<const N: usize>(objects: [Value; N]) -> Value {
    let fields = objects.into_iter().filter_map(|object| match object {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Value::Object(fields.flatten().collect())
}

/// The schemas of a rerank in the form of Cohere and Jina.
fn rerank_schemas() -> Value {
    let text = json!({"type": "string"});
    json!({
        "RerankDocuments": object(&["query", "documents"], json!({
            "model": {"type": ["string", "null"]}, "query": text,
            "documents": {"type": "array", "items": text, "minItems": 1, "maxItems": 2048},
            "top_n": {"type": ["integer", "null"], "minimum": 0}, "return_documents": {"type": ["boolean", "null"]},
        })),
        "Ranking": object(&["id", "model", "results", "usage"], json!({
            "id": text, "model": text, "usage": {"type": "object"},
            "results": {"type": "array", "items": object(&["index", "relevance_score"], json!({
                "index": {"type": "integer"}, "relevance_score": {"type": "number"},
            }))},
        }))
    })
}

/// The schemas of labels.
fn feedback_schemas() -> Value {
    let text = json!({"type": "string"});
    json!({
        "Feedback": object(&["request_id", "label"], json!({
            "model": {"type": ["string", "null"]}, "request_id": text,
            "label": {"anyOf": [{"type": "integer", "minimum": 0}, text]},
        })),
        "FeedbackAnswer": object(&["object", "request_id", "right", "variant", "audited", "unchecked"], json!({
            "object": {"const": "feedback"}, "request_id": text, "right": {"type": "boolean"}, "variant": text,
            "audited": {"type": "boolean"}, "unchecked": {"type": "boolean"},
        }))
    })
}

fn schemas() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 2048}]});
    let shape = json!({"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 16});
    let datatype = json!({"enum": kaskade_models::Datatype::ALL.map(kaskade_models::Datatype::name)});
    // The message of an assistant that calls tools has null for its content, or none.
    let message = object(
        &["role"],
        json!({
            "role": text,
            "content": {"type": ["string", "array", "null"]},
            "reasoning_content": {"type": ["string", "null"]},
        }),
    );
    // OpenAI's clients send null for what is not set.
    let temperature = json!({"type": ["number", "null"], "minimum": 0, "maximum": 100});
    let sampling = |own: Value| {
        let mut properties = json!({
            "model": {"type": ["string", "null"]},
            "temperature": temperature,
            "top_p": {"type": ["number", "null"], "minimum": 0.001, "maximum": 1},
            "seed": {"type": ["integer", "null"]},
            "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
            "stream": {"type": ["boolean", "null"]},
            "max_tokens": {"type": ["integer", "null"], "minimum": 1},
            "prompt_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
        });
        if let (Some(all), Value::Object(own)) = (properties.as_object_mut(), own) {
            all.extend(own);
        }
        properties
    };
    let tokens = json!({"type": "array", "items": {"type": "integer"}, "minItems": 1});
    let mut all = json!({
        "OipError": object(&["error"], json!({"error": text})),
        "TokenizeError": {"anyOf": [named("OpenAiError"), named("TeiError")]},
        "TeiError": object(&["error", "error_type"], json!({"error": text, "error_type": text})),
        "OpenAiError": object(&["error"], json!({"error": object(&["message", "type", "param", "code"], json!({
            "message": text, "type": text, "param": {"type": ["string", "null"]}, "code": text, "fault": text,
        }))})),
        "Server": object(&["name", "version", "extensions"], json!({"name": text, "version": text, "extensions": {"type": "array"}})),
        "Model": object(&["name", "versions", "platform", "inputs", "outputs"], json!({
            "name": text, "versions": {"type": "array", "items": text}, "platform": text,
            "inputs": {"type": "array"}, "outputs": {"type": "array"},
        })),
        "InferRequest": object(&["inputs"], json!({
            "id": {"type": ["string", "null"]},
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "maxItems": 64, "items": object(&["name", "shape", "datatype", "data"], json!({
                "name": text, "shape": shape, "datatype": datatype, "data": {"type": "array"},
            }))},
        })),
        "InferAnswer": object(&["model_name", "model_version", "outputs"], json!({
            "model_name": text, "model_version": text, "id": text, "parameters": {"type": "object"}, "outputs": {"type": "array"},
        })),
        "List": object(&["object", "data"], json!({"object": {"const": "list"}, "data": {"type": "array"}})),
        "ModelCard": object(&["id", "object"], json!({"id": text, "object": {"const": "model"}})),
        "Chat": object(&["messages"], sampling(json!({
            "messages": {"type": "array", "minItems": 1, "items": message},
            "tools": {"type": ["array", "null"], "items": object(&["type", "function"], json!({
                "type": {"const": "function"}, "function": object(&["name"], json!({"name": text, "parameters": {"type": "object"}})),
            }))},
            "tool_choice": {"enum": ["auto", "none", null]},
            "response_format": {"anyOf": [{"type": "null"}, object(&["type"], json!({"type": {"enum": ["text", "json_object"]}}))]},
        }))),
        "CompletionRequest": object(&["prompt"], sampling(json!({
            "prompt": {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}, tokens]},
            "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
            "echo": {"type": ["boolean", "null"]},
        }))),
        "ResponseRequest": object(&["input"], json!({
            "model": {"type": ["string", "null"]},
            "input": {"anyOf": [text, {"type": "array", "minItems": 1, "items": message}]},
            "instructions": {"type": ["string", "null"]},
            "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
            "temperature": temperature,
            "stream": {"type": ["boolean", "null"]},
        })),
        "Completion": object(&["id", "object", "created", "model", "choices"], json!({
            "id": text, "object": text, "created": {"type": "integer"}, "model": text,
            "choices": {"type": "array"}, "usage": {"type": "object"},
        })),
        "Resource": object(&["id", "object", "status", "output"], json!({
            "id": text, "object": {"const": "response"}, "status": text, "output": {"type": "array"},
        })),
        "Embeddings": object(&["input"], json!({
            "model": {"type": ["string", "null"]}, "input": texts, "encoding_format": {"enum": ["float", "base64", null]},
        })),
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), tei_schemas(&text, &texts)) {
        all.extend(own);
    }
    all
}

/// The schemas of text-embeddings-inference.
fn tei_schemas(text: &Value, texts: &Value) -> Value {
    // With false, texts that are too long are refused.
    let truncate = json!({"type": ["boolean", "null"]});
    json!({
        "Predict": object(&["inputs"], json!({
            "inputs": texts, "raw_scores": {"type": "boolean"}, "truncate": truncate,
            "parameters": object(&[], json!({
                "aggregation_strategy": {"enum": ["none", "simple", "first", "average", "max", null]},
                "top_k": {"type": ["integer", "null"], "minimum": 1},
                "function_to_apply": {"enum": ["softmax", "sigmoid", "none", null]},
            })),
        })),
        "Rerank": object(&["query", "texts"], json!({
            "query": text, "texts": {"type": "array", "items": text, "minItems": 1, "maxItems": 2048},
            "raw_scores": {"type": "boolean"}, "return_text": {"type": "boolean"}, "truncate": truncate,
        })),
        "Embed": object(&["inputs"], json!({
            "inputs": texts, "normalize": {"type": ["boolean", "null"]},
            "dimensions": {"type": ["integer", "null"], "minimum": 1}, "prompt_name": {"type": ["string", "null"]}, "truncate": truncate,
        })),
        "Similarity": object(&["inputs"], json!({"inputs": object(&["source_sentence", "sentences"], json!({
            "source_sentence": text, "sentences": {"type": "array", "items": text, "minItems": 1, "maxItems": 2047},
        }))})),
    })
}

/// The schema of an object.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the properties are written where they are passed"
)]
fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(ToOwned::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 40);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    /// Generated clients refused the message of an assistant that calls tools.
    #[test]
    fn a_message_may_have_no_content() {
        let document = document();
        let message = document
            .pointer("/components/schemas/Chat/properties/messages/items")
            .unwrap();
        assert_eq!(message["required"], json!(["role"]));
        let types = message["properties"]["content"]["type"].as_array().unwrap();
        assert!(types.contains(&json!("null")), "{types:?}");
    }

    #[test]
    fn the_errors_are_those_of_the_codes() {
        for code in kaskade_actors::Code::ALL {
            let status = code.status().to_string();
            assert!(
                ERRORS.iter().any(|(known, _)| *known == status),
                "{code} has {status}"
            );
        }
    }
}
