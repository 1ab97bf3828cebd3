//! The requests of a load: samples, texts or tensors, sent in turn; answers to labelled samples are judged.

use std::future::pending;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use kaskade_actors::wire::{self, ContentType, InferReply};
use kaskade_actors::{Code, Fault};
use kaskade_models::{Inputs, Tensor};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::App;
use crate::config::data::DataSet;
use crate::data::reply::label_of;
use crate::data::scenes::Scenes;
use crate::data::text_metric::Grading;
use crate::data::{Label, Samples};
use crate::family::{Family, FamilyError};
use crate::load::error::LoadRequestError;
use crate::load::generator::Target;
use crate::load::record::{Outcome, StreamedAnswer};
use crate::load::samples;
use crate::serving::Client;

/// The requests of a load, and the right answers if they are known.
#[derive(Debug, Clone)]
pub enum RequestSet {
    /// Samples with one label each, if it is known.
    Samples(Samples),
    /// Scenes with several objects each.
    Scenes(Scenes),
    /// Inputs without labels.
    Unlabelled(Vec<Inputs>),
}

impl RequestSet {
    /// Reads a set of an app, whose samples may lack labels, in the form that its first stage takes.
    ///
    /// # Errors
    /// When the set cannot be read, or is not what the models take.
    pub fn read(app: &App, set: &DataSet) -> Result<Self, LoadRequestError> {
        let Some(config) = &app.pipeline else {
            return Ok(Self::Samples(samples::read(app, set)?));
        };
        let family = Family::from_app(app);
        let root = config.root().and_then(|task| task.variants.first());
        let first = family
            .members
            .iter()
            .find(|member| root.is_some_and(|root| root.as_str() == member.name));
        let first = first.ok_or(FamilyError::Empty)?;
        let loaded = first.load(first.device)?;
        Ok(Self::Scenes(Scenes::read(set, &loaded.model.signature())?))
    }

    /// Reads a file of texts, one per line; empty lines are skipped.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no text.
    pub fn texts(path: &Path) -> Result<Self, LoadRequestError> {
        let file = std::fs::read_to_string(path).map_err(|source| LoadRequestError::Read {
            path: path.to_owned(),
            source,
        })?;
        let unmarked = file.trim_start_matches('\u{feff}');
        let texts = unmarked.lines().filter(|line| !line.trim().is_empty());
        let inputs = texts.enumerate().map(|(index, text)| {
            let tensor = Tensor::from_texts("text", &[text]);
            tensor
                .map(|tensor| vec![tensor])
                .map_err(|source| LoadRequestError::Text {
                    path: path.to_owned(),
                    number: index + 1,
                    source,
                })
        });
        Self::unlabelled(path, "text", inputs.collect::<Result<_, _>>()?)
    }

    /// Reads a file of requests as Open Inference Protocol JSON, one object after the other.
    ///
    /// # Errors
    /// When the file cannot be read, is no such JSON, or is empty.
    pub fn tensors(path: &Path) -> Result<Self, LoadRequestError> {
        let file = std::fs::read(path).map_err(|source| LoadRequestError::Read {
            path: path.to_owned(),
            source,
        })?;
        let objects = serde_json::Deserializer::from_slice(&file).into_iter::<serde_json::Value>();
        let mut inputs = Vec::new();
        for (object, number) in objects.zip(1_usize..) {
            let json = |source| LoadRequestError::Json {
                path: path.to_owned(),
                number,
                source,
            };
            let body = serde_json::to_vec(&object.map_err(json)?).map_err(json)?;
            let request = wire::decode_infer(ContentType::Json, &Bytes::from(body));
            let request = request.map_err(|error| LoadRequestError::Tensors {
                path: path.to_owned(),
                number,
                source: error,
            })?;
            inputs.push(request.inputs);
        }
        Self::unlabelled(path, "JSON object", inputs)
    }

    fn unlabelled(path: &Path, unit: &'static str, inputs: Vec<Inputs>) -> Result<Self, LoadRequestError> {
        if inputs.is_empty() {
            let path = path.to_owned();
            return Err(LoadRequestError::Empty { path, unit });
        }
        Ok(Self::Unlabelled(inputs))
    }

    fn inputs(&self) -> &[Inputs] {
        match self {
            Self::Unlabelled(inputs) => inputs,
            Self::Samples(samples) => &samples.inputs,
            Self::Scenes(scenes) => &scenes.inputs,
        }
    }

    /// Returns the points of a reply and the most points possible: one for a class; for scenes the two sides of F1; none
    /// without labels.
    fn judge(&self, grading: Grading, place: usize, reply: &InferReply) -> (u64, u64) {
        match self {
            Self::Unlabelled(_) => (0, 0),
            Self::Samples(samples) => {
                let label = samples.labels.get(place);
                let Some(label) = label.filter(|label| **label != Label::Unknown) else {
                    return (0, 0);
                };
                let answer = label_of(&reply.outputs).ok();
                let right = answer.is_some_and(|answer| grading.accepts(label, &answer));
                (u64::from(right), 1)
            }
            Self::Scenes(scenes) => {
                let reported = scenes.reported_objects(reply).unwrap_or_default();
                let scores = scenes.judge(place, &reported);
                scores.iter().fold((0, 0), |(right, all), score| {
                    (right + 2 * score.right, all + score.reported + score.actual)
                })
            }
        }
    }
}

/// Sends the requests of a set in turn and counts the right answers.
#[derive(Debug)]
pub struct RequestSender {
    client: Client,
    set: RequestSet,
    grading: Grading,
    right: AtomicU64,
    judged: AtomicU64,
    answered: AtomicU64,
    hops: AtomicU64,
    /// Whether answers come in parts.
    streams: bool,
    /// Whether a request has reached the app.
    reached: AtomicBool,
    /// Why no request can reach the app.
    unserved: watch::Sender<Option<Fault>>,
}

impl RequestSender {
    /// Sends requests in the order of the set, again and again.
    pub fn new(client: Client, set: RequestSet) -> Self {
        Self {
            client,
            set,
            grading: Grading::default(),
            right: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            hops: AtomicU64::new(0),
            streams: false,
            reached: AtomicBool::new(false),
            unserved: watch::Sender::new(None),
        }
    }

    /// Sets how texts are compared with labels; without this, exactly.
    #[must_use]
    pub fn graded(mut self, grading: Grading) -> Self {
        self.grading = grading;
        self
    }

    /// Sets whether language models send their answers in parts, whose times are recorded [default: false].
    #[must_use]
    pub fn streamed(mut self, streams: bool) -> Self {
        self.streams = streams;
        self
    }

    /// Share of right answers so far, in [0, 1]; for scenes the F1 score. `None` if no answer could be judged.
    pub fn accuracy(&self) -> Option<f64> {
        let judged = self.judged.load(Ordering::Relaxed);
        (judged > 0).then(|| self.right.load(Ordering::Relaxed) as f64 / judged as f64)
    }

    /// Number of requests answered so far, rightly or not.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Number of stages that all answered requests passed.
    pub fn hops(&self) -> u64 {
        self.hops.load(Ordering::Relaxed)
    }

    /// Resolves with the fault of a request that no process takes, if none has been taken before: those that follow would fail alike.
    pub async fn unserved(&self) -> Fault {
        let mut unserved = self.unserved.subscribe();
        let found = unserved.wait_for(Option::is_some).await;
        match found.ok().and_then(|found| found.clone()) {
            Some(fault) => fault,
            // The sender lives as long as `self`.
            None => pending().await,
        }
    }

    fn note_failure(&self, fault: &Fault) {
        let is_unserved = matches!(
            fault.code,
            Code::UnknownApp | Code::NotPermitted | Code::NotDurable
        );
        if !is_unserved {
            self.reached.store(true, Ordering::Relaxed);
        } else if !self.reached.load(Ordering::Relaxed) {
            self.unserved.send_replace(Some(fault.clone()));
        }
    }

    fn judge(&self, place: usize, reply: &InferReply) {
        self.reached.store(true, Ordering::Relaxed);
        let (right, judged) = self.set.judge(self.grading, place, reply);
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.hops.fetch_add(reply.hops.len() as u64, Ordering::Relaxed);
        self.right.fetch_add(right, Ordering::Relaxed);
        self.judged.fetch_add(judged, Ordering::Relaxed);
    }
}

/// The tokens of an answer as they come.
#[derive(Default)]
struct Tokens {
    /// When the first part of the answering stage came, and its tokens until then.
    first: Option<(Instant, u32)>,
    /// When the first part of any stage came.
    begun: Option<Instant>,
    count: u32,
    stage: String,
}

impl Tokens {
    fn add(&mut self, part: &InferReply) {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        self.count = part.part.unwrap_or_default().saturating_add(1);
        // The answer of a later stage starts again.
        if self.first.is_none() || self.stage != part.stage {
            self.first = Some((now, self.count));
            self.stage.clone_from(&part.stage);
        }
    }

    /// Returns the outcome of an answer that ends now, to a request that was due at that time.
    fn outcome(self, reply: InferReply, due: Instant) -> Outcome {
        let (variant, degraded) = (reply.variant, reply.degraded);
        let (Some(begun), Some((first, before))) = (self.begun, self.first) else {
            return Outcome::Answered { variant, degraded };
        };
        let further = self.count.saturating_sub(before);
        Outcome::Streamed(StreamedAnswer {
            variant,
            degraded,
            first_token: begun.saturating_duration_since(due),
            per_token: (further > 0).then(|| first.elapsed() / further),
            tokens: self.count,
        })
    }
}

impl Target for RequestSender {
    async fn ask(&self, number: u64) -> Outcome {
        self.ask_due(number, Instant::now()).await
    }

    async fn ask_due(&self, number: u64, due: Instant) -> Outcome {
        let all = self.set.inputs();
        let place = (number % all.len().max(1) as u64) as usize;
        let inputs = all.get(place).cloned().unwrap_or_default();
        let mut tokens = Tokens::default();
        let answer = if self.streams {
            self.client.stream(inputs, |part| tokens.add(&part)).await
        } else {
            self.client.infer(inputs).await
        };
        match answer {
            Ok(reply) => {
                self.judge(place, &reply);
                tokens.outcome(reply, due)
            }
            Err(fault) => {
                self.note_failure(&fault);
                fault.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Origins;
    use kaskade_models::Tensor;

    /// A set without labels was refused, and an unknown one would have been a wrong answer.
    #[test]
    fn a_sample_without_a_label_has_no_points() {
        let set = RequestSet::Samples(Samples {
            inputs: vec![Vec::new(); 2],
            labels: vec![Label::Class(1), Label::Unknown],
            origins: Origins::default(),
        });
        let reply = InferReply {
            outputs: vec![Tensor::from_f32("logits", &[2], &[0.0, 1.0]).unwrap()],
            ..InferReply::default()
        };
        let points = |place| set.judge(Grading::default(), place, &reply);
        assert_eq!((points(0), points(1)), ((1, 1), (0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_timed_from_when_the_request_was_due() {
        let part = |part, stage: &str| InferReply {
            part: Some(part),
            stage: stage.to_owned(),
            ..InferReply::default()
        };
        let pause = |millis| tokio::time::advance(std::time::Duration::from_millis(millis));
        let due = Instant::now();
        let mut tokens = Tokens::default();
        pause(100).await;
        tokens.add(&part(0, "small"));
        pause(50).await;
        tokens.add(&part(0, "large"));
        for token in 1..=4 {
            pause(10).await;
            tokens.add(&part(token, "large"));
        }
        let Outcome::Streamed(answer) = tokens.outcome(InferReply::default(), due) else {
            panic!("it came in parts")
        };
        let millis = |time: std::time::Duration| time.as_millis();
        assert_eq!((millis(answer.first_token), answer.tokens), (100, 5));
        assert_eq!(answer.per_token.map(millis), Some(10));
        let whole = Tokens::default().outcome(InferReply::default(), due);
        assert!(matches!(whole, Outcome::Answered { .. }));
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn texts_are_lines() {
        let set = RequestSet::texts(file("\u{feff}a warm film\n\na dull film\n").path()).unwrap();
        let texts: Vec<String> = set
            .inputs()
            .iter()
            .map(|inputs| inputs[0].to_texts().unwrap()[0].to_string())
            .collect();
        assert_eq!(texts, ["a warm film", "a dull film"]);
        let error = RequestSet::texts(file("\n").path()).unwrap_err();
        assert!(error.to_string().contains("one text per line"), "{error}");
    }

    #[test]
    fn tensors_are_json_objects_and_a_wrong_one_is_named() {
        let object = r#"{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]}"#;
        let set = RequestSet::tensors(file(&format!("{object}\n{object}\n")).path()).unwrap();
        assert_eq!(set.inputs().len(), 2);
        let error = RequestSet::tensors(file(&format!("{object} {{\"inputs\": 1}}")).path()).unwrap_err();
        assert!(error.to_string().contains("request 2"), "{error}");
    }
}
