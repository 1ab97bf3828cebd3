//! Derives the inputs and outputs of an app from the model interfaces that its workers announce.

use std::collections::{BTreeMap, BTreeSet};

use kaskade_actors::wire::{ModelInterface, TensorInterface};
use kaskade_policy::plan::{Edge, Exit, Plan};

use crate::apps::observed_signature::{ObservedSignature, TensorInfo, merge};

/// Alternative inputs of which a request needs one if the model requires none in particular; the easiest to build comes
/// first.
const ALTERNATIVES: [&str; 3] = ["text", "messages", "input_ids"];

/// Returns the inputs and outputs of an app: the required inputs of the variants that receive requests first, and the
/// outputs of all variants that may answer.
pub(super) fn of(models: &BTreeMap<&str, &ModelInterface>, plan: Option<&Plan>) -> ObservedSignature {
    let entries = plan.map(entries);
    let is_entry = |variant: &str| entries.as_ref().is_none_or(|entries| entries.contains(variant));
    let fans_out = plan.is_some_and(fans_out);
    let mut app = ObservedSignature::default();
    for (variant, model) in models {
        let is_entry = is_entry(variant);
        if is_entry {
            merge(&mut app.inputs, &infos(needed(&model.inputs)));
        }
        // In a pipeline, later tasks answer in branches of the reply, and outputs addressed to them are not outputs of
        // the app.
        if is_entry || !fans_out {
            let own = model.outputs.iter().filter(|output| !output.name.contains('/'));
            merge(&mut app.outputs, &infos(own));
        }
    }
    app
}

/// Returns the variants that receive requests first, in any gear; in a pipeline, all variants of the first task.
fn entries(plan: &Plan) -> BTreeSet<&str> {
    let wirings = plan.all_gears().map(|gear| &gear.wiring);
    let entries = wirings.flat_map(|wiring| {
        let named = |edge: &Edge| wiring.stages.iter().find(|stage| stage.name == edge.stage);
        let stages = wiring.members().filter_map(named);
        let siblings = stages.flat_map(|stage| wiring.siblings(stage));
        siblings.map(|stage| stage.variant.as_str())
    });
    entries.collect()
}

fn fans_out(plan: &Plan) -> bool {
    let mut stages = plan.all_gears().flat_map(|gear| &gear.wiring.stages);
    stages.any(|stage| matches!(stage.exit, Exit::FanOut { .. }))
}

/// Returns the inputs that a request needs. If all are optional, one is selected, because clients send every input that
/// the metadata lists.
fn needed(inputs: &[TensorInterface]) -> Vec<&TensorInterface> {
    let required: Vec<&TensorInterface> = inputs.iter().filter(|input| !input.optional).collect();
    if !required.is_empty() {
        return required;
    }
    let mut alternatives = ALTERNATIVES.iter();
    let known = alternatives.find_map(|name| inputs.iter().find(|input| input.name == *name));
    known.or(inputs.first()).into_iter().collect()
}

fn infos<'a>(tensors: impl IntoIterator<Item = &'a TensorInterface>) -> Vec<TensorInfo> {
    let infos = tensors.into_iter().filter_map(|tensor| {
        Some(TensorInfo {
            name: tensor.name.clone(),
            datatype: tensor.datatype()?,
            shape: tensor.shape.clone(),
        })
    });
    infos.collect()
}

#[cfg(test)]
mod tests {
    use kaskade_actors::wire::{Heartbeat, ReplicaBeat};
    use kaskade_models::Datatype;

    use super::super::AppState;
    use super::*;

    fn tensor(name: &str, shape: &[i64], optional: bool) -> TensorInterface {
        TensorInterface {
            name: name.to_owned(),
            datatype: "FP32".to_owned(),
            shape: shape.to_vec(),
            optional,
        }
    }

    fn model(inputs: &[TensorInterface], outputs: &[TensorInterface]) -> ModelInterface {
        ModelInterface {
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            labels: Vec::new(),
        }
    }

    fn names(infos: &[TensorInfo]) -> Vec<&str> {
        infos.iter().map(|info| info.name.as_str()).collect()
    }

    #[test]
    fn a_cascade_takes_what_its_first_stage_needs_and_gives_what_any_stage_does() {
        let text = |length| [tensor("input_ids", &[length], true), tensor("text", &[1], true)];
        let large = model(&[tensor("x", &[1], false)], &[tensor("logits", &[3], false)]);
        let outputs = [tensor("logits", &[2], false), tensor("label", &[1], false)];
        let small = model(&text(-1), &outputs);
        let models = BTreeMap::from([("large", &large), ("small", &small)]);
        let plan = Plan::cascade("a")
            .stage("s", "small")
            .below(0.5)
            .then("l", "large");
        let found = of(&models, Some(&plan.build().unwrap()));
        assert_eq!(names(&found.inputs), ["text"], "one of the alternatives");
        assert_eq!(names(&found.outputs), ["logits", "label"]);
        assert_eq!(
            (found.outputs[0].datatype, found.outputs[0].shape.as_slice()),
            (Datatype::F32, &[-1][..])
        );
        assert_eq!(
            names(&of(&models, None).inputs),
            ["x", "text"],
            "any may be first without a plan"
        );
    }

    #[test]
    fn inputs_that_a_request_may_omit_are_not_listed_beside_those_that_it_needs() {
        let inputs = [tensor("image", &[1, 8, 8], false), tensor("seed", &[1], true)];
        let strange = TensorInterface {
            datatype: "UNKNOWN".to_owned(),
            ..tensor("strange", &[1], false)
        };
        let known = model(&inputs, &[strange, tensor("next/image", &[2], false)]);
        let found = of(&BTreeMap::from([("v", &known)]), None);
        assert_eq!(names(&found.inputs), ["image"]);
        assert_eq!(found.inputs[0].shape, [1, 8, 8]);
        assert!(found.outputs.is_empty(), "{:?}", found.outputs);
    }

    fn beat(actor: &str, replicas: &[&str], models: &[(&str, ModelInterface)]) -> Heartbeat {
        let replicas = replicas.iter().map(|variant| ReplicaBeat {
            variant: (*variant).to_owned(),
            ..ReplicaBeat::default()
        });
        let models = models.iter().cloned();
        Heartbeat {
            actor: actor.to_owned(),
            replicas: replicas.collect(),
            models: models
                .map(|(variant, model)| (variant.to_owned(), model))
                .collect(),
            ..Heartbeat::default()
        }
    }

    /// Regression: announced models stayed until the gateway restarted, so the metadata listed outputs of replaced
    /// variants.
    #[test]
    fn only_models_of_the_plan_that_run_are_described() {
        let gives =
            |output: &str, size| model(&[tensor("x", &[1], false)], &[tensor(output, &[size], false)]);
        let plan = |variant: &str| {
            let plan = Plan::cascade("a").stage("s", variant).worker("w");
            plan.build().unwrap()
        };
        let app = AppState::new("a");
        let outputs = || app.interface().outputs;
        app.state().plans.stored(1, plan("old"));
        app.state()
            .beat(beat("w", &["old"], &[("old", gives("scores", 10))]));
        assert_eq!(names(&outputs()), ["scores"]);
        app.state().beat(beat("w", &["old"], &[]));
        assert_eq!(names(&outputs()), ["scores"], "most heartbeats describe no model");
        let both = [("old", gives("scores", 10)), ("new", gives("logits", 100))];
        app.state().beat(beat("w", &["old", "new"], &both));
        app.state().plans.stored(2, plan("new"));
        assert_eq!(
            (names(&outputs()), outputs()[0].shape.clone()),
            (vec!["logits"], vec![100])
        );
        app.state()
            .beat(beat("stranger", &["new"], &[("new", gives("other", 1))]));
        assert_eq!(names(&outputs()), ["logits"], "the plan places nothing there");
        app.state()
            .beat(beat("w", &["new"], &[("old", gives("scores", 10))]));
        assert!(outputs().is_empty(), "a heartbeat describes what it hosts");
    }

    #[test]
    fn names_of_classes_are_not_kept() {
        let app = AppState::new("a");
        let labels = vec!["n".repeat(100); 600];
        let named = ModelInterface {
            labels,
            ..model(&[tensor("x", &[1], false)], &[])
        };
        app.state().beat(beat("w", &["v"], &[("v", named)]));
        let state = app.state();
        assert_eq!(state.models().len(), 1);
        assert!(state.models().values().all(|model| model.labels.is_empty()));
    }

    /// Regression: only the stage named as entry counted, so a client built images that other variants of the task
    /// refuse.
    #[test]
    fn all_variants_of_the_first_task_are_entries() {
        let image = |size: i64| model(&[tensor("image", &[1, 3, size, size], false)], &[]);
        let (small, large) = (image(320), image(640));
        let models = BTreeMap::from([("small", &small), ("large", &large)]);
        let mut plan = Plan::cascade("a")
            .stage("s", "small")
            .below(0.5)
            .then("l", "large")
            .build()
            .unwrap();
        for stage in &mut plan.gears[0].wiring.stages {
            stage.task = Some("detect".to_owned());
            stage.exit = Exit::Reply;
        }
        assert_eq!(of(&models, Some(&plan)).inputs[0].shape, [1, 3, -1, -1]);
    }
}
