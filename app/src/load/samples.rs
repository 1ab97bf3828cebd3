//! Reads the samples of an app as client requests, without loading a model if the checkpoint's files state its inputs.

use std::path::Path;

use kaskade_models::images::IMAGE_FILE;
use kaskade_models::{Checkpoint, Datatype, Extent, InputSpec, Signature};

use super::error::LoadRequestError;
use crate::config::data::DataSet;
use crate::config::{App, Task};
use crate::data::{RequestForm, Samples};
use crate::family::{Family, FamilyError, Source, VariantSpec};
use crate::ranker::{PASSAGES, QUERY};

/// Reads a set of an app without a pipeline; samples may lack labels. The smallest variant is loaded only if no file
/// states its inputs, such as the name and shape of an image tensor.
///
/// # Errors
/// [`LoadRequestError`] if the set cannot be read, or the models do not accept it.
pub fn read(app: &App, set: &DataSet) -> Result<Samples, LoadRequestError> {
    let family = Family::from_app(app);
    if matches!(set, DataSet::Idx(_)) {
        return loaded(&family, set);
    }
    let mut forms = family.members.iter().filter_map(form);
    match forms.next() {
        Some(form) => Ok(Samples::read_in_form(set, &form)?),
        None => loaded(&family, set),
    }
}

fn loaded(family: &Family, set: &DataSet) -> Result<Samples, LoadRequestError> {
    let first = family.members.first().ok_or(FamilyError::Empty)?;
    Ok(Samples::read_labelled_or_not(set, &first.load(first.device)?)?)
}

/// Returns the request form of a variant as stated by the checkpoint's files; `None` if they do not state it.
fn form(member: &VariantSpec) -> Option<RequestForm> {
    let Source::Directory(dir) = &member.source else {
        return None;
    };
    let checkpoint = Checkpoint::open(dir).ok()?;
    let classifies = matches!(
        member.task,
        Task::Classification | Task::MultiLabel | Task::TokenClassification
    );
    let labels = if !member.classes.names().is_empty() {
        member.classes.names().to_vec()
    } else if classifies {
        checkpoint.config.labels().ok()?
    } else {
        Vec::new()
    };
    let mut inputs = Vec::new();
    if checkpoint.tokenizer.is_some() || is_gguf(dir) {
        inputs.extend(match member.task {
            Task::Generation => vec![one("text"), one("messages")],
            Task::Ranking => vec![one(QUERY), any_number(PASSAGES)],
            _ => vec![one("text"), one("text_pair")],
        });
    }
    if checkpoint.preprocessor.is_some() {
        inputs.push(one(IMAGE_FILE));
    }
    // Without such inputs the model reads tensors, whose names the files do not state.
    (!inputs.is_empty()).then(|| RequestForm {
        task: member.task.answers(),
        labels,
        signature: Signature { inputs },
    })
}

/// Returns whether the checkpoint is a GGUF file, which contains its tokenizer.
fn is_gguf(dir: &Path) -> bool {
    dir.extension().is_some_and(|extension| extension == "gguf")
}

fn one(name: &str) -> InputSpec {
    InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)])
}

fn any_number(name: &str) -> InputSpec {
    InputSpec::optional(name, Datatype::Bytes, vec![Extent::UpTo(usize::MAX)])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kaskade_testkit::ROOT;

    use super::*;
    use crate::data::Label;

    /// Returns an app with an ONNX file, and a checkpoint whose weight file has only a header.
    fn app(folder: &Path, fixture: &str, set: &str) -> App {
        let fixture = PathBuf::from(ROOT).join("models/fixtures").join(fixture);
        let dir = folder.join("large");
        std::fs::create_dir(&dir).unwrap();
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            std::fs::copy(fixture.join(name), dir.join(name)).unwrap();
        }
        let app = format!(
            "name = \"a\"\nplan = {{ single = \"small\" }}\n[[variants]]\nname = \"small\"\nfile = {:?}\n[[variants]]\nname = \"large\"\n\
             dir = {dir:?}\n[data.test.records]\nfile = {set:?}\n",
            folder.join("small.onnx"),
        );
        App::parse(&app).unwrap()
    }

    /// Regression: a load generator needed ONNX Runtime and the weights of the smallest variant.
    #[test]
    fn samples_are_read_without_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set.csv");
        std::fs::write(&set, "text,label\nthe sea,positive\nthe shore,0\nthe sand,\n").unwrap();
        let app = app(folder.path(), "bert-classification", &set.display().to_string());
        let samples = read(&app, app.data.test.as_ref().unwrap()).unwrap();
        assert!(matches!(
            samples.labels[..],
            [Label::Class(_), Label::Class(0), Label::Unknown]
        ));
        assert_eq!(samples.inputs[0][0].to_texts().unwrap(), ["the sea"]);
        std::fs::write(&set, "text,label\nthe sea,nowhere\n").unwrap();
        assert!(read(&app, app.data.test.as_ref().unwrap()).is_err());
    }
}
