//! One request to an endpoint: its place among others, retries, deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Response};
use kaskade_models::{Datatype, ModelError, Outputs, Tensor};
use kaskade_policy::remote::price::{Price, Usage};
use kaskade_policy::remote::retry::{self, FailedCall, RetryConfig};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::cache::{Cache, Recorded};
use crate::circuit::{Circuit, Outcome};
use crate::endpoint::{Api, Judge};
use crate::error::CallError;
use crate::http::Http;
use crate::oip::grpc;
use crate::openai::dialect::{self, Dialect};
use crate::openai::samples::Samples;
use crate::prepared::{Answer, Parts, Prepared};
use crate::spending::{Reserved, SpendLimit};
use crate::{oip, openai};

/// Pauses of at least this are logged as information.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// A model that is called: where it is, what is asked, and what a call costs.
pub(crate) struct EndpointCall {
    pub http: Arc<Http>,
    pub api: Api,
    pub price: Option<Price>,
    /// What its refusals have shown.
    pub dialect: Dialect,
    /// When it gets no calls.
    pub circuit: Circuit,
}

impl EndpointCall {
    /// Reads an answer to its end; over gRPC, the message in it.
    async fn read(&self, answer: Response<Incoming>) -> Result<Bytes, CallError> {
        if self.http.is_grpc() {
            return grpc::read(&self.http, answer).await;
        }
        self.http.read(answer).await
    }

    fn decode(&self, request: &Prepared, head: &str, body: &Bytes) -> Result<Answer, CallError> {
        let answer = match &self.api {
            Api::Chat(chat) => openai::chat::decode(chat, request.top_logprobs, body)
                .map_err(|error| openai::of_this_answer(error, body)),
            Api::Embeddings { .. } => openai::embeddings::decode(body),
            Api::Oip { .. } => oip::decode(head, body),
        };
        answer.map_err(|error| error.redacted(|text| self.http.redact(text)))
    }

    /// The price of an answer, of all of its calls.
    fn cost(&self, answer: &Answer) -> Option<f64> {
        self.cost_of(answer.usage, answer.calls)
    }

    fn cost_of(&self, usage: Option<Usage>, calls: u32) -> Option<f64> {
        let price = self.price?;
        let repeated = f64::from(calls.saturating_sub(1));
        Some(price.cost(usage)? + repeated * price.request)
    }

    /// The most that the calls for missing samples may cost: a token is at least one byte, and an endpoint that gives one sample at a
    /// time is paid for every prompt.
    fn most(&self, request: &Prepared, missing: u32) -> f64 {
        let of_sample = u64::from(request.max_tokens) / u64::from(openai::samples::wanted(&self.api).max(1));
        let usage = Usage {
            input_tokens: u64::from(missing) * request.body.len() as u64,
            output_tokens: u64::from(missing) * of_sample,
        };
        self.cost_of(Some(usage), missing).unwrap_or(0.0)
    }
}

/// State that all requests to an endpoint share.
pub(crate) struct Caller {
    pub model: Arc<EndpointCall>,
    /// The model that judges its answers.
    pub judge: Option<(Judge, Arc<EndpointCall>)>,
    pub permits: Semaphore,
    pub timeout: Duration,
    pub retry: RetryConfig,
    pub cache: Option<Cache>,
    pub spend_limit: Option<SpendLimit>,
    /// Requests that are not answered yet.
    pub waiting: AtomicU64,
}

impl Caller {
    /// Answers a request before its deadline, with the verdict of the judge on the answer to `prompt` if there is one. The outputs state
    /// the tokens of the answer and the cost of it and of the verdict, as far as they are known.
    ///
    /// # Errors
    /// [`ModelError::Late`] if the deadline comes first; otherwise what the last call failed with.
    pub(crate) async fn answer(
        &self,
        prompt: &str,
        request: &Prepared,
        deadline: Option<Instant>,
        parts: Parts<'_>,
    ) -> Result<Outputs, ModelError> {
        // Without its verdict an answer is of no use, so the judge must take calls before one is paid.
        let judge = match &self.judge {
            Some((judge, called)) if !self.is_recorded(request) => {
                let admitted = self.admit(called, deadline).await;
                let admitted = admitted.map_err(|error| of_judge(error.into()))?;
                Some((judge, called, Some(admitted)))
            }
            Some((judge, called)) => Some((judge, called, None)),
            None => None,
        };
        let answer = self.exchange(&self.model, request, deadline, None, parts).await?;
        let mut cost = self.model.cost(&answer);
        let Answer {
            mut outputs, usage, ..
        } = answer;
        if let (Some((judge, called, admitted)), Api::Chat(chat)) = (judge, &self.model.api) {
            // An empty text has no judge, and is never sure.
            if let Some(judging) = openai::judge::prepare(judge, chat, prompt, &outputs)? {
                let mut no_parts = |_| ();
                let verdict = self.exchange(called, &judging, deadline, admitted, &mut no_parts);
                let verdict = verdict.await.map_err(of_judge)?;
                cost = cost
                    .zip(called.cost(&verdict))
                    .map(|(asked, judged)| asked + judged);
                openai::judge::apply(&mut outputs, &verdict.outputs)?;
            }
        }
        outputs.extend(usage.and_then(usage_output));
        outputs.extend(cost.map(cost_output));
        Ok(outputs)
    }

    /// Calls a model until it answers or the deadline comes. The first call may have been admitted by the circuit breaker already.
    async fn exchange(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        deadline: Option<Instant>,
        mut admitted: Option<Outcome<'_>>,
        parts: Parts<'_>,
    ) -> Result<Answer, ModelError> {
        if let Some(recorded) = self.recorded(called, request) {
            // As long as it took: measurements of recorded answers are those of the endpoint.
            tokio::time::sleep(recorded.took).await;
            return Ok(called.decode(request, &recorded.head, &recorded.body)?);
        }
        // Before it has a permit, which a request with less time may wait for.
        self.wait_for_hold(called, deadline).await?;
        let permit = timeout(left_until(deadline), self.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(late("one of the calls that `concurrency` allows at once"));
        };
        let mut repeated = 0;
        let mut body = called.dialect.write(request);
        let mut samples = Samples::default();
        loop {
            let outcome = match admitted.take() {
                Some(admitted) => admitted,
                None => self.admit(called, deadline).await?,
            };
            let budget = left_until(deadline);
            let attempt = self.attempt(outcome, called, request, &body, budget, &mut samples, parts);
            let failed = match attempt.await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {
                    // The next sample may be repeated as often.
                    repeated = 0;
                    continue;
                }
                Err(failed) => failed,
            };
            if left_until(deadline).is_zero() {
                return Err(late("the endpoint's answer"));
            }
            if let Some(changed) = called.dialect.learn(request, &body, &failed.error) {
                tracing::info!(error = %failed.error, "the endpoint takes another form of requests");
                body = changed;
                continue;
            }
            let Some(pause) = self.pause_after(&failed, repeated, deadline) else {
                called.circuit.hold(&failed.error);
                return Err(dialect::explained(failed.error, &body).into());
            };
            tokio::time::sleep(pause).await;
            repeated += 1;
        }
    }

    /// Takes a permission for a call from the circuit breaker, after the pause that the model has asked for.
    ///
    /// # Errors
    /// [`CallError::Held`] at once, if the deadline does not allow the wait; [`CallError::BreakerOpen`].
    async fn admit<'a>(
        &self,
        called: &'a EndpointCall,
        deadline: Option<Instant>,
    ) -> Result<Outcome<'a>, CallError> {
        self.wait_for_hold(called, deadline).await?;
        called.circuit.admit()
    }

    /// Waits until a model gets calls, if it has asked for a pause.
    ///
    /// # Errors
    /// [`CallError::Held`] at once, if the deadline does not allow the wait.
    async fn wait_for_hold(&self, called: &EndpointCall, deadline: Option<Instant>) -> Result<(), CallError> {
        while let Some(held_us) = called.circuit.held_us() {
            let left_us = micros(left_until(deadline));
            let Some(wait) = retry::wait(&self.retry, held_us, left_us, draw()) else {
                let pause = Duration::from_micros(held_us);
                return Err(CallError::Held { pause });
            };
            tokio::time::sleep(Duration::from_micros(wait)).await;
        }
        Ok(())
    }

    /// Returns the pause before a failed call is repeated; `None` if it is not.
    fn pause_after(
        &self,
        AttemptError { error, streamed }: &AttemptError,
        repeated: u32,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let failed = FailedCall {
            repeated,
            retryable: error.retryable(),
            retry_after_us: error.retry_after().map(micros),
            streamed: *streamed,
        };
        let left_us = micros(left_until(deadline));
        let pause = Duration::from_micros(retry::pause(&self.retry, failed, left_us, draw())?);
        if pause >= LONG_PAUSE {
            tracing::info!(%error, ?pause, "repeating a call after a long pause");
        } else {
            tracing::debug!(%error, ?pause, "repeating a call");
        }
        Some(pause)
    }

    /// Makes one call within the endpoint's timeout and the budget, and reports its outcome to the circuit breaker. `None` if the answer
    /// lacks further samples.
    #[expect(clippy::too_many_arguments, reason = "they are the state of one exchange")]
    async fn attempt(
        &self,
        reported: Outcome<'_>,
        called: &EndpointCall,
        request: &Prepared,
        body: &Bytes,
        budget: Duration,
        samples: &mut Samples,
        parts: Parts<'_>,
    ) -> Result<Option<Answer>, AttemptError> {
        let mut streamed = false;
        // A stream may take as long as its parts arrive.
        let limit = if request.streamed {
            budget
        } else {
            self.timeout.min(budget)
        };
        let begun = Instant::now();
        let mut noted = |part| {
            streamed = true;
            parts(part);
        };
        let call = self.call(called, request, body, samples, &mut noted);
        let outcome = timeout(limit, call).await;
        let took = micros(begun.elapsed());
        let outcome = match outcome {
            Ok(outcome) => {
                reported.ended(&outcome, took);
                outcome
            }
            Err(_) if limit < self.timeout || request.streamed => {
                reported.cut_off(took, streamed);
                Err(CallError::Timeout { after: limit })
            }
            Err(_) => {
                let outcome = Err(CallError::Timeout { after: limit });
                reported.ended(&outcome, took);
                outcome
            }
        };
        outcome.map_err(|error| AttemptError { error, streamed })
    }

    /// Calls a model once, with the body as the model takes it, for the whole answer or a sample that it lacks. `None` if it lacks
    /// further samples.
    async fn call(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        body: &Bytes,
        samples: &mut Samples,
        parts: Parts<'_>,
    ) -> Result<Option<Answer>, CallError> {
        let missing = samples.missing(&called.api);
        let mut reserved = match samples.reserved.take() {
            Some(reserved) => reserved,
            None => self.reserve(called, request, missing)?,
        };
        reserved.sent();
        let begun = Instant::now();
        let answer = called.http.send(
            Method::POST,
            &request.path,
            request.content_type,
            &request.headers,
            samples.next_body(body),
        );
        let answer = if request.streamed {
            openai::stream::within(self.timeout, answer).await
        } else {
            answer.await
        };
        let answer = reserved.release_if_refused(answer)?;
        if request.streamed {
            let answer = self.streamed(called, request, answer, reserved, parts).await;
            return answer.map(Some);
        }
        let head = head_of(&answer, request);
        let read = reserved.release_if_refused(called.read(answer).await)?;
        // What an unusable answer states is paid as well.
        reserved.settle(called.cost_of(openai::samples::counted(&read).0, 1));
        let added = samples.add(read, begun.elapsed());
        let added = reserved.release_if_refused(added);
        let whole = added.map_err(|error| error.redacted(|text| called.http.redact(text)))?;
        let missing = samples.missing(&called.api);
        if missing > 0 {
            reserved.pay_and_keep(called.most(request, missing));
            samples.reserved = Some(reserved);
            return Ok(None);
        }
        let answer = reserved.release_if_refused(called.decode(request, &head, &whole))?;
        if answer.calls == 1 {
            reserved.settle(called.cost(&answer));
        }
        self.record(
            called,
            request,
            &Recorded {
                took: samples.took,
                head,
                body: whole,
            },
        );
        Ok(Some(answer))
    }

    /// Reads a streamed answer.
    async fn streamed(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        answer: Response<Incoming>,
        mut reserved: Reserved,
        parts: Parts<'_>,
    ) -> Result<Answer, CallError> {
        let mut begun = false;
        let mut noted = |part: Outputs| {
            begun = true;
            parts(part);
        };
        let (api, wanted, gap) = (&called.api, request.top_logprobs, self.timeout);
        let answer = openai::stream::read(&called.http, answer, api, wanted, gap, &mut noted).await;
        let answer = if begun {
            answer
        } else {
            reserved.release_if_refused(answer)
        };
        let answer = answer.map_err(|error| error.redacted(|text| called.http.redact(text)))?;
        reserved.settle(called.cost(&answer));
        Ok(answer)
    }

    /// Writes an answer to disk, if answers are recorded.
    fn record(&self, called: &EndpointCall, request: &Prepared, answer: &Recorded) {
        let Some(cache) = &self.cache else { return };
        if let Err(error) = cache.put(&called.http.url(&request.path), &request.body, answer) {
            tracing::warn!(%error, "an answer could not be recorded");
        }
    }

    /// Returns the answer to a request that is on disk.
    fn recorded(&self, called: &EndpointCall, request: &Prepared) -> Option<Recorded> {
        let url = called.http.url(&request.path);
        self.cache.as_ref()?.get(&url, &request.body)
    }

    /// Returns whether the answer to a request is on disk.
    pub(crate) fn is_recorded(&self, request: &Prepared) -> bool {
        self.recorded(&self.model, request).is_some()
    }

    /// Reserves the most that the calls for missing samples may cost.
    fn reserve(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        missing: u32,
    ) -> Result<Reserved, CallError> {
        let Some(limit) = &self.spend_limit else {
            return Ok(Reserved::nothing());
        };
        let waiting = self.waiting.load(Ordering::Relaxed).max(1);
        limit.reserve(called.most(request, missing), waiting)
    }
}

/// Why an attempt failed.
struct AttemptError {
    error: CallError,
    /// Whether a part of the answer had arrived.
    streamed: bool,
}

/// Returns the time until a deadline.
fn left_until(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(Instant::now())
    })
}

/// The error of a request whose deadline came while it waited.
fn late(awaited: &str) -> ModelError {
    ModelError::Late {
        reason: format!("waiting for {awaited}"),
    }
}

/// Returns the failure of a judge, which names it.
fn of_judge(error: ModelError) -> ModelError {
    let named = |reason: String| format!("the judge: {reason}");
    match error {
        ModelError::Unavailable { reason } => ModelError::Unavailable {
            reason: named(reason),
        },
        ModelError::Refused { reason } => ModelError::Refused {
            reason: named(reason),
        },
        ModelError::InvalidRequest { reason } => ModelError::InvalidRequest {
            reason: named(reason),
        },
        ModelError::TooLong { reason } => ModelError::TooLong {
            reason: named(reason),
        },
        ModelError::BadOutput { reason } => ModelError::BadOutput {
            reason: named(reason),
        },
        ModelError::Late { reason } => ModelError::Late {
            reason: named(reason),
        },
        other => other,
    }
}

/// The header that reading an answer takes; empty if it has none.
fn head_of(answer: &Response<Incoming>, request: &Prepared) -> String {
    let head = request.head.as_ref().and_then(|name| answer.headers().get(name));
    let head = head.and_then(|value| value.to_str().ok());
    head.unwrap_or_default().to_owned()
}

/// Tokens of the prompt and of the answer.
fn usage_output(usage: Usage) -> Option<Tensor> {
    let counts =
        [usage.input_tokens, usage.output_tokens].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    Tensor::from_i64("usage", &[2], &counts).ok()
}

fn cost_output(cost: f64) -> Tensor {
    Tensor {
        name: "cost".to_owned(),
        shape: vec![1],
        datatype: Datatype::F64,
        data: Bytes::copy_from_slice(&cost.to_le_bytes()),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A random number in [0, 1), to spread pauses.
fn draw() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / (f64::from(u32::MAX) + 1.0))
}
