//! Validates results of stages before they are used: a stage may be a foreign program.

use kaskade_models::check_outputs;

use crate::{
    error::{Code, Fault},
    subjects::MAX_TOKEN,
    wire::{StageOutcome, StageReply},
};

/// Replaces an invalid result by a [`Code::BadOutput`] fault. Invalid are: no outputs, an output that is empty, not
/// finite or does not match its shape, a confidence outside [0, 1], and a name that is too long to be valid.
pub fn checked(mut done: StageReply) -> StageReply {
    let checked = match &mut done.result {
        StageOutcome::Outputs {
            outputs,
            confidence,
            routed,
            children,
        } => {
            // A task that fanned out may have no outputs of its own.
            let none_needed = *routed && !children.is_empty() && outputs.is_empty();
            let outputs = std::mem::take(outputs);
            let outputs = if none_needed {
                Ok(outputs)
            } else {
                check_outputs(outputs)
            };
            check_confidence(*confidence).and_then(|()| outputs.map_err(Fault::from))
        }
        StageOutcome::Part { outputs, .. } => check_outputs(std::mem::take(outputs)).map_err(Fault::from),
        StageOutcome::Fault(_) => Ok(Vec::new()),
    };
    match check_names(&done).and(checked) {
        Ok(sound) => {
            if let StageOutcome::Outputs { outputs, .. } | StageOutcome::Part { outputs, .. } =
                &mut done.result
            {
                *outputs = sound;
            }
        }
        Err(fault) => {
            done.hops.clear();
            done.result = StageOutcome::Fault(fault);
        }
    }
    done
}

fn check_confidence(confidence: Option<f64>) -> Result<(), Fault> {
    match confidence {
        Some(value) if !(0.0..=1.0).contains(&value) => {
            Err(bad(&format!("the confidence is {value}; it must be in [0, 1]")))
        }
        _ => Ok(()),
    }
}

/// Checks the lengths of names, which go into replies and into requests to later stages.
fn check_names(done: &StageReply) -> Result<(), Fault> {
    let hops = done.hops.iter().map(|hop| &hop.stage);
    let mut names = hops.chain([&done.stage, &done.replica]);
    match names.find(|name| name.len() > MAX_TOKEN) {
        None => Ok(()),
        Some(long) => Err(bad(&format!("a name in it has {} bytes", long.len()))),
    }
}

fn bad(why: &str) -> Fault {
    Fault::new(
        Code::BadOutput,
        format!("the result of the stage is refused: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use kaskade_models::{Datatype, Tensor};
    use kaskade_policy::fan_in::Branch;

    use super::*;
    use crate::wire::Hop;

    fn done(result: StageOutcome) -> StageReply {
        StageReply {
            id: 1,
            attempt: 1,
            branch: Branch::ROOT,
            stage: "s".into(),
            replica: "r".into(),
            hops: Vec::new(),
            result,
        }
    }

    fn answer(outputs: Vec<Tensor>, confidence: Option<f64>, children: &[(&str, u32)]) -> StageReply {
        done(StageOutcome::Outputs {
            outputs,
            confidence,
            routed: true,
            children: children
                .iter()
                .map(|(task, count)| ((*task).into(), *count))
                .collect(),
        })
    }

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_f32("logits", &[values.len()], values).unwrap()
    }

    #[test]
    fn a_sound_result_passes_unchanged() {
        let part = StageOutcome::Part {
            outputs: vec![tensor(&[1.0])],
            from: 0,
            until: 1,
            once: false,
        };
        for sound in [
            answer(vec![tensor(&[0.5])], Some(1.0), &[]),
            answer(vec![tensor(&[0.5])], None, &[]),
            answer(Vec::new(), None, &[("classify", 0)]),
            done(part),
            done(StageOutcome::Fault(Fault::new(Code::ModelFailed, "why"))),
        ] {
            assert_eq!(checked(sound.clone()), sound);
        }
    }

    #[test]
    fn an_unsound_result_becomes_a_bad_output() {
        let torn = Tensor {
            name: "logits".into(),
            shape: vec![2],
            datatype: Datatype::F32,
            data: Bytes::from_static(&[0; 4]),
        };
        let part = |outputs| StageOutcome::Part {
            outputs,
            from: 0,
            until: 1,
            once: false,
        };
        let long = |size: usize| "x".repeat(size);
        let named = |stage: String, replica: String, hop: String| StageReply {
            stage,
            replica,
            hops: vec![Hop {
                stage: hop,
                ..Hop::default()
            }],
            ..answer(vec![tensor(&[1.0])], None, &[])
        };
        for unsound in [
            answer(vec![tensor(&[f32::NAN])], Some(0.99), &[]),
            answer(vec![tensor(&[1.0]), tensor(&[f32::NEG_INFINITY])], None, &[]),
            answer(Vec::new(), None, &[]),
            answer(vec![torn], None, &[]),
            answer(vec![tensor(&[1.0])], Some(f64::NAN), &[]),
            answer(vec![tensor(&[1.0])], Some(1.5), &[]),
            answer(vec![tensor(&[f32::NAN])], None, &[("classify", 1)]),
            done(part(vec![tensor(&[f32::NAN])])),
            named(long(65), String::new(), String::new()),
            named(String::new(), long(65), String::new()),
            named(String::new(), String::new(), long(65)),
            done(StageOutcome::Outputs {
                outputs: Vec::new(),
                confidence: None,
                routed: false,
                children: BTreeMap::from([("classify".into(), 1)]),
            }),
        ] {
            match checked(unsound.clone()).result {
                StageOutcome::Fault(fault) => assert_eq!(fault.code, Code::BadOutput, "{fault}"),
                passed => panic!("{unsound:?} passed as {passed:?}"),
            }
        }
    }
}
