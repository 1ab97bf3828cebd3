//! One request to an endpoint: its place among others, circuit breaker, retries, deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Response};
use kaskade_models::{Datatype, ModelError, Outputs, Tensor};
use kaskade_policy::remote::breaker::{Breaker, Permission};
use kaskade_policy::remote::price::{Price, Spending, Usage};
use kaskade_policy::remote::retry::{self, FailedCall, RetryConfig};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::cache::{Cache, Recorded};
use crate::endpoint::{Api, Judge};
use crate::error::CallError;
use crate::http::Http;
use crate::oip::grpc;
use crate::openai::dialect::{self, Dialect};
use crate::prepared::{Answer, Parts, Prepared};
use crate::{oip, openai};

/// A model that is called: where it is, what is asked, and what a call costs.
pub(crate) struct EndpointCall {
    pub http: Arc<Http>,
    pub api: Api,
    pub price: Option<Price>,
    /// What its refusals have shown.
    pub dialect: Dialect,
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
}

/// State that all requests to an endpoint share.
pub(crate) struct Caller {
    pub model: EndpointCall,
    /// The model that judges its answers.
    pub judge: Option<(Judge, EndpointCall)>,
    pub places: Semaphore,
    pub timeout: Duration,
    pub retry: RetryConfig,
    pub breaker: Mutex<Breaker>,
    /// Notified when the breaker may have opened or closed.
    pub breaker_changed: Notify,
    pub cache: Option<Cache>,
    /// Spent so far, and the most that the calls under way may cost.
    pub spending: Option<Mutex<(Spending, f64)>>,
    /// Requests that are not answered yet.
    pub waiting: std::sync::atomic::AtomicU64,
    pub started: Instant,
}

impl Caller {
    /// Answers a request before its deadline, with the verdict of the judge on the answer to `asked` if there is one. The outputs state the tokens and the
    /// cost of all calls, as far as they are known.
    ///
    /// # Errors
    /// [`ModelError::Late`] if the deadline comes first; otherwise what the last call failed with.
    pub(crate) async fn answer(
        &self,
        asked: &str,
        request: &Prepared,
        deadline: Option<Instant>,
        parts: Parts<'_>,
    ) -> Result<Outputs, ModelError> {
        let answer = self.exchange(&self.model, request, deadline, parts).await?;
        let mut cost = self.model.cost(&answer);
        let Answer {
            mut outputs, usage, ..
        } = answer;
        if let (Some((judge, called)), Api::Chat(chat)) = (&self.judge, &self.model.api) {
            // An empty text has no judge, and is never sure.
            if let Some(judging) = openai::judge::prepare(judge, chat, asked, &outputs)? {
                let verdict = self.exchange(called, &judging, deadline, &mut |_| ()).await?;
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

    /// Calls a model until it answers or the deadline comes.
    async fn exchange(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        deadline: Option<Instant>,
        parts: Parts<'_>,
    ) -> Result<Answer, ModelError> {
        if let Some(recorded) = self.recorded(called, request) {
            // As long as it took: measurements of recorded answers are those of the endpoint.
            tokio::time::sleep(recorded.took).await;
            return Ok(called.decode(request, &recorded.head, &recorded.body)?);
        }
        let place = timeout(left_until(deadline), self.places.acquire()).await;
        let Ok(Ok(_place)) = place else {
            return Err(late("one of the places that `concurrency` allows"));
        };
        let mut repeated = 0;
        let mut body = called.dialect.write(request);
        loop {
            let probe = self.admit()?;
            let budget = left_until(deadline);
            let attempt = self.attempt(probe, called, request, &body, budget, parts).await;
            let AttemptError { error, streamed } = match attempt {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if left_until(deadline).is_zero() {
                return Err(late("the endpoint's answer"));
            }
            if let Some(changed) = called.dialect.learn(request, &body, &error) {
                tracing::info!(%error, "the endpoint takes another form of requests");
                body = changed;
                continue;
            }
            let failed = FailedCall {
                repeated,
                retryable: error.retryable(),
                retry_after_us: error.retry_after().map(micros),
                streamed,
            };
            let left_us = micros(left_until(deadline));
            let Some(pause) = retry::pause(&self.retry, failed, left_us, draw()) else {
                return Err(dialect::explained(error, &body).into());
            };
            tracing::debug!(%error, pause, "repeating a call");
            tokio::time::sleep(Duration::from_micros(pause)).await;
            repeated += 1;
        }
    }

    /// Makes one attempt within the endpoint's timeout and the budget, and reports its outcome to the circuit breaker.
    async fn attempt(
        &self,
        probe: Outcome<'_>,
        called: &EndpointCall,
        request: &Prepared,
        body: &Bytes,
        budget: Duration,
        parts: Parts<'_>,
    ) -> Result<Answer, AttemptError> {
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
        let outcome = timeout(limit, self.call(called, request, body, &mut noted)).await;
        let took = micros(begun.elapsed());
        let outcome = match outcome {
            Ok(outcome) => {
                probe.ended(&outcome, took);
                outcome
            }
            Err(_) if limit < self.timeout || request.streamed => {
                probe.cut_off(took, streamed);
                Err(CallError::Timeout { after: limit })
            }
            Err(_) => {
                let outcome = Err(CallError::Timeout { after: limit });
                probe.ended(&outcome, took);
                outcome
            }
        };
        outcome.map_err(|error| AttemptError { error, streamed })
    }

    /// Calls a model once, with the body as the model takes it.
    async fn call(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        body: &Bytes,
        parts: Parts<'_>,
    ) -> Result<Answer, CallError> {
        let mut reserved = self.reserve(called, request)?;
        let begun = Instant::now();
        let answer = called.http.send(
            Method::POST,
            &request.path,
            request.content_type,
            &request.headers,
            body.clone(),
        );
        let answer = if request.streamed {
            openai::stream::within(self.timeout, answer).await
        } else {
            answer.await
        };
        let answer = reserved.release_if_refused(answer)?;
        if request.streamed {
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
            return Ok(answer);
        }
        let head = request.head.as_ref().and_then(|name| answer.headers().get(name));
        let head = head
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let mut read = reserved.release_if_refused(called.read(answer).await)?;
        let missing = openai::samples::missing(&called.api, &read);
        if missing > 0 {
            let (others, failed) = self.more_samples(called, request, body, missing).await;
            let joined = openai::samples::joined(&read, &others);
            let joined = joined.map_err(|error| error.redacted(|text| called.http.redact(text)));
            if let Some(error) = failed {
                // The samples until then are paid.
                let (usage, calls) = joined.as_ref().map_or((None, 1), openai::samples::counted);
                reserved.settle(called.cost_of(usage, calls));
                return Err(error);
            }
            read = joined?;
        }
        let body = read;
        // What an answer of no use states is paid as well.
        let (usage, calls) = openai::samples::counted(&body);
        reserved.settle(called.cost_of(usage, calls));
        let answer = reserved.release_if_refused(called.decode(request, &head, &body))?;
        reserved.settle(called.cost(&answer));
        if let Some(cache) = &self.cache {
            let recorded = Recorded {
                took: begun.elapsed(),
                head,
                body,
            };
            if let Err(error) = cache.put(&called.http.url(&request.path), &request.body, &recorded) {
                tracing::warn!(%error, "an answer could not be recorded");
            }
        }
        Ok(answer)
    }

    /// Asks for samples one after the other, in the place of the call that lacks them, until one fails.
    async fn more_samples(
        &self,
        called: &EndpointCall,
        request: &Prepared,
        sent: &Bytes,
        count: u32,
    ) -> (Vec<Bytes>, Option<CallError>) {
        let mut samples = Vec::new();
        for number in 1..=count {
            let body = openai::samples::another(sent, number);
            let (method, path) = (Method::POST, &request.path);
            let asked = called
                .http
                .send(method, path, request.content_type, &request.headers, body);
            let sample = match asked.await {
                Ok(answer) => called.read(answer).await,
                Err(error) => Err(error),
            };
            match sample {
                Ok(sample) => samples.push(sample),
                Err(error) => return (samples, Some(error)),
            }
        }
        (samples, None)
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

    /// Takes a permission of the circuit breaker.
    pub(crate) fn admit(&self) -> Result<Outcome<'_>, CallError> {
        let now = self.now();
        let is_probe = match lock(&self.breaker).admit(now) {
            Permission::Send => false,
            Permission::Probe => true,
            Permission::Refused { until } => {
                return Err(CallError::BreakerOpen {
                    pause: Duration::from_micros(until.saturating_sub(now)),
                });
            }
        };
        Ok(Outcome {
            caller: self,
            is_probe,
            reported: false,
        })
    }

    /// Returns how long no request is sent; `None` while requests are sent.
    pub(crate) fn until_probe(&self) -> Option<Duration> {
        let until = lock(&self.breaker).next_probe()?;
        Some(Duration::from_micros(until.saturating_sub(self.now())))
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Reserves the most that a call may cost.
    fn reserve(&self, called: &EndpointCall, request: &Prepared) -> Result<Reserved<'_>, CallError> {
        let Some(spending) = &self.spending else {
            return Ok(Reserved {
                spending: None,
                most: 0.0,
                cost: None,
            });
        };
        // A token is at least one byte. An endpoint that gives one sample at a time is paid for every prompt.
        let calls = openai::samples::wanted(&called.api);
        let usage = Usage {
            input_tokens: u64::from(calls) * request.body.len() as u64,
            output_tokens: request.max_tokens.into(),
        };
        let most = called.cost_of(Some(usage), calls).unwrap_or(0.0);
        let waiting = self.waiting.load(std::sync::atomic::Ordering::Relaxed).max(1);
        let mut state = lock(spending);
        let (spent, reserved) = &mut *state;
        spent
            .admit(*reserved + most, waiting)
            .map_err(CallError::SpendLimit)?;
        *reserved += most;
        drop(state);
        Ok(Reserved {
            spending: Some(spending),
            most,
            cost: Some(most),
        })
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

/// Money that a call may cost. Only a refusal is known to cost nothing: a call that breaks off, is given up or has an answer of no
/// use costs what the answer states, and the most if that is not known.
struct Reserved<'a> {
    spending: Option<&'a Mutex<(Spending, f64)>>,
    most: f64,
    /// What is paid, as far as is known; `None` for a refused call.
    cost: Option<f64>,
}

impl Reserved<'_> {
    /// Notes what the call costs, if that is known.
    fn settle(&mut self, cost: Option<f64>) {
        self.cost = Some(cost.unwrap_or(self.most));
    }

    /// Releases the reservation if the endpoint refused the call, or was not reached.
    fn release_if_refused<T>(&mut self, outcome: Result<T, CallError>) -> Result<T, CallError> {
        if outcome.as_ref().is_err_and(CallError::is_refusal) {
            self.cost = None;
        }
        outcome
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(spending) = self.spending {
            let mut state = lock(spending);
            let (spent, reserved) = &mut *state;
            *reserved -= self.most;
            if let Some(cost) = self.cost {
                spent.spend(cost);
            }
        }
    }
}

/// Reports the outcome of a call to the circuit breaker, also if the call is cancelled.
pub(crate) struct Outcome<'a> {
    caller: &'a Caller,
    /// Whether the breaker waits for it.
    is_probe: bool,
    reported: bool,
}

impl Outcome<'_> {
    /// Leaves the probe to the next request.
    pub(crate) fn leave(mut self) {
        self.reported = true;
        lock(&self.caller.breaker).cancelled();
    }

    /// Reports the outcome of a call that took `took_us`.
    pub(crate) fn ended<T>(mut self, outcome: &Result<T, CallError>, took_us: u64) {
        if matches!(outcome, Err(CallError::SpendLimit(_))) {
            // Nothing was sent.
            return;
        }
        self.reported = true;
        let changed = &self.caller.breaker_changed;
        let now = self.caller.now();
        let mut breaker = lock(&self.caller.breaker);
        match outcome {
            Err(error) if error.is_endpoint_failure() => self.failed(&mut breaker, now, error),
            _ => {
                if !breaker.is_closed() {
                    changed.notify_one();
                }
                breaker.succeeded();
                if outcome.is_ok() {
                    breaker.answered_after(took_us);
                }
            }
        }
    }

    /// Reports a call that the budget of its request ended after `took_us`, before the endpoint's timeout. It is a failure of the
    /// endpoint if no part of the answer had arrived and the endpoint usually answers sooner.
    pub(crate) fn cut_off(mut self, took_us: u64, streamed: bool) {
        let now = self.caller.now();
        let mut breaker = lock(&self.caller.breaker);
        if !streamed && breaker.is_overdue(took_us) {
            self.reported = true;
            let after = Duration::from_micros(took_us);
            self.failed(&mut breaker, now, &CallError::Timeout { after });
        }
    }

    fn failed(&self, breaker: &mut Breaker, now: u64, error: &CallError) {
        let was_closed = breaker.is_closed();
        // While it is open, only the probe says something new.
        if self.is_probe || was_closed {
            breaker.failed(now);
        }
        if was_closed && !breaker.is_closed() {
            tracing::warn!(%error, "the circuit breaker opened");
        }
        if !breaker.is_closed() {
            self.caller.breaker_changed.notify_one();
        }
    }
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if self.is_probe && !self.reported {
            lock(&self.caller.breaker).cancelled();
            // What follows the endpoint's health may have waited for this outcome.
            self.caller.breaker_changed.notify_one();
        }
    }
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

/// The data is consistent at every moment: its changes are single assignments and cannot panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
