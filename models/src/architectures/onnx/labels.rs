//! Class names of a graph, and the output `label`.

use std::collections::HashMap;

use serde::Deserialize;

use super::scores::LOGITS;
use crate::checkpoint::{Config, LoadError};
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor::Tensor;
use crate::tasks::classification::best_class;

/// Name of the output with the name of the best class.
pub(super) const LABEL: &str = "label";

/// Class names, in the order of the scores.
#[derive(Debug, Default)]
pub(super) struct Labels {
    names: Vec<String>,
    /// Whether the names are stated somewhere, and are not numbers.
    named: bool,
}

/// Class names as a value of a file's metadata.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stated {
    List(Vec<String>),
    Map(HashMap<String, String>),
}

/// Parses class names from a value of a file's metadata; `None` if it contains none.
fn stated(value: &str) -> Option<Vec<String>> {
    match serde_json::from_str(value).ok()? {
        Stated::List(names) => Some(names),
        Stated::Map(names) => (0..names.len())
            .map(|class| names.get(&class.to_string()).cloned())
            .collect(),
    }
}

impl Labels {
    /// Finds the names of `classes` classes, if their number is known: `id2label` of `config.json`, else the file's
    /// metadata, else the names that its nodes list, as in classifiers of scikit-learn; otherwise `LABEL_0`,
    /// `LABEL_1`, ...
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an `id2label` with gaps.
    pub(super) fn find(
        config: Option<&Config>,
        metadata: &[String],
        listed: &[String],
        classes: Option<usize>,
    ) -> Result<Self, LoadError> {
        let fits =
            |names: &Vec<String>| names.len() > 1 && classes.is_none_or(|classes| classes == names.len());
        if let Some(config) = config
            && config.optional::<serde_json::Value>("id2label")?.is_some()
        {
            let stated = config.labels()?;
            let problem = config.optional::<String>("problem_type")?;
            let is_one = problem.is_none_or(|problem| problem == "single_label_classification");
            let unnamed = |(class, name): (usize, &String)| *name == format!("LABEL_{class}");
            let named = is_one && fits(&stated) && !stated.iter().enumerate().all(unnamed);
            return Ok(Self { names: stated, named });
        }
        let mut found = metadata
            .iter()
            .filter_map(|value| stated(value))
            .chain([listed.to_vec()]);
        if let Some(names) = found.find(fits) {
            return Ok(Self { names, named: true });
        }
        let names = match (config, classes) {
            (Some(config), None) => config.labels()?,
            (_, classes) => (0..classes.unwrap_or(0))
                .map(|class| format!("LABEL_{class}"))
                .collect(),
        };
        Ok(Self { names, named: false })
    }

    /// Returns the class names.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Adds the output with the name of the best class, replacing an output of the same name.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the scores cannot be read.
    pub(super) fn add(&self, outputs: &mut Outputs) -> Result<(), ModelError> {
        let scores = outputs.iter().find(|output| output.name == LOGITS);
        let Some(scores) = scores.filter(|_| self.named) else {
            return Ok(());
        };
        let scores = scores.to_f32()?;
        let best = best_class(&scores).filter(|_| scores.len() == self.names.len());
        if let Some(name) = best.and_then(|class| self.names.get(class)) {
            outputs.retain(|output| output.name != LABEL);
            outputs.push(Tensor::from_texts(LABEL, &[name])?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(metadata: &[&str], listed: &[&str], classes: Option<usize>) -> (Vec<String>, bool) {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let labels = Labels::find(None, &owned(metadata), &owned(listed), classes).unwrap();
        (labels.names(), labels.named)
    }

    #[test]
    fn names_are_found_in_metadata_and_nodes() {
        let map = r#"{"1": "good", "0": "bad"}"#;
        assert_eq!(found(&[map], &["x", "y"], Some(2)).0, ["bad", "good"]);
        assert_eq!(found(&[r#"["bad", "good"]"#], &[], None).0, ["bad", "good"]);
        assert_eq!(
            found(&["none", r#"["one", "two", "three"]"#], &["x", "y"], Some(2)).0,
            ["x", "y"]
        );
        assert_eq!(
            found(&[r#"{"1": "good"}"#], &[], Some(2)),
            (vec!["LABEL_0".to_owned(), "LABEL_1".to_owned()], false)
        );
    }

    #[test]
    fn the_best_class_is_named_once() {
        let labels = Labels {
            names: vec!["bad".to_owned(), "good".to_owned()],
            named: true,
        };
        let mut outputs = vec![
            Tensor::from_i64(LABEL, &[], &[1]).unwrap(),
            Tensor::from_f32(LOGITS, &[2], &[0.5, 2.0]).unwrap(),
        ];
        labels.add(&mut outputs).unwrap();
        assert_eq!(outputs.len(), 2);
        assert_eq!(outputs[1].to_texts().unwrap(), ["good"]);
        let mut other = vec![Tensor::from_f32(LOGITS, &[3], &[0.5, 2.0, 1.0]).unwrap()];
        labels.add(&mut other).unwrap();
        assert_eq!(other.len(), 1, "names of other classes");
    }
}
