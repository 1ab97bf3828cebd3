//! Property tests: every message round-trips within its size hint, and damaged bytes never panic.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use super::strategies::{beat, done, infer_reply, infer_request, stage_request};

fn holds<M: Message + PartialEq + std::fmt::Debug>(message: &M) -> Result<(), TestCaseError> {
    let bytes = message.encode().unwrap();
    prop_assert_eq!(&M::decode(&bytes).unwrap(), message);
    prop_assert!(
        message.size_hint() >= bytes.len(),
        "the buffer had to grow: {} < {}",
        message.size_hint(),
        bytes.len()
    );
    for end in 0..bytes.len() {
        let cut = M::decode(&bytes.slice(..end));
        prop_assert!(
            matches!(cut, Err(CodecError::Truncated { .. })),
            "cut at {}: {:?}",
            end,
            cut
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn infer_request_holds(message in infer_request(false)) { holds(&message)?; }

    #[test]
    fn infer_reply_holds(message in infer_reply(false)) { holds(&message)?; }

    #[test]
    fn stage_request_holds(message in stage_request()) { holds(&message)?; }

    #[test]
    fn done_holds(message in done()) { holds(&message)?; }

    #[test]
    fn beat_holds(message in beat()) { holds(&message)?; }

    #[test]
    fn gear_shift_holds(epoch in any::<u64>(), gear in any::<u32>()) { holds(&GearShift { epoch, gear })?; }

    #[test]
    fn plan_notice_holds(epoch in any::<u64>()) { holds(&PlanNotice { epoch })?; }

    #[test]
    fn json_round_trips_for_clients(request in infer_request(true), reply in infer_reply(true)) {
        let body = serde_json::to_vec(&request).unwrap().into();
        prop_assert_eq!(decode_infer(ContentType::Json, &body).unwrap(), request);
        let body = encode_reply(ContentType::Json, &reply).unwrap();
        prop_assert_eq!(decode_reply(ContentType::Json, &body).unwrap(), reply);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..256)) {
        survive(&bytes.into());
    }

    #[test]
    fn damaged_messages_never_panic(
        message in stage_request(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = message.encode().unwrap().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        survive(&bytes.into());
    }
}

fn survive(bytes: &Bytes) {
    let _ = InferRequest::decode(bytes);
    let _ = InferReply::decode(bytes);
    let _ = StageRequest::decode(bytes);
    let _ = StageReply::decode(bytes);
    let _ = Heartbeat::decode(bytes);
    let _ = GearShift::decode(bytes);
    let _ = LoadCount::decode(bytes);
    let _ = LoadDriftNotice::decode(bytes);
    let _ = PlanRequest::decode(bytes);
    let _ = PlanReport::decode(bytes);
    let _ = decode_infer(ContentType::Json, bytes);
    let _ = decode_reply(ContentType::Json, bytes);
    let _ = decode_reply(ContentType::MessagePack, bytes);
}

#[test]
fn shifter_and_planner_messages_round_trip() {
    fn same<M: Message + PartialEq + std::fmt::Debug>(message: &M) {
        assert_eq!(M::decode(&message.encode().unwrap()).unwrap(), *message);
    }
    same(&LoadCount {
        ingress: "i".into(),
        arrivals: u64::MAX,
    });
    same(&ShiftReport {
        epoch: 3,
        from: 0,
        to: 2,
        qps: 1234.5,
        first_queue: 7,
    });
    same(&LoadDriftNotice {
        epoch: 3,
        distance: 0.5,
        measured: vec![0.25, 0.75],
        peak_qps: 900.0,
    });
    same(&PlanRequest {
        reason: "more load".into(),
        peak_qps: Some(100.0),
        measured: vec![1.0],
        fan_outs: BTreeMap::from([("w".into(), BTreeMap::from([("v".into(), FanOuts::default())]))]),
        runs: BTreeMap::from([("w".into(), BTreeMap::from([("v".into(), Runs::default())]))]),
        observed: Some(Observation {
            at_us: 3_000_000,
            arrivals: 42,
            workers: vec!["w".into()],
        }),
    });
    for report in [
        PlanReport::Adopted { epoch: 4 },
        PlanReport::Unchanged { epoch: 4 },
        PlanReport::Refused {
            reason: "none".into(),
        },
        PlanReport::Crashed,
        PlanReport::TimedOut { limit_ms: 10 },
        PlanReport::Stale { newest: None },
        PlanReport::Busy,
    ] {
        same(&report);
    }
    let too_many = PlanRequest {
        measured: vec![0.0; MAX_GEARS + 1],
        ..PlanRequest::default()
    };
    assert!(PlanRequest::decode(&too_many.encode().unwrap()).is_err());
}
