//! Tests of the messages that clients write and read, in MessagePack and JSON.

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use serde_json::json;

use super::super::*;
use super::pack;
use crate::error::{Code, Fault};

fn request_with(tensor: &serde_json::Value) -> Result<Tensor, String> {
    let body = json!({ "inputs": [tensor] });
    let packed = InferRequest::decode(&pack(&body)).map_err(|error| error.to_string());
    let text = serde_json::to_vec(&body).unwrap().into();
    let json = decode_infer(ContentType::Json, &text).map_err(|error| error.to_string());
    assert_eq!(packed.is_ok(), json.is_ok(), "{packed:?} {json:?}");
    packed.map(|request| request.inputs[0].clone())
}

#[test]
fn the_protocols_json_form_is_read_flat_or_nested() {
    let nested = json!({"name": "x", "shape": [2, 2], "datatype": "INT32", "data": [[1, -2], [3, 4]], "parameters": {}});
    let flat = json!({"name": "x", "shape": [2, 2], "datatype": "INT32", "data": [1, -2, 3, 4]});
    assert_eq!(request_with(&nested), request_with(&flat));
    let texts = json!({"name": "x", "shape": [2], "datatype": "BYTES", "data": ["é", ""]});
    assert_eq!(
        request_with(&texts).unwrap().data.as_ref(),
        [2, 0, 0, 0, 0xc3, 0xa9, 0, 0, 0, 0]
    );
    let empty = json!({"name": "x", "shape": [0, 3], "datatype": "FP32", "data": []});
    assert_eq!(request_with(&empty).unwrap().data.len(), 0);
}

#[test]
fn tensors_that_do_not_hold_together_say_what_is_wrong() {
    let cases = [
        (
            json!({"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2]}),
            "takes 12",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "UINT8", "data": [256]}),
            "256 does not fit UINT8",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "INT64", "data": [0.5]}),
            "floats",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "FP16", "data": [0.5]}),
            "send it as bytes",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "FP8", "data": [1]}),
            "unknown datatype `FP8`",
        ),
        (
            json!({"name": "x", "shape": [2], "datatype": "FP32", "data": [1, "a"]}),
            "mixes numbers with a text",
        ),
        (
            json!({"name": "x", "shape": [-1], "datatype": "FP32", "data": []}),
            "u64",
        ),
        (
            json!({"name": "x", "shape": [u64::MAX, 2], "datatype": "UINT8", "data": []}),
            "overflows",
        ),
        (
            json!({"name": "x", "shape": vec![1; 17], "datatype": "UINT8", "data": [1]}),
            "at most 16",
        ),
        (
            json!({"name": "x", "shape": [2], "datatype": "BYTES", "data": ["a"]}),
            "do not add up",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "FP32"}),
            "missing field `data`",
        ),
        (
            json!({"name": "x", "shape": [1], "datatype": "FP32", "data": {"a": 1}}),
            "tensor data",
        ),
        (json!(7), "inputs"),
    ];
    for (tensor, said) in cases {
        let error = request_with(&tensor).unwrap_err();
        assert!(error.contains(said) || said == "inputs", "{tensor}: {error}");
    }
}

#[test]
fn parameters_of_any_scalar_become_text() {
    let body = pack(&json!({"inputs": [], "parameters": {"a": true, "b": 1.5, "c": -3, "d": "e"}}));
    let request = InferRequest::decode(&body).unwrap();
    let values = request.parameters.into_values().collect::<Vec<_>>();
    assert_eq!(values, ["true", "1.5", "-3", "e"]);
}

#[test]
fn an_empty_body_is_called_so() {
    for content_type in [ContentType::MessagePack, ContentType::Json] {
        let error = decode_infer(content_type, &Bytes::new()).unwrap_err().to_string();
        assert!(error.contains("the body is empty"), "{error}");
    }
}

#[test]
fn json_without_its_header_is_told_to_need_it() {
    let body = Bytes::from_static(br#"{"inputs": []}"#);
    let error = decode_infer(ContentType::MessagePack, &body)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`content-type: application/json`"), "{error}");
}

#[test]
fn parameters_that_are_null_are_missing() {
    for (parameters, known) in [
        (json!(null), &[][..]),
        (json!({"tenant": "blue", "user": null}), &["tenant"]),
    ] {
        let body = json!({"id": null, "inputs": [], "parameters": parameters});
        let text = serde_json::to_vec(&body).unwrap().into();
        for read in [
            InferRequest::decode(&pack(&body)),
            decode_infer(ContentType::Json, &text),
        ] {
            let names: Vec<String> = read.unwrap().parameters.into_keys().collect();
            assert_eq!(names, known);
        }
    }
}

#[test]
fn a_reply_that_json_cannot_say_is_a_bad_output() {
    let reply = |tensor| InferReply {
        outputs: vec![tensor],
        ..InferReply::default()
    };
    let nan = Tensor::from_f32("y", &[1], &[f32::NAN]).unwrap();
    let half = Tensor {
        name: "y".into(),
        shape: vec![1],
        datatype: Datatype::F16,
        data: Bytes::from_static(&[0, 0]),
    };
    let binary = Tensor {
        datatype: Datatype::Bytes,
        data: Bytes::from_static(&[1, 0, 0, 0, 0xff]),
        ..half.clone()
    };
    for tensor in [nan, half, binary] {
        let error = encode_reply(ContentType::Json, &reply(tensor.clone())).unwrap_err();
        assert_eq!(Fault::from(error).code, Code::BadOutput);
        assert!(encode_reply(ContentType::MessagePack, &reply(tensor)).is_ok());
    }
}

#[test]
fn a_json_reply_is_the_protocols() {
    let reply = InferReply {
        id: Some("7".into()),
        outputs: vec![Tensor::from_f32("y", &[2], &[0.25, 1.0]).unwrap()],
        stage: "tiny".into(),
        variant: "mlp-16".into(),
        confidence: Some(0.5),
        hops: Vec::new(),
        ..InferReply::default()
    };
    let body: serde_json::Value =
        serde_json::from_slice(&encode_reply(ContentType::Json, &reply).unwrap()).unwrap();
    assert_eq!(
        body,
        json!({
            "model_name": "mlp-16", "id": "7", "stage": "tiny", "variant": "mlp-16", "confidence": 0.5, "hops": [],
            "degraded": false,
            "outputs": [{"name": "y", "shape": [2], "datatype": "FP32", "data": [0.25, 1.0]}],
        })
    );
}

#[test]
fn a_fault_comes_back_as_one_in_either_format() {
    let fault = Fault::new(Code::Expired, "too late");
    for content_type in [ContentType::MessagePack, ContentType::Json] {
        let body = encode_fault(content_type, &fault);
        assert_eq!(decode_reply(content_type, &body), Err(fault.clone()));
        let garbage = decode_reply(content_type, &Bytes::from_static(b"\xc1")).unwrap_err();
        assert_eq!(garbage.code, Code::Malformed);
    }
}

#[test]
fn the_documented_request_is_read() {
    let page = include_str!("../../../../docs/reference/wire.md");
    let (_, rest) = page.split_once("```json\n").unwrap();
    let (body, _) = rest.split_once("```").unwrap();
    let request = decode_infer(ContentType::Json, &Bytes::copy_from_slice(body.as_bytes())).unwrap();
    assert_eq!(request.id.as_deref(), Some("42"));
    assert_eq!(request.inputs[0].to_f32(), Ok(vec![0.0, 0.5, 0.25, 1.0]));
    assert_eq!(request.parameters["tenant"], "blue");
}
