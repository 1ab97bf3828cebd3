//! Tests of peers with hand-written messages, malformed messages, and limits.

use std::collections::BTreeMap;

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::fan_in::Branch;
use serde_json::json;

use super::super::*;
use super::pack;
use crate::error::{Code, Fault};

#[test]
fn tensor_data_is_cut_out_of_the_message_and_not_copied() {
    let sent = StageRequest {
        inputs: vec![Tensor::from_f32("x", &[1000], &[0.5; 1000]).unwrap()],
        ..StageRequest::default()
    };
    let bytes = sent.encode().unwrap();
    let received = StageRequest::decode(&bytes).unwrap();
    let data = received.inputs[0].data.as_ptr_range();
    let whole = bytes.as_ptr_range();
    assert!(whole.start <= data.start && data.end <= whole.end);
    drop(received);
    assert!(bytes.is_unique(), "decoding kept the message alive");
}

#[test]
fn unknown_fields_are_ignored() {
    let bytes = pack(&json!({"epoch": 3, "gear": 1, "later": {"deep": [1, 2, {"a": null}]}}));
    assert_eq!(GearShift::decode(&bytes), Ok(GearShift { epoch: 3, gear: 1 }));
}

#[test]
fn a_hand_written_worker_answers_with_two_fields() {
    let bytes = pack(&json!({
        "outputs": [{"name": "y", "shape": [2], "datatype": "FP32", "data": [1, 0.5]}],
        "confidence": 0.9,
    }));
    let done = StageReply::decode(&bytes).unwrap();
    assert_eq!((done.id, done.attempt, done.stage.as_str()), (0, 0, ""));
    let StageOutcome::Outputs {
        outputs,
        confidence,
        routed,
        children,
    } = done.result
    else {
        panic!("a fault")
    };
    assert_eq!(outputs[0].to_f32(), Ok(vec![1.0, 0.5]));
    assert_eq!((confidence, routed), (Some(0.9), false));
    assert!(children.is_empty() && done.branch.is_root());
}

#[test]
fn a_hand_written_worker_fails_with_one() {
    let done = StageReply::decode(&pack(&json!({"error": "no such image"}))).unwrap();
    assert_eq!(
        done.result,
        StageOutcome::Fault(Fault::new(Code::ModelFailed, "no such image"))
    );
    let done = StageReply::decode(&pack(&json!({"outputs": null, "error": {"code": "KSK0006"}}))).unwrap();
    assert!(matches!(
        done.result,
        StageOutcome::Fault(Fault {
            code: Code::Overloaded,
            ..
        })
    ));
}

#[test]
fn a_result_that_is_neither_or_both_is_refused() {
    let outputs = json!([{"name": "y", "shape": [], "datatype": "BOOL", "data": [true]}]);
    for body in [json!({}), json!({"outputs": outputs, "error": "why"})] {
        assert!(matches!(
            StageReply::decode(&pack(&body)),
            Err(CodecError::Schema { .. })
        ));
    }
}

#[test]
fn a_confidence_that_is_no_probability_is_a_bad_output() {
    for confidence in [f64::NAN, f64::INFINITY, -0.1, 1.000_001] {
        let sent = StageReply {
            id: 1,
            attempt: 0,
            branch: Branch::ROOT,
            stage: "s".into(),
            replica: "r".into(),
            hops: Vec::new(),
            result: StageOutcome::Outputs {
                outputs: Vec::new(),
                confidence: Some(confidence),
                routed: true,
                children: BTreeMap::new(),
            },
        };
        let received = StageReply::decode(&sent.encode().unwrap()).unwrap();
        assert_eq!(received.id, 1);
        assert!(matches!(
            received.result,
            StageOutcome::Fault(Fault {
                code: Code::BadOutput,
                ..
            })
        ));
    }
}

#[test]
fn bytes_elements_must_be_whole() {
    let broken = Tensor {
        name: "x".into(),
        shape: vec![1],
        datatype: Datatype::Bytes,
        data: Bytes::from_static(&[9, 0, 0, 0, b'a']),
    };
    let request = InferRequest {
        inputs: vec![broken],
        ..InferRequest::default()
    };
    let error = InferRequest::decode(&request.encode().unwrap()).unwrap_err();
    assert!(error.to_string().contains("do not add up"), "{error}");
}

#[test]
fn lists_have_their_caps() {
    let hops = StageRequest {
        hops: vec![Hop::default(); MAX_HOPS + 1],
        ..StageRequest::default()
    };
    let error = StageRequest::decode(&hops.encode().unwrap()).unwrap_err();
    assert!(error.to_string().contains("at most 64"), "{error}");
    let parameters = (0..=MAX_PARAMETERS)
        .map(|n| (n.to_string(), n))
        .collect::<BTreeMap<_, _>>();
    let body = pack(&json!({"inputs": [], "parameters": parameters}));
    assert!(InferRequest::decode(&body).is_err());
}

#[test]
fn limits_are_the_callers_to_tighten() {
    let message = GearShift { epoch: 1, gear: 2 }.encode().unwrap();
    let tight = Limits {
        bytes: 4,
        ..Limits::default()
    };
    let error = GearShift::decode_within(&message, &tight).unwrap_err();
    assert_eq!(Fault::from(error).code, Code::TooLarge);
}

#[test]
fn a_failed_decode_gives_the_buffer_back() {
    let bytes = pack(&json!({"inputs": [{"name": "x"}], "stage": 1}));
    assert!(StageRequest::decode(&bytes).is_err());
    assert!(bytes.is_unique());
}
