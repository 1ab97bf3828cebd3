//! `kaskade infer`: asks an app once.

use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use kaskade::models::{Inputs, Tensor};
use kaskade_actors::wire;
use kaskade_actors::wire::{ContentType, InferReply};
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::data::reply::label_of;
use kaskade_app::data::{Label, Samples};
use kaskade_app::family::Family;
use kaskade_app::planning::initial;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving::{self, Client, Service};
use serde_json::json;

use crate::args::Broker;
use crate::output;

/// Asks an app once and prints the answer, with the stages it took. Without a nats-server, the app is started for this one
/// question.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    #[command(flatten)]
    asked: Asked,
    /// Time budget; the app's own where absent.
    #[arg(long, value_name = "TIME")]
    budget: Option<Span>,
    /// Print a language model's answer while it is made.
    #[arg(long, conflicts_with = "json")]
    stream: bool,
    /// Print the reply as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// What is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    question: Question,
    /// A second text, such as the context of a question.
    #[arg(long, requires = "text")]
    text_pair: Option<String>,
    /// Most tokens of a language model's answer; the app's own where absent.
    #[arg(long, value_name = "N", requires = "text")]
    max_tokens: Option<NonZeroU32>,
}

/// The one thing that must be given.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Question {
    /// A sample of the app's test set (or its validation set, where it has no other), by its number from 0.
    #[arg(long, value_name = "NUMBER")]
    index: Option<usize>,
    /// Tensors as Open Inference Protocol JSON (`{"inputs": [{"name", "shape", "datatype", "data"}]}`); `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    tensors: Option<PathBuf>,
    /// A text.
    #[arg(long)]
    text: Option<String>,
}

/// Asks and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    let (inputs, label) = args.asked.read(&app)?;
    let bus = args.broker.connection().bus(&app, "infer");
    let service = match args.broker.connection().url(&app) {
        Some(_) => None,
        None => Some(whole(&app, bus.clone())?),
    };
    let budget = args.budget.unwrap_or(app.ingress.default_budget).duration();
    let reply = serving::runtime()?.block_on(async {
        let client = Client::open(app.name.as_str(), bus, budget).await?;
        if args.stream {
            let mut shown = false;
            let part = |part: InferReply| {
                shown = true;
                show(&part);
            };
            let reply = client.stream(inputs, part).await;
            if shown {
                output::print("")?;
            }
            return anyhow::Ok(reply?);
        }
        anyhow::Ok(client.ask(inputs).await?)
    });
    if let Some(service) = service {
        service.stop();
    }
    report_on(&reply?, label.as_ref(), args.json)
}

/// Prints a reply, beside the right answer where it is known.
pub(crate) fn report_on(reply: &InferReply, label: Option<&Label>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_json(&as_json(reply, label)?);
    }
    output::print(&as_text(reply, label))
}

/// Prints what is new of an answer. Whoever does not listen any more gets the whole later.
fn show(part: &InferReply) {
    let texts = part.outputs.iter().filter(|output| output.name == "text");
    let mut out = std::io::stdout().lock();
    for text in texts.filter_map(|text| text.to_texts().ok()).flatten() {
        let _ = write!(out, "{text}").and_then(|()| out.flush());
    }
}

/// The whole app in this process, by its own plan.
fn whole(app: &App, bus: kaskade_actors::bus::BusConfig) -> anyhow::Result<Service> {
    let worker = app
        .workers
        .first()
        .context("the app has no workers")?
        .name
        .as_str();
    let plan = initial::of(app)?;
    let service = Service::builder(app).worker(worker).plan(plan).bus(bus);
    Ok(service.start()?)
}

impl Asked {
    /// The inputs, and the right answer where it is known.
    pub(crate) fn read(&self, app: &App) -> anyhow::Result<(Inputs, Option<Label>)> {
        let Question { index, tensors, text } = &self.question;
        match (index, tensors, text) {
            (Some(index), _, _) => {
                let (inputs, label) = sample(app, *index)?;
                Ok((inputs, Some(label)))
            }
            (_, Some(path), _) => Ok((read_tensors(path)?, None)),
            (_, _, Some(text)) => {
                let mut inputs = vec![Tensor::from_texts("text", &[text])?];
                if let Some(pair) = &self.text_pair {
                    inputs.push(Tensor::from_texts("text_pair", &[pair])?);
                }
                if let Some(most) = self.max_tokens {
                    inputs.push(Tensor::from_i64("max_tokens", &[1], &[most.get().into()])?);
                }
                Ok((inputs, None))
            }
            _ => bail!("there is no question; give one of `--index`, `--tensors`, `--text`"),
        }
    }
}

fn sample(app: &App, index: usize) -> anyhow::Result<(Inputs, Label)> {
    let set = app.data.test.as_ref().or(app.data.validation.as_ref());
    let set = set.context("the app names no labelled set (`data.test`) to take a sample from")?;
    // The smallest model says as well as any what the family takes.
    let family = Family::of(app);
    let smallest = family.members.first().context("the app has no variants")?;
    let signature = smallest.load(smallest.device)?.model.signature();
    let samples = Samples::read(set, &signature)?;
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
        body = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    }
    let request = wire::decode_infer(ContentType::Json, &Bytes::from(body))
        .with_context(|| format!("{} holds no tensors", path.display()))?;
    Ok(request.inputs)
}

fn as_json(reply: &InferReply, label: Option<&Label>) -> anyhow::Result<serde_json::Value> {
    let body = wire::encode_reply(ContentType::Json, reply)?;
    let mut value: serde_json::Value = serde_json::from_slice(&body)?;
    if let (Some(object), Some(label)) = (value.as_object_mut(), label) {
        object.insert("label".to_owned(), json!(label));
    }
    Ok(value)
}

/// An answer for people.
fn as_text(reply: &InferReply, label: Option<&Label>) -> String {
    let mut lines = Vec::new();
    if let Ok(said) = label_of(&reply.outputs) {
        let verdict = match label {
            Some(label) if *label == said => ", which is right".to_owned(),
            Some(label) => format!(", but it is {label}"),
            None => String::new(),
        };
        let what = match said {
            Label::Class(_) => "class ",
            Label::Text(_) => "",
        };
        lines.push(format!("{what}{said}{verdict}"));
    }
    for output in &reply.outputs {
        lines.push(format!(
            "{} {} {:?}: {}",
            output.name,
            output.datatype.name(),
            output.shape,
            preview(output)
        ));
    }
    let confidence = reply.confidence.map_or_else(
        || "none stated".to_owned(),
        |confidence| format!("{confidence:.4}"),
    );
    let degraded = if reply.degraded {
        ", degraded: a larger model was meant to answer"
    } else {
        ""
    };
    lines.push(format!(
        "answered by {} in stage {}, confidence {confidence}{degraded}",
        reply.variant, reply.stage
    ));
    let micros = |micros: u32| units::seconds(f64::from(micros) / 1e6);
    lines.push(table(
        [
            ("stage", Align::Left),
            ("waited", Align::Right),
            ("ran", Align::Right),
            ("batch", Align::Right),
        ],
        reply.hops.iter().map(|hop| {
            let (waited, ran) = (micros(hop.wait_us), micros(hop.run_us));
            [hop.stage.clone(), waited, ran, hop.batch.to_string()]
        }),
    ));
    lines.join("\n")
}

/// The first few elements.
fn preview(tensor: &Tensor) -> String {
    const SHOWN: usize = 12;
    if let Ok(texts) = tensor.to_texts() {
        return texts.join(" | ");
    }
    let Ok(values) = tensor.to_f32() else {
        return format!("{} bytes", tensor.data.len());
    };
    let shown: Vec<String> = values
        .iter()
        .take(SHOWN)
        .map(|value| format!("{value:.3}"))
        .collect();
    let more = if values.len() > SHOWN { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}
