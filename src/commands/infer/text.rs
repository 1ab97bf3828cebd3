//! Replies as text for people.

use kaskade::models::{Datatype, Tensor, entities};
use kaskade_actors::wire::{Hop, InferReply};
use kaskade_app::data::Label;
use kaskade_app::data::reply::label_of;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;

use super::Expected;

/// Formats a reply for people; without its text if that is `shown` already.
pub(super) fn as_text(reply: &InferReply, label: Option<&Expected>, shown: bool) -> String {
    let mut lines = Vec::new();
    let found = entities::of_outputs(&reply.outputs).ok().flatten();
    if let Some(found) = &found {
        lines.push(listed(found));
    }
    if let Some(logit) = only_logit(&reply.outputs).filter(|_| label.is_none()) {
        // Rerankers and classifiers of one class.
        lines.push(format!("score {:.4}", 1.0 / (1.0 + (-logit).exp())));
    } else if let Ok(answer) = label_of(&reply.outputs) {
        lines.extend(verdict(&answer, label, found.is_some(), shown));
    }
    for output in reply
        .outputs
        .iter()
        .filter(|output| !shown || output.name != "text")
    {
        lines.push(format!(
            "{} {} {:?}: {}",
            output.name,
            output.datatype.name(),
            output.shape,
            preview(output)
        ));
    }
    let confidence = reply.confidence.map_or_else(
        || "without a calibrated confidence".to_owned(),
        |confidence| format!("confidence {confidence:.4}"),
    );
    let degraded = if reply.degraded {
        ", degraded: the next stage was unavailable"
    } else {
        ""
    };
    lines.push(format!(
        "answered by {} in stage {}, {confidence}{degraded}",
        reply.variant, reply.stage
    ));
    lines.push(times(&reply.hops));
    lines.join("\n")
}

/// Returns the logit of a model that gives only one.
fn only_logit(outputs: &[Tensor]) -> Option<f32> {
    let logits = outputs.iter().find(|output| output.name == "logits")?;
    match logits.to_f32().ok()?.as_slice() {
        [logit] => Some(*logit),
        _ => None,
    }
}

/// Returns the answer and whether it is right; nothing of what is printed already: the entities, or the text if it is `shown`.
fn verdict(answer: &Label, label: Option<&Expected>, has_entities: bool, shown: bool) -> Option<String> {
    let verdict = match label {
        Some(expected) if expected.grading.accepts(&expected.label, answer) => ", which is right".to_owned(),
        Some(expected) => format!(", but it is {}", expected.label),
        None => String::new(),
    };
    let what = match answer {
        Label::Class(_) => "class ",
        Label::Classes(_) => "classes ",
        _ => "",
    };
    let is_shown = shown && matches!(answer, Label::Text(_));
    match (has_entities || is_shown, label) {
        (true, None) => None,
        (true, Some(_)) if is_shown => Some(format!("the answer above{verdict}")),
        (true, Some(_)) => Some(format!("{answer}{verdict}")),
        _ => Some(format!("{what}{answer}{verdict}")),
    }
}

/// Returns the times of the stages as a table; with their costs if any is known.
fn times(hops: &[Hop]) -> String {
    let micros = |micros: u32| units::seconds(f64::from(micros) / 1e6);
    let heads = [
        ("stage", Align::Left),
        ("waited", Align::Right),
        ("ran", Align::Right),
        ("batch", Align::Right),
    ];
    let times = hops.iter().map(|hop| {
        let (waited, ran) = (micros(hop.wait_us), micros(hop.run_us));
        [hop.stage.clone(), waited, ran, hop.batch.to_string()]
    });
    if hops.iter().all(|hop| hop.cost.is_none()) {
        return table(heads, times);
    }
    let [stage, waited, ran, batch] = heads;
    let costs = hops.iter().map(|hop| {
        let (amount, source) = hop.cost.map(|cost| (cost.amount, cost.source)).unzip();
        units::money_with_source(amount, source)
    });
    table(
        [stage, waited, ran, batch, ("money", Align::Right)],
        times
            .zip(costs)
            .map(|([stage, waited, ran, batch], cost)| [stage, waited, ran, batch, cost]),
    )
}

/// Formats the entities of a text as a table.
fn listed(entities: &[entities::Entity]) -> String {
    if entities.is_empty() {
        return "no entities".to_owned();
    }
    let heads = [
        ("entity", Align::Left),
        ("score", Align::Right),
        ("characters", Align::Right),
        ("word", Align::Left),
    ];
    let rows = entities.iter().map(|entity| {
        let characters = format!("{}-{}", entity.start, entity.end);
        [
            entity.label.clone(),
            format!("{:.4}", entity.score),
            characters,
            entity.word.clone(),
        ]
    });
    table(heads, rows)
}

/// The first few elements.
fn preview(tensor: &Tensor) -> String {
    const SHOWN: usize = 12;
    if let Ok(texts) = tensor.to_texts() {
        return texts.join(" | ");
    }
    let list = |count: usize, shown: Vec<String>| {
        let more = if count > SHOWN { ", ..." } else { "" };
        format!("[{}{more}]", shown.join(", "))
    };
    if let Ok(values) = tensor.to_f32() {
        let shown = values.iter().take(SHOWN).map(|value| format!("{value:.3}"));
        return list(values.len(), shown.collect());
    }
    if let Ok(values) = tensor.to_i64() {
        let shown = values.iter().take(SHOWN).map(ToString::to_string);
        return list(values.len(), shown.collect());
    }
    if tensor.datatype == Datatype::F64 {
        let values = tensor
            .data
            .chunks_exact(8)
            .filter_map(|bytes| bytes.try_into().ok());
        let values: Vec<f64> = values.map(f64::from_le_bytes).collect();
        let shown = values.iter().take(SHOWN).map(ToString::to_string);
        return list(values.len(), shown.collect());
    }
    format!("{} bytes", tensor.data.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It printed "class 0".
    #[test]
    fn a_single_logit_is_a_score() {
        let reply = |logits: &[f32]| InferReply {
            outputs: vec![Tensor::from_f32("logits", &[logits.len()], logits).unwrap()],
            ..InferReply::default()
        };
        let text = as_text(&reply(&[1.4265]), None, false);
        assert!(
            text.starts_with("score 0.8064\n") && !text.contains("class"),
            "{text}"
        );
        assert!(as_text(&reply(&[0.0, 1.0]), None, false).starts_with("class 1\n"));
    }
}
