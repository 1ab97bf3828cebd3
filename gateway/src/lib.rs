//! HTTP gateway of Kaskade: the Open Inference Protocol v2, OpenAI's API, the endpoints of text-embeddings-inference, and
//! a dashboard. The gateway is a client of the app: over NATS, or directly through an ingress of the same process. Several may
//! serve one app behind a balancer.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | [`Limits`] of a gateway and [`AppOptions`] of an app that it serves |
//! | [`server`] | [`Gateway`]: the listener, its routes, and the graceful shutdown |
//! | `connections` | connections: HTTP/1.1 and HTTP/2, and those that send nothing |
//! | `state`, `tenant`, `latency` | what all requests share; keys and the limits of tenants; latencies |
//! | `observed_signature` | names, types and shapes of the tensors that an app takes and answers |
//! | `middleware` | request ids, keys, limits, compression and the log line of every request |
//! | `permits`, `subrequests` | permits of requests in progress; the parts of a request, which run together as far as its limits allow |
//! | `api`, `answer_kind` | which API a path belongs to; what the answers of an app are |
//! | `body` | bodies and their compression |
//! | `call`, `reply_metadata` | budget, trace and answer of one request; how it was answered |
//! | `failure`, `grpc_status` | typed errors as statuses of HTTP and gRPC |
//! | `limited_body` | bodies of requests as they arrive, within the limit of all bodies |
//! | [`tls`], `cors` | connections with TLS; requests of pages of other origins |
//! | `other_paths` | paths of other servers, and what to send instead |
//! | `json_body`, `path_params`, `header_names` | fields of JSON bodies; names in paths; names of headers |
//! | `trace` | spans of requests and of the requests to the app that they become |
//! | `metric_names` | names of the metrics |
//! | `health` | `/health`, `/live`, `/ready`, `/metrics` |
//! | `oip` | `/v2`: the Open Inference Protocol with the binary tensor extension |
//! | `openai` | `/v1`: models, chat, completions, responses, embeddings |
//! | `feedback`, `request_ids` | `/v1/feedback`: labels that arrive later; the ids of requests that they name |
//! | `grpc` | the Open Inference Protocol v2 over gRPC, on the same port |
//! | `openapi` | `/openapi.json`: what the REST interface takes and gives |
//! | `tei` | `/predict`, `/rerank`, `/embed`, `/similarity`, `/v1/rerank`, `/v2/rerank` and `POST /`: the APIs of text-embeddings-inference, Hugging Face and Cohere |
//! | `tokenize`, `tokenizer` | `/tokenize`, `/detokenize` and `/decode`, as vLLM and text-embeddings-inference have them; the tokenizer of an app |
//! | [`overview`], `app_state` | rates, power and queues of a running app; the task that follows an app through its broker |
//! | `dashboard` | `/`: the page and the events that feed it |

mod answer_kind;
mod api;
mod app_state;
mod body;
mod call;
pub mod config;
mod connections;
mod cors;
mod dashboard;
mod failure;
mod feedback;
mod grpc;
mod grpc_status;
mod header_names;
mod health;
mod json_body;
mod latency;
mod limited_body;
mod metric_names;
mod middleware;
mod observed_signature;
mod oip;
mod openai;
mod openapi;
mod other_paths;
pub mod overview;
mod path_params;
mod permits;
mod reply_metadata;
mod request_ids;
pub mod server;
mod state;
mod subrequests;
mod tei;
mod tenant;
pub mod tls;
mod tokenize;
mod tokenizer;
mod trace;

pub use answer_kind::AnswerKind;
pub use config::{AppOptions, Limits, Streaming, TokenizerPath};
pub use server::{Gateway, GatewayError};
pub use tls::{TlsError, TlsFiles};
