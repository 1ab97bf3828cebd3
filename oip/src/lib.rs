//! Messages and service of the Open Inference Protocol v2 over gRPC, and their tensors.
//!
//! | module | holds |
//! |---|---|
//! | [`proto`] | what `codegen.sh` makes of `proto/inference.proto`: messages, and the traits of the service |
//! | [`codec`] | prost's codec, with a cap on the fields of a message |
//! | [`health`] | gRPC's health protocol |
//! | [`tensors`] | tensors of messages: raw or typed contents, as [`kaskade_models::Tensor`]s |
//! | [`status`] | numbers and names of gRPC's statuses, without a gRPC library |

pub mod codec;
pub mod health;
pub mod status;
pub mod tensors;

/// Messages and service, generated.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    rustdoc::all,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "generated.rs"]
pub mod proto;

/// Package and name of the service: the first part of its methods' paths.
pub const SERVICE: &str = "inference.GRPCInferenceService";

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use sha2::{Digest, Sha256};

    #[test]
    fn the_generated_code_is_that_of_the_proto_file() {
        let mut digest = String::new();
        for byte in Sha256::digest(include_bytes!("../proto/inference.proto")) {
            write!(digest, "{byte:02x}").unwrap();
        }
        let head = include_str!("generated.rs").lines().next().unwrap();
        assert!(
            head.ends_with(&digest),
            "proto/inference.proto has changed; run oip/codegen.sh"
        );
    }
}
