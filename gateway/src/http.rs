//! HTTP as the endpoints share it: paths, headers, bodies, and errors in the form of each API.
//!
//! | module | holds |
//! |---|---|
//! | `api`, `other_paths` | which API a path belongs to; paths of other servers, and what to send instead |
//! | `failure`, `grpc_status` | typed errors as statuses of HTTP and gRPC |
//! | `body`, `json_body` | bodies and their compression; fields of JSON bodies |
//! | `header_names`, `path_params` | names of headers; names in paths |
//! | `cors` | requests of pages of other origins |

pub(crate) mod api;
pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod failure;
pub(crate) mod grpc_status;
pub(crate) mod header_names;
pub(crate) mod json_body;
pub(crate) mod other_paths;
pub(crate) mod path_params;
