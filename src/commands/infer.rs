//! `kaskade infer`: sends one request to an app.

mod text;

use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use kaskade::models::entities;
use kaskade::models::images::image_file;
use kaskade::models::{Inputs, PROMPT_NAME, Tensor};
use kaskade_actors::wire;
use kaskade_actors::wire::{ContentType, InferReply};
use kaskade_app::config::data::DataSet;
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::config::{App, Task};
use kaskade_app::data::Label;
use kaskade_app::data::text_metric::Grading;
use kaskade_app::load::samples;
use kaskade_app::planning::initial;
use kaskade_app::ranker::{PASSAGES, QUERY};
use kaskade_app::report::progress::say;
use kaskade_app::serving::{self, Client, Service};
use serde_json::json;

use self::text::as_text;
use crate::app_address::TargetArgs;
use crate::args::Broker;
use crate::failure::Usage;
use crate::output;

/// Sends one request to an app and prints the answer, with the stages that it passed. With `--app` and without `--nats`, starts
/// the app in this process for this request.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Id of the request; `kaskade feedback` names it to send the right answer later. Must be unique per request.
    #[arg(long)]
    id: Option<String>,
    /// Time budget of the request [default: that of the app's file, otherwise 2s].
    #[arg(long, value_name = "TIME")]
    budget: Option<HumanDuration>,
    /// Print the answer of a language model token by token.
    #[arg(long, conflicts_with = "json")]
    stream: bool,
    /// Print the reply as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Inputs that are no text. An option of a text conflicts with each: clap does not ask for an argument that an option requires if it
/// conflicts with one that is given.
const NOT_TEXT: [&str; 4] = ["index", "tensors", "query", "image"];

/// Inputs that are no query.
const NOT_QUERY: [&str; 4] = ["index", "tensors", "text", "image"];

/// The inputs of a request.
#[derive(Debug, clap::Args)]
pub(crate) struct RequestArgs {
    #[command(flatten)]
    input: InputArgs,
    /// A second text, such as the context of a question.
    #[arg(long, requires = "text", conflicts_with_all = NOT_TEXT)]
    text_pair: Option<String>,
    /// A passage to rank for `--query`; repeated for each.
    #[arg(long = "passage", value_name = "TEXT", requires = "query", conflicts_with_all = NOT_QUERY)]
    passages: Vec<String>,
    /// How a token classifier finds entities: `none`, `simple`, `first`, `average` or `max` [default: that of the service].
    #[arg(long, value_name = "NAME", requires = "text", conflicts_with_all = NOT_TEXT)]
    aggregation_strategy: Option<String>,
    /// Prompt of an embedding model that is put in front of the text, such as `query`, by its name in
    /// `config_sentence_transformers.json` [default: that of the model].
    #[arg(long, value_name = "NAME", requires = "text", conflicts_with_all = NOT_TEXT)]
    prompt_name: Option<String>,
    /// Maximum number of tokens to generate [default: that of the service].
    #[arg(long, value_name = "N", requires = "text", conflicts_with_all = NOT_TEXT)]
    max_tokens: Option<NonZeroU32>,
}

/// The inputs; exactly one of them.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct InputArgs {
    /// A sample of the test set in the app's file (without one, of the validation set), by its number from 0. Needs `--app`.
    #[arg(long, value_name = "NUMBER")]
    index: Option<usize>,
    /// Tensors as Open Inference Protocol JSON (`{"inputs": [{"name", "shape", "datatype", "data"}]}`); `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    tensors: Option<PathBuf>,
    /// A text.
    #[arg(long)]
    text: Option<String>,
    /// A query that passages are ranked for.
    #[arg(long, value_name = "TEXT", requires = "passages")]
    query: Option<String>,
    /// An image: a PNG, JPEG, WebP, GIF or BMP file, for models with a `preprocessor_config.json`.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

/// The right answer to a request, and how it is compared.
pub(crate) struct Expected {
    label: Label,
    grading: Grading,
}

/// Sends the request and prints the answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let (inputs, label) = args.request.read(target.app())?;
    let (bus, service) = match target.in_process() {
        Some(app) => {
            let bus = target.shared(app, "infer");
            (bus.clone(), Some(whole(app, bus)?))
        }
        None => (target.client("infer"), None),
    };
    let budget = target.budget(args.budget);
    let reply = serving::runtime()?.block_on(async {
        let client = Client::connect_with(bus, target.name()).await?.budget(budget);
        let mut request = client.tensors(inputs);
        if let Some(id) = &args.id {
            request = request.id(id);
        }
        if args.stream {
            let mut shown = false;
            let part = |part: InferReply| {
                shown |= show(&part);
            };
            let reply = request.stream(part).await;
            if shown {
                output::print("")?;
            }
            return anyhow::Ok((reply?, shown));
        }
        anyhow::Ok((request.send().await?, false))
    });
    if let Some(service) = service {
        service.stop();
    }
    let (reply, shown) = reply?;
    if shown {
        output::print(&as_text(&reply, label.as_ref(), true))?;
    } else {
        report_on(&reply, label.as_ref(), args.json)?;
    }
    match &args.id {
        Some(id) if !args.json => output::print(&format!("id {id}")),
        _ => Ok(()),
    }
}

/// Prints a reply, and the right answer if it is known.
pub(crate) fn report_on(reply: &InferReply, label: Option<&Expected>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_json(&as_json(reply, label)?);
    }
    output::print(&as_text(reply, label, false))
}

/// Prints a piece of an answer, and returns whether it has a text. If standard output is closed, the request continues.
fn show(part: &InferReply) -> bool {
    let texts = part.outputs.iter().filter(|output| output.name == "text");
    let mut out = std::io::stdout().lock();
    let mut shown = false;
    for text in texts.filter_map(|text| text.to_texts().ok()).flatten() {
        shown = true;
        let _ = write!(out, "{text}").and_then(|()| out.flush());
    }
    shown
}

/// Starts the whole app in this process, with the plan of its file.
fn whole(app: &App, bus: kaskade_actors::bus::BusConfig) -> anyhow::Result<Service> {
    let plan = initial::of(app)?;
    say(&format!(
        "serving `{}` in this process for this request, plan {}",
        app.name, plan.made_by
    ));
    let service = Service::builder(app).on_first_worker().plan(plan).bus(bus);
    Ok(service.start()?)
}

impl RequestArgs {
    /// Returns the inputs, and the right answer if it is known.
    pub(crate) fn read(&self, app: Option<&App>) -> anyhow::Result<(Inputs, Option<Expected>)> {
        let InputArgs {
            index,
            tensors,
            text,
            query,
            image,
        } = &self.input;
        if let Some(query) = query {
            let passages: Vec<&str> = self.passages.iter().map(String::as_str).collect();
            let query = Tensor::from_texts(QUERY, &[query])?;
            return Ok((vec![query, Tensor::from_texts(PASSAGES, &passages)?], None));
        }
        match (index, tensors, text, image) {
            (Some(index), ..) => {
                let app = app.ok_or_else(|| {
                    Usage::new("`--index` needs the data sets of an app's file: give `--app FILE`")
                })?;
                let (inputs, label) = sample(app, *index)?;
                let grading = Grading::from_data_sets(&app.data);
                let known = label != Label::Unknown;
                Ok((inputs, known.then_some(Expected { label, grading })))
            }
            (_, Some(path), ..) => Ok((read_tensors(path)?, None)),
            (_, _, _, Some(path)) => {
                let bytes =
                    std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
                Ok((vec![image_file(&bytes)?], None))
            }
            (_, _, Some(text), _) => {
                ensure!(
                    self.text_pair.is_some() || app.is_none_or(|app| app.task != Task::Reranking),
                    Usage::new(
                        "a reranker scores a query with a text: give both, `--text QUERY --text-pair TEXT`"
                    )
                );
                let mut inputs = vec![Tensor::from_texts("text", &[text])?];
                if let Some(pair) = &self.text_pair {
                    inputs.push(Tensor::from_texts("text_pair", &[pair])?);
                }
                if let Some(strategy) = &self.aggregation_strategy {
                    inputs.push(Tensor::from_texts(entities::AGGREGATION_STRATEGY, &[strategy])?);
                }
                if let Some(prompt) = &self.prompt_name {
                    inputs.push(Tensor::from_texts(PROMPT_NAME, &[prompt])?);
                }
                if let Some(most) = self.max_tokens {
                    inputs.push(Tensor::from_i64("max_tokens", &[1], &[most.get().into()])?);
                }
                Ok((inputs, None))
            }
            _ => bail!(
                "there are no inputs; give one of `--text`, `--query`, `--image`, `--tensors`, `--index`"
            ),
        }
    }
}

fn sample(app: &App, index: usize) -> anyhow::Result<(Inputs, Label)> {
    let set = app.data.test.as_ref().or(app.data.validation.as_ref());
    let set = set.context("the app names no set (`data.test`) to take a sample from")?;
    ensure!(
        !matches!(set, DataSet::Scenes(_)),
        "`--index` reads no scenes; send the image of one with `--tensors FILE`"
    );
    let samples = samples::read(app, set)?;
    let found = samples.inputs.get(index).zip(samples.labels.get(index));
    let (inputs, label) = found.with_context(|| {
        format!(
            "there is no sample {index}; the set has 0 to {}",
            samples.len().saturating_sub(1)
        )
    })?;
    Ok((inputs.clone(), label.clone()))
}

fn read_tensors(path: &Path) -> anyhow::Result<Inputs> {
    let mut body = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .read_to_end(&mut body)
            .context("standard input cannot be read")?;
    } else {
        body = std::fs::read(path).with_context(|| {
            format!(
                "{} cannot be read; give a file of Open Inference Protocol JSON, such as {{\"inputs\": [...]}}",
                path.display()
            )
        })?;
    }
    let request = wire::decode_infer(ContentType::Json, &Bytes::from(body))
        .with_context(|| format!("{} holds no tensors", path.display()))?;
    Ok(request.inputs)
}

fn as_json(reply: &InferReply, label: Option<&Expected>) -> anyhow::Result<serde_json::Value> {
    let body = wire::encode_reply(ContentType::Json, reply)?;
    let mut value: serde_json::Value = serde_json::from_slice(&body)?;
    if let (Some(object), Some(label)) = (value.as_object_mut(), label) {
        object.insert("label".to_owned(), json!(label.label));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use kaskade::models::Datatype;
    use kaskade_actors::wire::Hop;
    use kaskade_policy::remote::price::{Cost, CostSource};

    use super::*;

    /// An option of other inputs than those that are given was ignored.
    #[test]
    fn an_option_of_other_inputs_is_wrong_usage() {
        let parse = |command: &str, line: &str| {
            let words = ["kaskade", command, "chat"].into_iter().chain(line.split(' '));
            crate::command().try_get_matches_from(words)
        };
        for line in [
            "--text a --passage b",
            "--query a --passage b --text-pair c",
            "--index 0 --max-tokens 3",
            "--tensors a.json --prompt-name q",
            "--image a.png --aggregation-strategy first",
            "--index 0 --passage b",
        ] {
            assert!(parse("infer", line).is_err(), "{line}");
        }
        for line in [
            "--text a --text-pair b --max-tokens 3 --prompt-name q --aggregation-strategy first",
            "--query a --passage b --passage c",
            "--image a.png",
        ] {
            assert!(parse("infer", line).is_ok(), "{line}");
        }
        assert!(parse("submit", "--index 0 --max-tokens 3").is_err());
    }

    #[test]
    fn a_reply_shows_its_numbers_and_what_each_stage_cost() {
        let cost = Tensor {
            name: "cost".to_owned(),
            shape: vec![1],
            datatype: Datatype::F64,
            data: Bytes::copy_from_slice(&0.0018_f64.to_le_bytes()),
        };
        let hop = |stage: &str, amount: Option<f64>| Hop {
            stage: stage.to_owned(),
            cost: amount.map(|amount| Cost {
                amount,
                source: CostSource::Priced,
            }),
            ..Hop::default()
        };
        let reply = InferReply {
            outputs: vec![Tensor::from_i64("usage", &[2], &[100, 40]).unwrap(), cost],
            hops: vec![hop("small", Some(0.0)), hop("large", Some(0.0018))],
            ..InferReply::default()
        };
        let text = as_text(&reply, None, false);
        for shown in ["[100, 40]", "[0.0018]", "0 (priced)", "0.00180 (priced)"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        let entities = InferReply {
            outputs: vec![
                Tensor::from_texts("entities", &["PER"]).unwrap(),
                Tensor::from_texts("entity_words", &["eva"]).unwrap(),
                Tensor::from_i64("entity_spans", &[1, 2], &[4, 7]).unwrap(),
            ],
            ..InferReply::default()
        };
        let expected = Expected {
            label: Label::text("4-7 LOC"),
            grading: Grading::default(),
        };
        let text = as_text(&entities, Some(&expected), false);
        for shown in ["PER", "4-7", "eva", "but it is \"4-7 LOC\""] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        let unpriced = InferReply {
            hops: vec![hop("small", None)],
            ..reply
        };
        assert!(!as_text(&unpriced, None, false).contains("money"));
    }

    /// The text of a stream was printed three times.
    #[test]
    fn a_text_that_was_streamed_is_not_in_the_report() {
        let reply = InferReply {
            outputs: vec![
                Tensor::from_texts("text", &["be, that"]).unwrap(),
                Tensor::from_i64("usage", &[2], &[4, 2]).unwrap(),
            ],
            ..InferReply::default()
        };
        assert_eq!(as_text(&reply, None, false).matches("be, that").count(), 2);
        let text = as_text(&reply, None, true);
        assert!(!text.contains("be, that") && text.contains("usage"), "{text}");
        let expected = Expected {
            label: Label::text("be, that"),
            grading: Grading::default(),
        };
        let text = as_text(&reply, Some(&expected), true);
        assert!(text.contains("the answer above, which is right"), "{text}");
    }
}
