//! `kaskade init`: writes the file of a new app.

use std::path::PathBuf;

use anyhow::ensure;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kaskade_app::config::Task;
use kaskade_app::config::scalar::SubjectToken;
use kaskade_app::init::{Draft, NewApp, Origin};
use kaskade_app::report::{self, units};
use serde_json::json;

use crate::args::Overwrite;
use crate::failure::Usage;
use crate::output;

/// Samples below which thresholds are uncertain.
const FEW_SAMPLES: usize = 1_000;

/// Writes the app.toml of a new app, from checkpoints or endpoints that exist.
///
/// `kaskade init reviews ...` writes reviews/app.toml and names the app `reviews`; without a folder it writes app.toml in the current one,
/// and names the app after it. The variants are ordered by their number of parameters; endpoints come last. The task is that of the
/// checkpoints. Paths become relative to the file. Nothing is written if a checkpoint or the data cannot be read.
#[derive(Debug, clap::Args)]
#[group(id = "sources", required = true, multiple = true, args = ["variant", "endpoint"])]
pub(crate) struct Args {
    /// Folder to write app.toml in; it is made if it does not exist, and names the app [default: the current folder].
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Checkpoint directory, GGUF file or ONNX file of a variant, named after it: `PATH` or `NAME=PATH`. May be repeated.
    #[arg(long, value_name = "PATH")]
    variant: Vec<Origin>,
    /// Address of an endpoint that speaks the OpenAI API, such as `https://api.example.com/v1`, with a `--model`: `URL`, or `NAME=URL` to
    /// name the variant, which is named after the model otherwise. May be repeated.
    #[arg(long, value_name = "URL", requires = "model")]
    endpoint: Vec<String>,
    /// Model of the endpoint, by the endpoint's name for it; one per `--endpoint`, in their order.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    model: Vec<String>,
    /// Environment variable with the key of the endpoints.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    key_env: Option<String>,
    /// Labelled samples to profile on: a file (JSON lines, CSV, TSV, Parquet), or a folder with splits or with a directory per class; a
    /// split `test` in it is the test set.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Labelled samples to report accuracy on, likewise.
    #[arg(long, value_name = "PATH", requires = "data")]
    test_data: Option<PathBuf>,
    /// Task of the variants [default: that of the checkpoints; `generation` for endpoints alone].
    #[arg(long, value_parser = task())]
    task: Option<Task>,
    /// Name of the app [default: that of the folder].
    #[arg(long, value_name = "NAME")]
    name: Option<SubjectToken>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Returns the parser of a task, by its name in app.toml.
fn task() -> impl TypedValueParser<Value = Task> {
    PossibleValuesParser::new(Task::ALL.map(Task::name)).try_map(|name| {
        let mut known = Task::ALL.into_iter();
        known.find(|task| task.name() == name).ok_or("unknown")
    })
}

/// Describes the app, writes its file and prints the next commands.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.endpoint.len() == args.model.len(),
        Usage::new("give one `--model` for each `--endpoint`")
    );
    let endpoints = args.endpoint.iter().zip(&args.model);
    let endpoints = endpoints.map(|(url, model)| Origin::endpoint(url, model, args.key_env.as_deref()));
    let app = NewApp {
        folder: args.folder.clone().unwrap_or_default(),
        name: args.name.clone(),
        task: args.task,
        origins: args.variant.iter().cloned().chain(endpoints).collect(),
        validation: args.data.clone(),
        test: args.test_data.clone(),
    };
    let file = app.file();
    args.overwrite.check([file.as_path()])?;
    let draft = app.draft()?;
    report::write_file(&draft.file, &draft.text)?;
    let next = draft.next_commands();
    if args.json {
        let variants = draft
            .variants
            .iter()
            .map(|variant| json!({"name": variant.name.as_str(), "parameters": variant.parameters}));
        return output::print_json(&json!({
            "file": draft.file,
            "name": draft.name,
            "task": draft.task.name(),
            "variants": variants.collect::<Vec<_>>(),
            "samples": draft.samples,
            "next": next,
        }));
    }
    output::print(&as_text(&draft, &next))
}

fn as_text(draft: &Draft, next: &[String]) -> String {
    let variants = draft.variants.iter().map(|variant| {
        let size = variant.parameters.map_or_else(
            || "behind an endpoint".to_owned(),
            |parameters| format!("{} parameters", units::count(parameters)),
        );
        format!("{} ({size})", variant.name)
    });
    let data = match draft.samples {
        None => "no labelled samples: add `[data.validation]` to the file before you profile".to_owned(),
        Some(few) if few < FEW_SAMPLES => format!(
            "{} validation samples: thresholds that are chosen on fewer than {} are uncertain",
            units::count(few as u64),
            units::count(FEW_SAMPLES as u64)
        ),
        Some(count) => format!("{} validation samples", units::count(count as u64)),
    };
    format!(
        "wrote {}: app `{}`, task {}\nvariants, smallest to largest by number of parameters: {}\n{data}\n\nnext:\n  {}",
        draft.file.display(),
        draft.name,
        draft.task.name(),
        variants.collect::<Vec<_>>().join(", "),
        next.join("\n  ")
    )
}
