//! Round trips, hostile bytes, and hand-written peers.

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::remote::price::{Cost, CostSource};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;
use serde_json::json;

use super::*;
use crate::error::{Code, Fault};

fn texts(elements: &[String]) -> Bytes {
    elements
        .iter()
        .flat_map(|text| {
            let length = u32::try_from(text.len()).unwrap().to_le_bytes();
            length.into_iter().chain(text.bytes())
        })
        .collect()
}

/// Tensors of every datatype; `json` omits values without a JSON form.
fn tensor(json: bool) -> impl Strategy<Value = Tensor> {
    let datatypes = Datatype::ALL
        .into_iter()
        .filter(|datatype| !json || !matches!(datatype, Datatype::F16 | Datatype::Bf16))
        .collect::<Vec<_>>();
    (
        proptest::sample::select(datatypes),
        vec(0_usize..4, 0..4),
        ".{0,12}",
    )
        .prop_flat_map(move |(datatype, shape, name)| {
            let elements = shape.iter().product::<usize>();
            let data = match datatype {
                Datatype::Bytes => vec(".{0,6}".prop_map(String::from), elements)
                    .prop_map(|elements| texts(&elements))
                    .boxed(),
                Datatype::Bool => vec(0_u8..2, elements).prop_map(Bytes::from).boxed(),
                Datatype::F32 if json => vec(proptest::num::f32::NORMAL, elements)
                    .prop_map(|values| values.iter().flat_map(|v| v.to_le_bytes()).collect())
                    .boxed(),
                // Without its feature `float_roundtrip` serde_json may miss the last bit of a double; these it reads exactly.
                Datatype::F64 if json => vec(any::<i32>(), elements)
                    .prop_map(|values| {
                        values
                            .iter()
                            .flat_map(|v| (f64::from(*v) / 64.0).to_le_bytes())
                            .collect()
                    })
                    .boxed(),
                other => vec(any::<u8>(), elements * other.size().unwrap())
                    .prop_map(Bytes::from)
                    .boxed(),
            };
            data.prop_map(move |data| Tensor {
                name: name.clone(),
                shape: shape.clone(),
                datatype,
                data,
            })
        })
}

fn hops() -> impl Strategy<Value = Vec<Hop>> {
    let source = proptest::sample::select(vec![
        CostSource::Priced,
        CostSource::Measured,
        CostSource::Modelled,
    ]);
    let cost = (probability(), source).prop_map(|(amount, source)| Cost { amount, source });
    let cost = option::of(cost);
    let answer = (0_u32..=1_000_000, any::<u32>());
    let answer = answer.prop_map(|(confidence_ppm, answer)| HopAnswer {
        confidence_ppm,
        answer,
    });
    let answer = option::of(answer);
    let hop = (
        "[a-z]{1,8}",
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        cost,
        answer,
    );
    vec(
        hop.prop_map(|(stage, wait_us, run_us, batch, cost, answer)| Hop {
            stage,
            wait_us,
            run_us,
            batch,
            cost,
            answer,
        }),
        0..4,
    )
}

fn probability() -> impl Strategy<Value = f64> {
    (0_u8..=64).prop_map(|part| f64::from(part) / 64.0)
}

fn infer_request(json: bool) -> impl Strategy<Value = InferRequest> {
    (
        vec(tensor(json), 0..4),
        option::of(".{0,12}"),
        btree_map(".{0,6}", ".{0,6}", 0..3),
    )
        .prop_map(|(inputs, id, parameters)| InferRequest {
            inputs,
            id,
            parameters,
        })
}

fn infer_reply(json: bool) -> impl Strategy<Value = InferReply> {
    (
        option::of(".{0,12}"),
        vec(tensor(json), 0..4),
        "[a-z]{0,8}",
        "[a-z]{0,8}",
        option::of(probability()),
        hops(),
        any::<(bool, Option<u32>)>(),
        vec(branch_reply(json), 0..3),
    )
        .prop_map(
            |(id, outputs, stage, variant, confidence, hops, (degraded, part), branches)| InferReply {
                id,
                outputs,
                stage,
                variant,
                confidence,
                hops,
                degraded,
                part,
                branches,
            },
        )
}

fn branch() -> impl Strategy<Value = Branch> {
    let levels = vec(("[a-z]{1,6}", any::<u32>()), 0..3);
    levels.prop_map(|levels| {
        let root = Branch::ROOT;
        levels
            .into_iter()
            .fold(root, |branch, (task, index)| branch.child(&task, index))
    })
}

fn branch_reply(json: bool) -> impl Strategy<Value = BranchReply> {
    (
        branch(),
        "[a-z]{0,8}",
        option::of(probability()),
        vec(tensor(json), 0..2),
        option::of(proptest::sample::select(Code::ALL)),
    )
        .prop_map(|(branch, stage, confidence, outputs, error)| BranchReply {
            branch,
            variant: stage.clone(),
            stage,
            confidence,
            outputs,
            error: error.map(|code| Fault::new(code, "said why")),
        })
}

fn stage_request() -> impl Strategy<Value = StageRequest> {
    (
        any::<(u64, u32, u64, u32, bool, bool, bool, bool)>(),
        branch(),
        "[a-z]{0,8}",
        "[a-z]{0,8}",
        hops(),
        vec(tensor(false), 0..4),
    )
        .prop_map(
            |(
                (id, attempt, epoch, gear, stream, optimistic, settle, via_ingress),
                branch,
                ingress,
                stage,
                hops,
                inputs,
            )| {
                StageRequest {
                    id,
                    ingress,
                    attempt,
                    token: TokenKey::random().unwrap().issue(id, attempt, gear),
                    branch,
                    epoch,
                    gear,
                    stage,
                    hops,
                    stream,
                    optimistic,
                    settle,
                    via_ingress,
                    inputs,
                }
            },
        )
}

fn done() -> impl Strategy<Value = Done> {
    let children = proptest::collection::btree_map("[a-z]{1,6}", any::<u32>(), 0..3);
    let outputs = (
        vec(tensor(false), 0..4),
        option::of(probability()),
        any::<bool>(),
        children,
    )
        .prop_map(|(outputs, confidence, routed, children)| DoneResult::Outputs {
            outputs,
            confidence,
            routed,
            children,
        });
    let part = (vec(tensor(false), 0..4), any::<(u32, u32)>());
    let part = part.prop_map(|(outputs, (from, until))| DoneResult::Part { outputs, from, until });
    let fault = (proptest::sample::select(Code::ALL), ".{0,20}")
        .prop_map(|(code, message)| DoneResult::Fault(Fault::new(code, message)));
    (
        any::<(u64, u32)>(),
        branch(),
        "[a-z]{0,8}",
        "[a-z]{0,8}",
        hops(),
        prop_oneof![outputs, part, fault],
    )
        .prop_map(|((id, attempt), branch, stage, replica, hops, result)| Done {
            id,
            attempt,
            branch,
            stage,
            replica,
            hops,
            result,
        })
}

fn runs() -> impl Strategy<Value = Runs> {
    let counts = (any::<u64>(), any::<u64>(), any::<u64>());
    counts.prop_map(|(batches, requests, busy_us)| Runs {
        batches,
        requests,
        busy_us,
    })
}

fn fan_outs() -> impl Strategy<Value = FanOuts> {
    let children = btree_map("[a-z]{1,8}", any::<u64>(), 0..3);
    (any::<u64>(), children).prop_map(|(requests, children)| FanOuts { requests, children })
}

fn beat() -> impl Strategy<Value = Beat> {
    let replica = (
        "[a-z]{1,8}",
        "[a-z]{0,8}",
        "[a-z]{0,8}",
        any::<(u32, u32, bool)>(),
    )
        .prop_map(
            |(id, stage, variant, (queue, in_flight, unavailable))| ReplicaBeat {
                id,
                stage,
                variant,
                queue,
                in_flight,
                unavailable,
            },
        );
    (
        "[a-z]{1,8}",
        "[a-z]{1,8}",
        vec(replica, 0..4),
        (
            any::<(u32, u32, u64, u64, u64, u64, bool)>(),
            vec("[a-z]{1,8}", 0..3),
        ),
        btree_map("[a-z]{1,8}", fan_outs(), 0..3),
        btree_map("[a-z]{1,8}", runs(), 0..3),
    )
        .prop_map(
            |(
                actor,
                kind,
                replicas,
                ((queue, in_flight, epoch, sequence, instance, in_place, leaving), failed),
                fan_outs,
                runs,
            )| Beat {
                actor,
                kind,
                replicas,
                queue,
                in_flight,
                fan_outs,
                runs,
                epoch,
                in_place,
                failed,
                leaving,
                sequence,
                instance,
            },
        )
}

/// Properties of every message.
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
    let _ = Done::decode(bytes);
    let _ = Beat::decode(bytes);
    let _ = GearShift::decode(bytes);
    let _ = LoadCount::decode(bytes);
    let _ = DriftNotice::decode(bytes);
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
    same(&DriftNotice {
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

fn pack(value: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(value).unwrap().into()
}

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
    let done = Done::decode(&bytes).unwrap();
    assert_eq!((done.id, done.attempt, done.stage.as_str()), (0, 0, ""));
    let DoneResult::Outputs {
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
    let done = Done::decode(&pack(&json!({"error": "no such image"}))).unwrap();
    assert_eq!(
        done.result,
        DoneResult::Fault(Fault::new(Code::ModelFailed, "no such image"))
    );
    let done = Done::decode(&pack(&json!({"outputs": null, "error": {"code": "KSK0006"}}))).unwrap();
    assert!(matches!(
        done.result,
        DoneResult::Fault(Fault {
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
            Done::decode(&pack(&body)),
            Err(CodecError::Schema { .. })
        ));
    }
}

#[test]
fn a_confidence_that_is_no_probability_is_a_bad_output() {
    for confidence in [f64::NAN, f64::INFINITY, -0.1, 1.000_001] {
        let sent = Done {
            id: 1,
            attempt: 0,
            branch: Branch::ROOT,
            stage: "s".into(),
            replica: "r".into(),
            hops: Vec::new(),
            result: DoneResult::Outputs {
                outputs: Vec::new(),
                confidence: Some(confidence),
                routed: true,
                children: BTreeMap::new(),
            },
        };
        let received = Done::decode(&sent.encode().unwrap()).unwrap();
        assert_eq!(received.id, 1);
        assert!(matches!(
            received.result,
            DoneResult::Fault(Fault {
                code: Code::BadOutput,
                ..
            })
        ));
    }
}

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
fn parameters_of_any_scalar_become_text() {
    let body = pack(&json!({"inputs": [], "parameters": {"a": true, "b": 1.5, "c": -3, "d": "e"}}));
    let request = InferRequest::decode(&body).unwrap();
    let values = request.parameters.into_values().collect::<Vec<_>>();
    assert_eq!(values, ["true", "1.5", "-3", "e"]);
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

#[test]
fn the_documented_request_is_read() {
    let page = include_str!("../../../docs/reference/wire.md");
    let (_, rest) = page.split_once("```json\n").unwrap();
    let (body, _) = rest.split_once("```").unwrap();
    let request = decode_infer(ContentType::Json, &Bytes::copy_from_slice(body.as_bytes())).unwrap();
    assert_eq!(request.id.as_deref(), Some("42"));
    assert_eq!(request.inputs[0].to_f32(), Ok(vec![0.0, 0.5, 0.25, 1.0]));
    assert_eq!(request.parameters["tenant"], "blue");
}
