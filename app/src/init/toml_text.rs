//! Writes the text of a new app file.

use std::fmt::Write as _;
use std::path::Path;

use super::samples::{Set, SetFormat, Sets};
use super::source::{Source, Variant};
use super::{InitError, paths};
use crate::config::Task;
use crate::config::scalar::SubjectToken;
use crate::report::units;

/// Returns the text of the app file. Paths are relative to `folder`, or absolute if it is `None`.
///
/// # Errors
/// [`InitError::NoClassNames`], and [`InitError::Path`] for a path that cannot be written.
pub(super) fn of(
    folder: Option<&Path>,
    (name, task): (&SubjectToken, Task),
    variants: &[Variant],
    sets: &Sets,
) -> Result<String, InitError> {
    let mut text = format!(
        "# An app of Kaskade; `kaskade schema app` prints every setting.\nname = {}\ntask = {}\n",
        quoted(name.as_str()),
        quoted(task.name())
    );
    text.push_str("# slo = { p95 = \"250ms\" }         # latency objective: the default\n");
    if task.has_confidence() {
        text.push_str(
            "# plan = { file = \"plan.json\" }   # written by `kaskade plan cascade`; default: the largest variant alone\n",
        );
    } else {
        let smallest = variants.first().map_or("NAME", |first| first.name.as_str());
        let _ = writeln!(
            text,
            "# plan = {{ single = {} }}   # default: the largest variant alone; answers of this task have no confidence, which a cascade needs",
            quoted(smallest)
        );
    }
    let endpoints = variants.iter().any(|variant| variant.parameters.is_none());
    text.push_str("\n# Smallest to largest, by number of parameters");
    text.push_str(if endpoints {
        "; endpoints last, since their size is unknown.\n"
    } else {
        ".\n"
    });
    for variant in variants {
        write_variant(&mut text, folder, task, (variant, variants))?;
    }
    write_sets(&mut text, folder, sets)?;
    Ok(text)
}

fn write_variant(
    text: &mut String,
    folder: Option<&Path>,
    task: Task,
    (variant, variants): (&Variant, &[Variant]),
) -> Result<(), InitError> {
    let _ = write!(text, "[[variants]]\nname = {}", quoted(variant.name.as_str()));
    if let Some(parameters) = variant.parameters {
        let _ = write!(text, "   # {} parameters", units::count(parameters));
    }
    text.push('\n');
    match &variant.source {
        Source::Checkpoint(path) => {
            let _ = writeln!(text, "dir = {}", stated(path, folder)?);
        }
        Source::Onnx(path) => {
            let _ = writeln!(text, "file = {}", stated(path, folder)?);
        }
        Source::Endpoint { url, model, key } => {
            let _ = write!(
                text,
                "\n[variants.remote]\nkind = \"openai\"\nbase_url = {}\nmodel = {}\n",
                quoted(url),
                quoted(model)
            );
            match key {
                Some(name) => {
                    let _ = writeln!(text, "api_key = {{ env = {} }}", quoted(name));
                }
                None => text.push_str("# api_key = { env = \"VARIABLE\" }\n"),
            }
            write_request(text, task, variant, variants)?;
        }
    }
    text.push('\n');
    Ok(())
}

/// Writes the request settings of an endpoint.
fn write_request(
    text: &mut String,
    task: Task,
    variant: &Variant,
    variants: &[Variant],
) -> Result<(), InitError> {
    match task {
        Task::Embedding | Task::Ranking => text.push_str("api = \"embeddings\"\n"),
        Task::Classification => {
            let mut named = variants.iter().map(|variant| &variant.classes);
            let Some(classes) = named.find(|classes| !classes.is_empty()) else {
                return Err(InitError::NoClassNames {
                    variant: variant.name.to_string(),
                });
            };
            let labels: Vec<String> = classes.iter().map(|class| quoted(class)).collect();
            let prompt = format!(
                "Which of these is the text: {}? Answer with one of them only.\n\n{{text}}",
                classes.join(", ")
            );
            let _ = writeln!(
                text,
                "labels = [{}]\nprompt = {}",
                labels.join(", "),
                quoted(&prompt)
            );
        }
        _ => {}
    }
    Ok(())
}

fn write_sets(text: &mut String, folder: Option<&Path>, sets: &Sets) -> Result<(), InitError> {
    match &sets.validation {
        Some(set) => write_set(text, folder, ("validation", "`profile` measures on these"), set)?,
        None => text.push_str(
            "# Labelled samples that `kaskade profile` measures on, and that thresholds are chosen on.\n\
             # [data.validation.records]\n# file = \"validation.jsonl\"\n",
        ),
    }
    if let Some(set) = &sets.test {
        text.push('\n');
        write_set(text, folder, ("test", "`bench` sends these"), set)?;
    }
    Ok(())
}

fn write_set(
    text: &mut String,
    folder: Option<&Path>,
    (name, used): (&str, &str),
    set: &Set,
) -> Result<(), InitError> {
    let path = stated(&set.path, folder)?;
    let (format, key) = match set.format {
        SetFormat::Records => ("records", "file"),
        SetFormat::Tsv => ("tsv", "file"),
        SetFormat::Folder { .. } => ("folder", "folder"),
    };
    let _ = writeln!(text, "[data.{name}.{format}]   # {used}\n{key} = {path}");
    if set.format == (SetFormat::Folder { is_split: false }) {
        text.push_str("split = \".\"\n");
    }
    Ok(())
}

/// Returns a path as written to the app file.
fn stated(path: &Path, folder: Option<&Path>) -> Result<String, InitError> {
    let stated = match folder {
        Some(folder) => paths::from_folder(path, folder),
        None => std::path::absolute(path),
    };
    let stated = stated.map_err(|source| InitError::Path {
        path: path.to_owned(),
        source,
    })?;
    Ok(quoted(&stated.to_string_lossy()))
}

/// Quotes a text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the error was that the current folder cannot be read.
    #[test]
    fn a_path_that_cannot_be_stated_is_named() {
        let error = stated(Path::new("../no/such/file"), Some(Path::new("reviews"))).unwrap_err();
        assert!(error.to_string().contains("`../no/such/file`"), "{error}");
    }
}
