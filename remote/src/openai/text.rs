//! The text of an answer, with its probabilities, and the outputs that it becomes.

use kaskade_models::language::{REASONING, REASONING_TOKENS};
use kaskade_models::{Outputs, Tensor, best_class};
use kaskade_policy::remote::agreement;

use super::formats_and_tools::{Calls, RawCall};
use super::logprobs::{Candidate, Logprobs, Place, label_of};
use super::malformed;
use crate::endpoint::{Chat, ChatTask};
use crate::error::{CallError, MAX_MESSAGE};

/// The output of a classifier, as planners and routers read it.
pub(crate) const LOGITS: &str = "logits";

/// The text of an answer, with its probabilities.
#[derive(Debug, Clone, Default)]
pub(super) struct Text {
    content: String,
    reasoning: String,
    /// Tokens of the reasoning, if the endpoint counts them.
    pub reasoning_tokens: Option<u64>,
    /// The tokens of the answer, those of its reasoning first.
    places: Vec<Place>,
    /// Number of tokens that came before the first part of the text.
    places_before: usize,
    /// Most probable tokens that the request wants to see beside the log-probabilities of its tokens; `None` without these.
    top_logprobs: Option<usize>,
    pub end: Option<String>,
    /// Calls of tools.
    pub calls: Calls,
    /// What the model said instead of an answer that it refuses.
    refusal: String,
}

/// A part of an answer, or all of it.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub content: String,
    pub reasoning: String,
    pub refusal: String,
    pub calls: Vec<RawCall>,
    pub logprobs: Option<Logprobs>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The model ended it.
    Stop,
    /// The maximum of tokens cut it off.
    Length,
    /// The content filter withheld it.
    Filtered,
    /// The endpoint ended it early, because of a failure of its own.
    Aborted,
    /// For a reason that is not known here.
    Unknown,
}

impl End {
    /// Returns the end for a `finish_reason`, of `OpenAI` or of others: vLLM, `SGLang`, `DeepSeek`, Text Generation Inference, Together,
    /// Anthropic. Without a reason the model ended it.
    fn of(reason: Option<&str>) -> Self {
        match reason.unwrap_or("stop").to_lowercase().as_str() {
            "stop" | "eos" | "eos_token" | "stop_sequence" | "end_turn" | "tool_calls" | "tool_use"
            | "function_call" => Self::Stop,
            "length" | "max_tokens" => Self::Length,
            "content_filter" => Self::Filtered,
            "error" | "abort" | "aborted" | "insufficient_system_resource" => Self::Aborted,
            _ => Self::Unknown,
        }
    }
}

impl Piece {
    /// Returns the outputs of a part of a streamed answer, as of local models; none for a piece without a text.
    pub(super) fn part(&self) -> Outputs {
        let mut part = Outputs::new();
        if !self.content.is_empty() || !self.reasoning.is_empty() {
            part.extend(Tensor::from_texts("text", &[&self.content]).ok());
        }
        if !self.reasoning.is_empty() {
            part.extend(Tensor::from_texts(REASONING, &[&self.reasoning]).ok());
        }
        part
    }
}

impl Text {
    /// Creates the empty text of a request that wants to see so many most probable tokens.
    pub(super) fn wanting(top_logprobs: Option<usize>) -> Self {
        Self {
            top_logprobs,
            ..Self::default()
        }
    }

    /// Adds a part.
    ///
    /// # Errors
    /// [`CallError::Malformed`] for log probabilities that are none, or too many calls.
    pub(super) fn add(&mut self, chat: &Chat, piece: Piece) -> Result<(), CallError> {
        self.content.push_str(&piece.content);
        self.reasoning.push_str(&piece.reasoning);
        self.refusal.push_str(&piece.refusal);
        self.calls.add(piece.calls)?;
        if chat.top_logprobs > 0 || self.top_logprobs.is_some() {
            for place in piece.logprobs.map_or(Ok(Vec::new()), Logprobs::places)? {
                place.check()?;
                self.places.push(place);
            }
        }
        if self.content.is_empty() && self.calls.is_empty() {
            self.places_before = self.places.len();
        }
        Ok(())
    }

    /// Returns the tokens of the text, without those of the reasoning. Endpoints list both in one list. Where nothing shows which of
    /// the two a token is of, it counts for the text.
    fn places_of_text(&self) -> &[Place] {
        let of_reasoning = if self.reasoning.is_empty() {
            0
        } else if self.content.trim().is_empty() && self.calls.is_empty() {
            self.places.len()
        } else {
            let counted = self
                .reasoning_tokens
                .and_then(|count| usize::try_from(count).ok());
            let counted = || counted.filter(|count| *count < self.places.len()).unwrap_or(0);
            let before = self.places_before_content().unwrap_or_else(counted);
            before.max(self.places_before)
        };
        self.places.get(of_reasoning..).unwrap_or_default()
    }

    /// Returns the number of tokens before those whose texts are the content, which are the last ones; `None` if they are not found.
    fn places_before_content(&self) -> Option<usize> {
        let content = self.content.trim();
        let tokens: String = self.places.iter().map(|place| place.token.as_str()).collect();
        let begin = tokens.rfind(content).filter(|_| !content.is_empty())?;
        let mut end = 0;
        let before = self.places.iter().take_while(|place| {
            end += place.token.len();
            end <= begin
        });
        Some(before.count())
    }

    /// Returns the outputs of the complete answer.
    ///
    /// # Errors
    /// [`CallError::Useless`].
    pub(super) fn outputs(self, chat: &Chat) -> Result<Outputs, CallError> {
        self.outputs_with(chat, None)
    }

    /// Checks that the answer is one: that the endpoint did not end it early, and that the model did not refuse it.
    ///
    /// # Errors
    /// [`CallError::Broken`], [`CallError::Useless`].
    fn check(&self) -> Result<(), CallError> {
        if End::of(self.end.as_deref()) == End::Aborted {
            return Err(CallError::Broken {
                reason: format!(
                    "the endpoint ended it with `{}`",
                    self.end.as_deref().unwrap_or_default()
                ),
            });
        }
        if self.content.is_empty() && !self.refusal.is_empty() {
            let said: String = self.refusal.chars().take(MAX_MESSAGE).collect();
            return Err(useless(format!("the model refuses to answer: {said}")));
        }
        Ok(())
    }

    /// As [`Text::outputs`], with a confidence that is known otherwise.
    fn outputs_with(self, chat: &Chat, confidence: Option<f32>) -> Result<Outputs, CallError> {
        self.check()?;
        let is_text = !self.content.is_empty() && self.calls.is_empty();
        if chat.top_logprobs > 0 && self.places.is_empty() && is_text {
            return Err(useless(
                "the endpoint gives no log probabilities, so the answer has no confidence; set `top_logprobs = 0` for a \
                 variant that never has to decide whether to escalate",
            ));
        }
        let outputs = match &chat.task {
            ChatTask::Classify { labels } => self.classified(chat, labels)?,
            ChatTask::Generate => self.generated(chat, confidence)?,
        };
        outputs.into_iter().collect::<Result<_, _>>().map_err(malformed)
    }

    fn classified(
        self,
        chat: &Chat,
        labels: &[String],
    ) -> Result<Vec<Result<Tensor, kaskade_models::TensorError>>, CallError> {
        let shown = || self.content.chars().take(40).collect::<String>();
        let is_cut = End::of(self.end.as_deref()) == End::Length && self.content.trim().is_empty();
        let none = || {
            if is_cut {
                return useless(
                    "all tokens of the answer were used before it said anything; a model that thinks first needs a larger `max_tokens`",
                );
            }
            useless(format!(
                "the answer `{}` is none of the labels {labels:?}",
                shown()
            ))
        };
        let scores = if chat.top_logprobs > 0 {
            // White space before the answer says nothing.
            let mut places = self.places_of_text().iter();
            let first = places.find(|place| !place.token.trim().is_empty());
            let said = label_of(&self.content, labels);
            first
                .and_then(|place| place.scores(labels, said))
                .ok_or_else(none)?
        } else {
            let class = label_of(&self.content, labels).ok_or_else(none)?;
            (0..labels.len())
                .map(|other| f32::from(u8::from(other == class)))
                .collect()
        };
        Ok(class_outputs(&scores, labels))
    }

    fn generated(
        self,
        chat: &Chat,
        known: Option<f32>,
    ) -> Result<Vec<Result<Tensor, kaskade_models::TensorError>>, CallError> {
        let ended = End::of(self.end.as_deref());
        if ended == End::Filtered {
            return Err(useless("the endpoint's content filter withheld the answer"));
        }
        let end = if ended == End::Length { "length" } else { "stop" };
        let probabilities: Vec<f32> = self.places.iter().map(Place::probability).collect();
        let of_tokens = || {
            let most = chat.top_logprobs as usize;
            let of_text = self.places_of_text().iter();
            let confidences = of_text.map(|place| place.confidence(most));
            confidences.reduce(f32::min).filter(|_| most > 0)
        };
        // An answer that may be a part of one is never sure.
        let confidence = known.or_else(of_tokens).filter(|_| ended != End::Unknown);
        let mut outputs = vec![Tensor::from_texts("text", &[&self.content])];
        if !self.reasoning.is_empty() {
            outputs.push(Tensor::from_texts(REASONING, &[&self.reasoning]));
        }
        // An endpoint may count a reasoning that it keeps to itself.
        let counted = self.reasoning_tokens.filter(|count| *count > 0);
        if let Some(count) = counted.and_then(|count| i64::try_from(count).ok()) {
            outputs.push(Tensor::from_i64(REASONING_TOKENS, &[1], &[count]));
        }
        outputs.extend(self.calls.output(end == "length")?);
        if !probabilities.is_empty() {
            outputs.push(Tensor::from_f32(
                "probabilities",
                &[probabilities.len()],
                &probabilities,
            ));
            let tokens: Vec<&str> = self.places.iter().map(|place| place.token.as_str()).collect();
            outputs.push(Tensor::from_texts("token_texts", &tokens));
            outputs.extend(most_probable(&self.places, self.top_logprobs.unwrap_or(0)));
        }
        // Without probabilities an answer is never sure.
        outputs.push(Tensor::from_f32("confidence", &[1], &[confidence.unwrap_or(0.0)]));
        outputs.push(Tensor::from_texts("end", &[end]));
        Ok(outputs)
    }
}

/// The outputs of a local classifier: the scores of the classes, and the name of the best one.
fn class_outputs(scores: &[f32], labels: &[String]) -> Vec<Result<Tensor, kaskade_models::TensorError>> {
    let best = best_class(scores).and_then(|class| labels.get(class));
    let mut outputs = vec![Tensor::from_f32(LOGITS, &[scores.len()], scores)];
    outputs.extend(best.map(|label| Tensor::from_texts("label", &[label])));
    outputs
}

/// The most probable tokens at every place as texts, and the logarithms of their probabilities, `[tokens, most]` each; fewer if
/// the endpoint gave fewer at one of the places.
fn most_probable(places: &[Place], most: usize) -> Vec<Result<Tensor, kaskade_models::TensorError>> {
    let sorted: Vec<Vec<&Candidate>> = places.iter().map(|place| place.most_probable(most)).collect();
    let each = sorted.iter().map(Vec::len).min().unwrap_or(0);
    if each == 0 {
        return Vec::new();
    }
    let shape = [places.len(), each];
    let listed: Vec<&Candidate> = sorted
        .iter()
        .flat_map(|place| place.iter().copied().take(each))
        .collect();
    let tokens: Vec<&str> = listed.iter().map(|candidate| candidate.token.as_str()).collect();
    let logprobs: Vec<f32> = listed.iter().map(|candidate| candidate.logprob as f32).collect();
    let tokens = Tensor::from_texts("top_token_texts", &tokens).map(|tokens| Tensor {
        shape: shape.to_vec(),
        ..tokens
    });
    vec![tokens, Tensor::from_f32("top_logprobs", &shape, &logprobs)]
}

fn useless(reason: impl Into<String>) -> CallError {
    CallError::Useless {
        reason: reason.into(),
    }
}

/// Returns the outputs of several samples of one answer: the most frequent one, as probable as it is frequent.
///
/// # Errors
/// [`CallError::Useless`] if samples are missing, or most of them are none of the labels.
pub(super) fn agreed(chat: &Chat, texts: Vec<Text>, samples: u32) -> Result<Outputs, CallError> {
    texts.iter().try_for_each(Text::check)?;
    if texts.len() < samples as usize {
        return Err(useless(format!(
            "the endpoint gave {} of {samples} samples, so their agreement is unknown; does it support `n`?",
            texts.len()
        )));
    }
    match &chat.task {
        ChatTask::Classify { labels } => {
            let classes = texts.iter().filter_map(|text| label_of(&text.content, labels));
            let classes: Vec<usize> = classes.collect();
            if classes.len() * 2 <= texts.len() {
                return Err(useless(format!("most samples are none of the labels {labels:?}")));
            }
            let scores = agreement::log_shares(&classes, labels.len());
            let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
            let outputs = class_outputs(&scores, labels).into_iter();
            outputs.collect::<Result<_, _>>().map_err(malformed)
        }
        ChatTask::Generate => {
            // White space and case make no other answer.
            let words = |text: &Text| -> Vec<String> {
                text.content.split_whitespace().map(str::to_lowercase).collect()
            };
            let said: Vec<Vec<String>> = texts.iter().map(words).collect();
            let majority = agreement::majority(&said);
            let agreed = majority.and_then(|(place, share)| Some((texts.into_iter().nth(place)?, share)));
            let (text, share) = agreed.ok_or_else(|| malformed("it has no choices"))?;
            // That nothing is said is no answer to agree on.
            let share = if text.content.trim().is_empty() {
                0.0
            } else {
                share as f32
            };
            text.outputs_with(chat, Some(share))
        }
    }
}
