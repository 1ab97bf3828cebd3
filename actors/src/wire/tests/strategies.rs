//! Strategies for arbitrary messages.

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::fan_in::Branch;
use kaskade_policy::remote::price::{Cost, CostSource};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::super::*;
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
                // Without its feature `float_roundtrip`, serde_json may miss the last bit of a double; these values it
                // reads exactly.
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

pub(super) fn infer_request(json: bool) -> impl Strategy<Value = InferRequest> {
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

pub(super) fn infer_reply(json: bool) -> impl Strategy<Value = InferReply> {
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

pub(super) fn stage_request() -> impl Strategy<Value = StageRequest> {
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
                (id, attempt, epoch, gear, stream, optimistic, accept_below_threshold, return_to_ingress),
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
                    accept_below_threshold,
                    return_to_ingress,
                    inputs,
                }
            },
        )
}

pub(super) fn done() -> impl Strategy<Value = StageReply> {
    let children = proptest::collection::btree_map("[a-z]{1,6}", any::<u32>(), 0..3);
    let outputs = (
        vec(tensor(false), 0..4),
        option::of(probability()),
        any::<bool>(),
        children,
    )
        .prop_map(|(outputs, confidence, routed, children)| StageOutcome::Outputs {
            outputs,
            confidence,
            routed,
            children,
        });
    let part = (vec(tensor(false), 0..4), any::<(u32, u32)>());
    let part = (part, any::<bool>()).prop_map(|((outputs, (from, until)), once)| StageOutcome::Part {
        outputs,
        from,
        until,
        once,
    });
    let fault = (proptest::sample::select(Code::ALL), ".{0,20}")
        .prop_map(|(code, message)| StageOutcome::Fault(Fault::new(code, message)));
    (
        any::<(u64, u32)>(),
        branch(),
        "[a-z]{0,8}",
        "[a-z]{0,8}",
        hops(),
        prop_oneof![outputs, part, fault],
    )
        .prop_map(
            |((id, attempt), branch, stage, replica, hops, result)| StageReply {
                id,
                attempt,
                branch,
                stage,
                replica,
                hops,
                result,
            },
        )
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

fn model_interface() -> impl Strategy<Value = ModelInterface> {
    let tensor = || {
        ("[a-z]{1,8}", "[A-Z]{1,8}", vec(any::<i64>(), 0..4), any::<bool>()).prop_map(
            |(name, datatype, shape, optional)| TensorInterface {
                name,
                datatype,
                shape,
                optional,
            },
        )
    };
    (vec(tensor(), 0..3), vec(tensor(), 0..3), vec("[a-z]{0,8}", 0..3)).prop_map(
        |(inputs, outputs, labels)| ModelInterface {
            inputs,
            outputs,
            labels,
        },
    )
}

pub(super) fn beat() -> impl Strategy<Value = Heartbeat> {
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
            btree_map("[a-z]{1,8}", model_interface(), 0..3),
        ),
        btree_map("[a-z]{1,8}", fan_outs(), 0..3),
        btree_map("[a-z]{1,8}", runs(), 0..3),
    )
        .prop_map(
            |(
                actor,
                kind,
                replicas,
                ((queue, in_flight, epoch, sequence, instance, in_place, leaving), failed, models),
                fan_outs,
                runs,
            )| Heartbeat {
                models,
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
