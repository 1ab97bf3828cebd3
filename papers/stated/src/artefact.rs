//! Reads what the Loki authors published beside their code: the graph of a pipeline, accuracies, branching and run times.
//!
//! Pure text in, a [`Pipeline`] out; the caller opens the files. Implausible figures that are read as published, and figures left
//! out because one is missing, are listed in [`Artefact::notes`].

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

use kaskade_policy::invalid::Invalid;
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task, TaskVariant};

/// The texts of the files, and which of their measurements to use.
#[derive(Debug, Clone, Copy)]
pub struct ArtefactFiles<'a> {
    /// `traffic_analysis.json`: tasks, their variants, and the objective in milliseconds.
    pub graph: &'a str,
    /// `branching.csv`: by variant of the root, requests made of one and their shares by child.
    pub branching: &'a str,
    /// `variants/<task>.txt` by task: variants and their accuracies in percent.
    pub accuracies: &'a BTreeMap<String, String>,
    /// `simulator_runtimes.csv`: latencies by variant, accelerator and batch size, milliseconds. The median is used.
    pub runtimes: &'a str,
    /// The accelerator, such as `onnxruntime_gpu_pascal`.
    pub accelerator: &'a str,
    /// The batch sizes that may be configured, ascending from 1.
    pub batches: &'a [u32],
    /// Time of a message between two workers, microseconds; the artefact has none.
    pub hop_us: u64,
}

/// A published pipeline, with notes on its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Artefact {
    /// The pipeline. Path accuracies are products, as in the artefact.
    pub pipeline: Pipeline,
    /// Omissions and implausible figures, for the report.
    pub notes: Vec<String>,
}

/// An error of a published file, with its place.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{file}, line {line}: {kind}")]
pub struct ArtefactError {
    /// Name of the file.
    pub file: String,
    /// Line number, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The kind of error.
    pub kind: ArtefactErrorKind,
}

/// An error of a published file.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ArtefactErrorKind {
    /// The graph is not what it should be.
    #[error("not a pipeline graph: {0}")]
    Graph(String),
    /// A column is missing.
    #[error("there is no column `{0}`; use the file as published")]
    NoColumn(String),
    /// A cell is not a number.
    #[error("`{found}` in column `{column}` is not a positive number")]
    NotANumber {
        /// The value found.
        found: String,
        /// Name of the column.
        column: String,
    },
    /// An item of the graph is not in the file.
    #[error("there is nothing about `{0}`, which the graph names")]
    Missing(String),
    /// The file itself is missing.
    #[error("the file was not given")]
    NoFile,
    /// The pipeline is unsound.
    #[error("{0}")]
    Unsound(Box<Invalid>),
}

const GRAPH: &str = "traffic_analysis.json";
const BRANCHING: &str = "branching.csv";
const RUNTIMES: &str = "simulator_runtimes.csv";

#[derive(Deserialize)]
struct Graph {
    #[serde(rename = "appName")]
    name: String,
    #[serde(rename = "latencySLOInMSec")]
    slo_ms: u64,
    root: Node,
}

#[derive(Deserialize)]
struct Node {
    task: String,
    model_variants: Vec<String>,
    children: Vec<Node>,
}

/// The artefact ends every path in a task of this name, which answers and runs no model.
const SINK: &str = "sink";

impl ArtefactFiles<'_> {
    /// The pipeline that the files describe.
    ///
    /// # Errors
    /// An [`ArtefactError`] with the file and the line.
    pub fn read(&self) -> Result<Artefact, ArtefactError> {
        let graph: Graph = serde_json::from_str(self.graph).map_err(|error| {
            let kind = ArtefactErrorKind::Graph(error.to_string());
            at(GRAPH, error.line(), kind)
        })?;
        let mut reader = Reader {
            files: self,
            latencies: self.latencies()?,
            factors: self.factors()?,
            notes: Vec::new(),
            tasks: Vec::new(),
        };
        reader.node(&graph.root)?;
        let pipeline = Pipeline {
            name: graph.name,
            slo_us: graph.slo_ms * 1_000,
            hop_us: self.hop_us,
            batches: self.batches.to_vec(),
            tasks: reader.tasks,
            path_accuracy: PathAccuracy::Product,
        };
        let unsound = |invalid: Invalid| at(GRAPH, 0, ArtefactErrorKind::Unsound(Box::new(invalid)));
        pipeline.validate().map_err(unsound)?;
        Ok(Artefact {
            pipeline,
            notes: reader.notes,
        })
    }

    /// Variant to its median latencies, microseconds, in the order of the batch sizes, up to the first that was not measured.
    fn latencies(&self) -> Result<BTreeMap<String, Vec<BatchLatency>>, ArtefactError> {
        let mut found: BTreeMap<(String, u32), f64> = BTreeMap::new();
        let table = Table::new(RUNTIMES, self.runtimes);
        let [model, accelerator, size, median] =
            ["Model", "Accel", "batchsize", "50th_pct"].map(|name| table.column(name));
        let (model, accelerator, size, median) = (model?, accelerator?, size?, median?);
        for row in table.rows() {
            if row.cell(accelerator) == self.accelerator {
                let key = (row.cell(model).to_owned(), row.number(size, "batchsize")?);
                found.insert(key, 1e3 * row.number::<f64>(median, "50th_pct")?);
            }
        }
        let mut latencies: BTreeMap<String, Vec<BatchLatency>> = BTreeMap::new();
        for (name, _) in found.keys() {
            let sample = |batch: &u32| {
                let us = *found.get(&(name.clone(), *batch))?;
                Some(BatchLatency { batch: *batch, us })
            };
            if !latencies.contains_key(name) {
                latencies.insert(name.clone(), self.batches.iter().map_while(sample).collect());
            }
        }
        Ok(latencies)
    }

    /// Variant of the root to its multiplicative factor and its branch ratios.
    fn factors(&self) -> Result<Factors, ArtefactError> {
        let table = Table::new(BRANCHING, self.branching);
        let (model, factor) = (table.column("model")?, table.column("mult_factor")?);
        let children = table.header.iter().enumerate();
        let children: Vec<(usize, &str)> = children
            .filter(|(place, name)| *place != model && *place != factor && !name.is_empty())
            .map(|(place, name)| (place, *name))
            .collect();
        let mut factors = BTreeMap::new();
        for row in table.rows() {
            let mut ratios = BTreeMap::new();
            for (place, name) in &children {
                ratios.insert((*name).to_owned(), row.number(*place, name)?);
            }
            let factor = row.number(factor, "mult_factor")?;
            factors.insert(row.cell(model).to_owned(), (factor, ratios));
        }
        Ok(factors)
    }
}

/// Variant to its multiplicative factor and its branch ratios.
type Factors = BTreeMap<String, (f64, BTreeMap<String, f64>)>;

struct Reader<'a> {
    files: &'a ArtefactFiles<'a>,
    latencies: BTreeMap<String, Vec<BatchLatency>>,
    factors: Factors,
    notes: Vec<String>,
    tasks: Vec<Task>,
}

impl Reader<'_> {
    fn node(&mut self, node: &Node) -> Result<(), ArtefactError> {
        let children: Vec<&Node> = node.children.iter().filter(|child| child.task != SINK).collect();
        let file = format!("variants/{}.txt", node.task);
        let Some(text) = self.files.accuracies.get(&node.task) else {
            return Err(at(&file, 0, ArtefactErrorKind::NoFile));
        };
        let accuracies = accuracies(&file, text)?;
        let mut variants = Vec::new();
        for name in &node.model_variants {
            let Some(accuracy) = accuracies.get(name).copied() else {
                return Err(at(&file, 0, ArtefactErrorKind::Missing(name.clone())));
            };
            let Some(latency) = self.latencies.get(name).filter(|samples| !samples.is_empty()) else {
                let on = self.files.accelerator;
                self.notes.push(format!(
                    "{RUNTIMES} has no latencies of `{name}` on {on}; the variant is left out"
                ));
                continue;
            };
            let (multiplicative_factor, branch_ratios) = if children.is_empty() {
                (1.0, BTreeMap::new())
            } else {
                let missing = || at(BRANCHING, 0, ArtefactErrorKind::Missing(name.clone()));
                self.factors.get(name).cloned().ok_or_else(missing)?
            };
            variants.push(TaskVariant {
                name: name.clone(),
                checkpoint: None,
                accuracy,
                latency: latency.clone(),
                multiplicative_factor,
                branch_ratios,
            });
        }
        self.note_swaps(&file, &variants);
        self.tasks.push(Task {
            name: node.task.clone(),
            children: children.iter().map(|child| child.task.clone()).collect(),
            variants,
        });
        children.iter().try_for_each(|child| self.node(child))
    }

    /// A larger model of a family that is listed as less accurate than the next smaller one was probably swapped with it. It is
    /// read as published, because every figure that the authors derived from the file has the swap in it.
    fn note_swaps(&mut self, file: &str, variants: &[TaskVariant]) {
        for pair in variants.windows(2) {
            let [small, large] = pair else { continue };
            let slower = match (small.latency_us(1), large.latency_us(1)) {
                (Some(small), Some(large)) => large > small,
                _ => false,
            };
            if slower && large.accuracy < small.accuracy {
                self.notes.push(format!(
                    "{file} gives `{}` {:.2} % and the slower `{}` {:.2} %, which look swapped; they are read as published",
                    small.name,
                    100.0 * small.accuracy,
                    large.name,
                    100.0 * large.accuracy
                ));
            }
        }
    }
}

/// Variant to accuracy in [0, 1]; the file has percent.
fn accuracies(file: &str, text: &str) -> Result<BTreeMap<String, f64>, ArtefactError> {
    let table = Table {
        file,
        text,
        header: Vec::new(),
        skip: 0,
    };
    let mut accuracies = BTreeMap::new();
    for row in table.rows() {
        accuracies.insert(row.cell(0).to_owned(), row.number::<f64>(1, "accuracy")? / 100.0);
    }
    Ok(accuracies)
}

fn at(file: &str, line: usize, kind: ArtefactErrorKind) -> ArtefactError {
    let file = file.to_owned();
    ArtefactError { file, line, kind }
}

/// Comma-separated text without quotes, as all of these files are.
struct Table<'a> {
    file: &'a str,
    text: &'a str,
    header: Vec<&'a str>,
    skip: usize,
}

impl<'a> Table<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let header = text.lines().next().unwrap_or_default();
        Self {
            file,
            text,
            header: header.split(',').map(str::trim).collect(),
            skip: 1,
        }
    }

    fn column(&self, name: &str) -> Result<usize, ArtefactError> {
        let missing = || at(self.file, 1, ArtefactErrorKind::NoColumn(name.to_owned()));
        self.header
            .iter()
            .position(|column| *column == name)
            .ok_or_else(missing)
    }

    fn rows(&self) -> impl Iterator<Item = Cells<'a>> {
        let (file, lines) = (self.file, self.text.lines().enumerate().skip(self.skip));
        lines
            .filter(|(_, text)| !text.trim().is_empty())
            .map(move |(line, text)| Cells {
                file,
                line: line + 1,
                texts: text.split(',').map(str::trim).collect(),
            })
    }
}

struct Cells<'a> {
    file: &'a str,
    line: usize,
    texts: Vec<&'a str>,
}

impl<'a> Cells<'a> {
    fn cell(&self, column: usize) -> &'a str {
        self.texts.get(column).copied().unwrap_or_default()
    }

    fn number<N: FromStr + PartialOrd + Default>(
        &self,
        column: usize,
        name: &str,
    ) -> Result<N, ArtefactError> {
        let found = self.cell(column);
        let number = found.parse::<N>().ok().filter(|number| *number > N::default());
        number.ok_or_else(|| {
            let (found, column) = (found.to_owned(), name.to_owned());
            at(
                self.file,
                self.line,
                ArtefactErrorKind::NotANumber { found, column },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = r#"{"appName": "t", "latencySLOInMSec": 250, "root": {"task": "find", "model_variants": ["s", "m"],
     "children": [{"task": "car", "model_variants": ["b0", "b7"], "children": [{"task": "sink", "model_variants": ["sink"], "children": []}]}]}}"#;
    const BRANCHING: &str = ",model,mult_factor,car\n0,s,2.0,0.5\n1,m,4.0,0.25\n";
    const RUNTIMES: &str = ",Model,Accel,batchsize,avg,50th_pct\n0,s,gpu,1,9,10\n1,s,gpu,2,9,15\n2,m,gpu,1,9,20\n3,m,cpu,2,9,1\n4,b0,gpu,1,9,5\n";

    fn artefact(branching: &str, runtimes: &str) -> Result<Artefact, ArtefactError> {
        let accuracies = BTreeMap::from([
            ("find".to_owned(), "s,90\nm,80".to_owned()),
            ("car".to_owned(), "b0,91.5\nb7,100".to_owned()),
        ]);
        let files = ArtefactFiles {
            graph: GRAPH,
            branching,
            accuracies: &accuracies,
            runtimes,
            accelerator: "gpu",
            batches: &[1, 2, 4],
            hop_us: 0,
        };
        files.read()
    }

    #[test]
    fn the_published_files_are_read_and_their_oddities_told() {
        let Artefact { pipeline, notes } = artefact(BRANCHING, RUNTIMES).unwrap();
        assert_eq!((pipeline.slo_us, pipeline.tasks.len()), (250_000, 2));
        let find = &pipeline.tasks[0];
        assert_eq!(
            (find.variants[0].latency.len(), find.variants[1].latency.len()),
            (2, 1)
        );
        assert!((find.variants[1].multiplicity("car") - 1.0).abs() < 1e-12);
        assert_eq!(pipeline.tasks[1].variants.len(), 1, "one was not measured");
        assert!(notes.iter().any(|note| note.contains("`b7`")));
        assert!(notes.iter().any(|note| note.contains("look swapped")));
    }

    #[test]
    fn a_bad_file_is_named_with_its_line() {
        let error = artefact(BRANCHING, &RUNTIMES.replace("9,15", "9,fast")).unwrap_err();
        assert_eq!((error.file.as_str(), error.line), ("simulator_runtimes.csv", 3));
        let error = artefact(&BRANCHING.replace("mult_factor", "factor"), RUNTIMES).unwrap_err();
        assert_eq!((error.file.as_str(), error.line), ("branching.csv", 1));
        let error = artefact(",model,mult_factor,car\n0,s,2.0,0.5\n", RUNTIMES).unwrap_err();
        assert_eq!(error.kind, ArtefactErrorKind::Missing("m".into()));
        let error = artefact(&BRANCHING.replace("0.25", "NaN"), RUNTIMES).unwrap_err();
        assert!(matches!(error.kind, ArtefactErrorKind::NotANumber { .. }));
    }
}
