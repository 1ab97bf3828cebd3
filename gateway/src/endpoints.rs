//! The HTTP and gRPC endpoints of a gateway, by path.
//!
//! | module | holds |
//! |---|---|
//! | `oip`, `grpc` | the Open Inference Protocol v2: `/v2` with the binary tensor extension, and gRPC on the same port |
//! | `openai` | `/v1`: models, chat, completions, responses, embeddings |
//! | `tei` | `/predict`, `/rerank`, `/embed`, `/similarity`, `/v1/rerank`, `/v2/rerank` and `POST /`: the APIs of text-embeddings-inference, Hugging Face and Cohere |
//! | `tokenize` | `/tokenize`, `/detokenize` and `/decode`, as in vLLM and text-embeddings-inference |
//! | `feedback` | `/v1/feedback`: delayed labels |
//! | `health` | `/health`, `/live`, `/ready`, `/metrics` |
//! | `openapi` | `/openapi.json`: description of the REST interface |
//! | `dashboard` | `/`: the dashboard page, and its events |

pub(crate) mod dashboard;
pub(crate) mod feedback;
pub(crate) mod grpc;
pub(crate) mod health;
pub(crate) mod oip;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod tei;
pub(crate) mod tokenize;
