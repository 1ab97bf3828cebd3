//! The endpoints: what a gateway serves under which path.
//!
//! | module | holds |
//! |---|---|
//! | `oip`, `grpc` | the Open Inference Protocol v2: `/v2` with the binary tensor extension, and gRPC on the same port |
//! | `openai` | `/v1`: models, chat, completions, responses, embeddings |
//! | `tei` | `/predict`, `/rerank`, `/embed`, `/similarity`, `/v1/rerank`, `/v2/rerank` and `POST /`: the APIs of text-embeddings-inference, Hugging Face and Cohere |
//! | `tokenize` | `/tokenize`, `/detokenize` and `/decode`, as vLLM and text-embeddings-inference have them |
//! | `feedback` | `/v1/feedback`: labels that arrive later |
//! | `health` | `/health`, `/live`, `/ready`, `/metrics` |
//! | `openapi` | `/openapi.json`: what the REST interface takes and gives |
//! | `dashboard` | `/`: the page and the events that feed it |

pub(crate) mod dashboard;
pub(crate) mod feedback;
pub(crate) mod grpc;
pub(crate) mod health;
pub(crate) mod oip;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod tei;
pub(crate) mod tokenize;
