//! Tests of round trips, malformed bytes, and peers with hand-written messages.

mod clients;
mod foreign;
mod properties;
mod strategies;

use bytes::Bytes;
use serde::Serialize;

fn pack(value: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(value).unwrap().into()
}
