//! Decoding hostile bytes allocates in proportion to the received bytes, never to claimed lengths.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::System;

use bytes::Bytes;
use kaskade_actors::wire::{
    ContentType, Heartbeat, InferReply, InferRequest, Message, StageReply, StageRequest, decode_infer,
};
use proptest::prelude::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// An array of one-byte numbers becomes 8-byte elements in a doubling list, and then tensor bytes.
const PER_BYTE: usize = 48;
/// Allowance for error texts and the first elements of lists.
const BASE: usize = 64 << 10;

/// Bytes allocated in total while `decode` runs.
fn allocated(decode: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    decode();
    let change = region.change();
    change.bytes_allocated + usize::try_from(change.bytes_reallocated.max(0)).unwrap()
}

fn decode_as_everything(bytes: &Bytes) {
    let _ = InferRequest::decode(bytes);
    let _ = InferReply::decode(bytes);
    let _ = StageRequest::decode(bytes);
    let _ = StageReply::decode(bytes);
    let _ = Heartbeat::decode(bytes);
    let _ = decode_infer(ContentType::Json, bytes);
}

/// Containers that claim `count` elements and hold none, in fields that are lists.
fn claims(count: u32) -> Vec<Bytes> {
    let mut messages = Vec::new();
    for field in [
        "inputs",
        "outputs",
        "hops",
        "replicas",
        "parameters",
        "id",
        "stage",
    ] {
        for marker in [0xdd_u8, 0xdf, 0xdb, 0xc6, 0xc9] {
            let mut bytes = vec![0x81, 0xa0 | u8::try_from(field.len()).unwrap()];
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(marker);
            bytes.extend_from_slice(&count.to_be_bytes());
            messages.push(bytes.into());
        }
    }
    messages
}

/// Complete messages of many one-byte elements, which need the most memory when decoded.
fn swarms(count: u16) -> Vec<Bytes> {
    let mut messages = Vec::new();
    for field in ["inputs", "outputs", "hops", "replicas"] {
        for element in [0x80_u8, 0x90, 0xa0, 0x00, 0xc0] {
            let mut bytes = vec![0x81, 0xa0 | u8::try_from(field.len()).unwrap()];
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0xdc);
            bytes.extend_from_slice(&count.to_be_bytes());
            bytes.resize(bytes.len() + usize::from(count), element);
            messages.push(bytes.into());
        }
    }
    messages
}

// One test only: the counters cover the process, so a second test would be counted too.
#[test]
fn decoding_allocates_by_received_bytes_and_not_by_claimed_lengths() {
    let check = |bytes: &Bytes| {
        let used = allocated(|| decode_as_everything(bytes));
        assert!(
            used <= BASE + 6 * PER_BYTE * bytes.len(),
            "{used} bytes for a message of {}: {:x?}",
            bytes.len(),
            bytes.slice(..bytes.len().min(64))
        );
    };
    claims(u32::MAX).iter().chain(&claims(1 << 20)).for_each(check);
    swarms(u16::MAX).iter().chain(&swarms(1000)).for_each(check);

    let tensor = |elements: u32, element: &[u8]| {
        let mut bytes = b"\x81\xa6inputs\x91\x84\xa4name\xa1x\xa5shape\x91\xce".to_vec();
        bytes.extend_from_slice(&elements.to_be_bytes());
        bytes.extend_from_slice(b"\xa8datatype\xa4FP64\xa4data\xdd");
        bytes.extend_from_slice(&elements.to_be_bytes());
        bytes.extend(element.iter().cycle().take(elements as usize * element.len()));
        Bytes::from(bytes)
    };
    let numbers = tensor(500_000, &[7]);
    assert_eq!(
        InferRequest::decode(&numbers).unwrap().inputs.len(),
        1,
        "the message is valid"
    );
    check(&numbers);
    check(&tensor(500_000, &[0xa0]));
    check(&tensor(500_000, &[0x90]));

    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&proptest::collection::vec(any::<u8>(), 0..512), |bytes| {
            check(&bytes.into());
            Ok(())
        })
        .unwrap();
}
