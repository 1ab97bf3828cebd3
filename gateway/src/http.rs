//! HTTP functions shared by the endpoints: paths, headers, bodies, and errors in each API's form.
//!
//! | module | holds |
//! |---|---|
//! | `api`, `other_paths` | the API of a path; paths of other servers, with alternatives |
//! | `failure` | typed errors |
//! | `error_response`, `grpc_status` | typed errors as HTTP responses and gRPC statuses |
//! | `body`, `json_body` | bodies and their compression; fields of JSON bodies |
//! | `header_names`, `path_params` | header names; path parameters |
//! | `cors` | requests from pages of other origins |

pub(crate) mod api;
pub(crate) mod body;
pub(crate) mod cors;
mod error_response;
pub(crate) mod failure;
pub(crate) mod grpc_status;
pub(crate) mod header_names;
pub(crate) mod json_body;
pub(crate) mod other_paths;
pub(crate) mod path_params;
