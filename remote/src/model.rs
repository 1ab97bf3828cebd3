//! The `Model` of an endpoint: requests join and leave while others wait for their answers.
//!
//! Every model has a thread of its own for its connections. A step waits until something is answered, or another request
//! arrives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use kaskade_models::{
    Availability, Continuous, Inputs, Loaded, Model, ModelError, ModelInfo, Outputs, Progress, Signature,
    Similarity, Task, Waker,
};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::cache::Cache;
use crate::call::{Caller, EndpointCall};
use crate::circuit::Circuit;
use crate::endpoint::{Api, Chat, ChatTask, Confidence, Endpoint, Judge};
use crate::error::{CallError, ConnectError};
use crate::health::JointAvailability;
use crate::http::Http;
use crate::openai::dialect::Dialect;
use crate::prepared::Prepared;
use crate::{health, oip, openai};

/// Longest step. Its end lets the caller cancel what is late.
const STEP: Duration = Duration::from_millis(50);

/// Longest time in which an endpoint of the Open Inference Protocol must describe its model.
const METADATA: Duration = Duration::from_secs(10);

/// Part of a budget that is left for the way of the answer.
const RESERVED: f64 = 0.02;

/// A model behind an endpoint.
struct RemoteModel {
    caller: Arc<Caller>,
    availability: Availability,
    oip: Option<oip::Metadata>,
    signature: Signature,
    runtime: Background,
    running: BTreeMap<u64, Running>,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

/// A runtime whose end waits for nothing: a call may hang, and the caller may be inside another runtime, which must not block.
struct Background {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts a runtime with one thread.
    ///
    /// # Errors
    /// [`ConnectError::Thread`].
    fn start(name: &str) -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("{name}-http"))
            .enable_all()
            .build()
            .map_err(ConnectError::Thread)?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Running {
    call: AbortHandle,
    pieces: u32,
}

enum Event {
    Part(u64, Outputs),
    End(u64, Result<Outputs, ModelError>),
    Wake,
}

/// Creates the model of an endpoint. An endpoint of the OpenAI API is not called; one of the Open Inference Protocol
/// describes its model.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(endpoint: &Endpoint) -> Result<Loaded, ConnectError> {
    let runtime = Background::start(&endpoint.name)?;
    let ca = endpoint.ca.as_deref();
    let http = Arc::new(Http::new(&endpoint.base_url, endpoint.key.clone(), ca)?);
    let (signature, oip) = describe_inputs(endpoint, &runtime, &http)?;
    let caller = Arc::new(caller_of(endpoint, http)?);
    let availability = Availability::default();
    let judge = caller.judge.iter().map(|(_, judge)| judge);
    let endpoints: Vec<_> = [&caller.model].into_iter().chain(judge).map(Arc::clone).collect();
    let joint = Arc::new(JointAvailability::new(endpoints.len(), availability.clone()));
    for (number, called) in endpoints.into_iter().enumerate() {
        runtime
            .handle
            .spawn(health::follow(called, number, Arc::clone(&joint)));
    }
    let (sender, events) = channel();
    let model = RemoteModel {
        caller,
        availability,
        oip,
        signature,
        runtime,
        running: BTreeMap::new(),
        events,
        sender,
    };
    Ok(Loaded {
        model: Box::new(model),
        info: describe(endpoint),
    })
}

/// Returns the inputs of an endpoint's model; one of the Open Inference Protocol is asked.
fn describe_inputs(
    endpoint: &Endpoint,
    runtime: &Background,
    http: &Http,
) -> Result<(Signature, Option<oip::Metadata>), ConnectError> {
    match &endpoint.api {
        Api::Chat(chat) => Ok((openai::chat::signature(chat), None)),
        Api::Embeddings { .. } => Ok((openai::embeddings::signature(), None)),
        Api::Oip { model, version } => {
            let metadata = fetch(&runtime.handle, http, model, version.as_deref());
            let metadata = metadata.map_err(|source| ConnectError::Metadata {
                base_url: endpoint.base_url.clone(),
                model: model.clone(),
                source,
            })?;
            Ok((metadata.signature(), Some(metadata)))
        }
    }
}

/// Returns the state that all requests to an endpoint share.
fn caller_of(endpoint: &Endpoint, http: Arc<Http>) -> Result<Caller, ConnectError> {
    let cache = endpoint.cache.as_ref().map(|dir| {
        Cache::open(dir).map_err(|source| ConnectError::Cache {
            path: dir.display().to_string(),
            source,
        })
    });
    Ok(Caller {
        judge: judge_of(endpoint, &http)?,
        model: Arc::new(EndpointCall {
            http,
            api: endpoint.api.clone(),
            price: endpoint.price,
            dialect: Dialect::default(),
            circuit: Circuit::new(endpoint.breaker),
        }),
        permits: Semaphore::new(endpoint.concurrency.get()),
        timeout: endpoint.timeout,
        retry: endpoint.retry,
        cache: cache.transpose()?,
        spend_limit: endpoint.spend_limit.clone(),
        waiting: AtomicU64::new(0),
    })
}

/// Returns the judge of an endpoint's answers, at the endpoint or at its own address.
fn judge_of(
    endpoint: &Endpoint,
    http: &Arc<Http>,
) -> Result<Option<(Judge, Arc<EndpointCall>)>, ConnectError> {
    let Api::Chat(Chat {
        confidence: Confidence::Judge(judge),
        ..
    }) = &endpoint.api
    else {
        return Ok(None);
    };
    let http = match &judge.at {
        None => Arc::clone(http),
        Some((base_url, key)) => Arc::new(Http::new(base_url, key.clone(), endpoint.ca.as_deref())?),
    };
    let called = EndpointCall {
        http,
        api: Api::Chat(judge.chat.clone()),
        price: judge.price,
        dialect: Dialect::default(),
        circuit: Circuit::new(endpoint.breaker),
    };
    Ok(Some((judge.as_ref().clone(), Arc::new(called))))
}

fn fetch(
    runtime: &Handle,
    http: &Http,
    model: &str,
    version: Option<&str>,
) -> Result<oip::Metadata, CallError> {
    // On a thread that blocks nothing: the caller may be inside another runtime.
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            runtime.block_on(async {
                let fetching = tokio::time::timeout(METADATA, oip::Metadata::fetch(http, model, version));
                fetching
                    .await
                    .unwrap_or(Err(CallError::Timeout { after: METADATA }))
            })
        });
        fetching.join().unwrap_or_else(|_| {
            Err(CallError::Broken {
                reason: "the thread of the call ended".to_owned(),
            })
        })
    })
}

fn describe(endpoint: &Endpoint) -> ModelInfo {
    let (architecture, task, labels) = match &endpoint.api {
        Api::Chat(chat) => match &chat.task {
            ChatTask::Classify { labels } => ("openai chat", Task::Classification, labels.clone()),
            ChatTask::Generate => ("openai chat", Task::Generation, Vec::new()),
        },
        Api::Embeddings { .. } => ("openai embeddings", Task::Embedding, Vec::new()),
        Api::Oip { .. } => ("oip", Task::Classification, Vec::new()),
    };
    ModelInfo {
        name: endpoint.name.clone(),
        architecture: architecture.to_owned(),
        // The endpoint's, and unknown.
        parameters: 0,
        weight_bytes: 0,
        task,
        labels,
        prompts: Vec::new(),
        similarity: Similarity::default(),
    }
}

impl RemoteModel {
    fn prepare(&self, inputs: &Inputs) -> Result<Prepared, ModelError> {
        match (&self.caller.model.api, &self.oip) {
            (Api::Chat(chat), _) => {
                // A stream has no whole answer to record.
                let streamed = chat.task == ChatTask::Generate && self.caller.cache.is_none();
                openai::chat::prepare(chat, inputs, streamed)
            }
            (Api::Embeddings { model }, _) => openai::embeddings::prepare(model, inputs),
            (Api::Oip { .. }, Some(metadata)) => metadata.prepare(inputs),
            (Api::Oip { .. }, None) => Err(ModelError::Failed {
                reason: "the endpoint has not described its model".to_owned(),
            }),
        }
    }

    fn start(&mut self, number: u64, inputs: &Inputs, budget: Option<Duration>) -> Result<(), ModelError> {
        let request = self.prepare(inputs)?;
        let waiting = Waiting::one(&self.caller);
        self.launch(number, inputs, request, budget, Some(waiting))
    }

    /// Begins a call; `waiting` counts its request until it is answered.
    fn launch(
        &mut self,
        number: u64,
        inputs: &Inputs,
        request: Prepared,
        budget: Option<Duration>,
        waiting: Option<Waiting>,
    ) -> Result<(), ModelError> {
        let deadline = budget.and_then(|budget| Instant::now().checked_add(budget.mul_f64(1.0 - RESERVED)));
        let (caller, events) = (Arc::clone(&self.caller), self.sender.clone());
        let prompt = match &caller.judge {
            Some(_) => openai::prompt::Prompt::read(inputs)?.to_text()?,
            None => String::new(),
        };
        let call = self.runtime.handle.spawn(async move {
            let _waiting = waiting;
            let mut parts = |part| drop(events.send(Event::Part(number, part)));
            let end = caller.answer(&prompt, &request, deadline, &mut parts).await;
            // The receiver is gone if the model is dropped.
            drop(events.send(Event::End(number, end)));
        });
        let call = call.abort_handle();
        self.running.insert(number, Running { call, pieces: 0 });
        Ok(())
    }

    fn take(&mut self, event: Event) -> Option<Progress> {
        let (number, part, end) = match event {
            Event::Part(number, part) => (number, part, None),
            Event::End(number, end) => (number, Outputs::new(), Some(end)),
            Event::Wake => return None,
        };
        // No further progress is reported for a request that was cancelled.
        let running = self.running.get_mut(&number)?;
        running.pieces += u32::from(!part.is_empty());
        let pieces = running.pieces;
        if end.is_some() {
            self.running.remove(&number);
        }
        Some(Progress {
            number,
            pieces,
            part,
            end,
        })
    }
}

/// Counts a request while it is not answered.
struct Waiting(Arc<Caller>);

impl Waiting {
    fn one(caller: &Arc<Caller>) -> Self {
        caller.waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(caller))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Continuous for RemoteModel {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.start(number, inputs, None)
    }

    fn submit_within(&mut self, number: u64, inputs: &Inputs, budget: Duration) -> Result<(), ModelError> {
        self.start(
            number,
            inputs,
            Some(budget).filter(|budget| *budget < Duration::MAX),
        )
    }

    fn cancel(&mut self, number: u64) {
        if let Some(running) = self.running.remove(&number) {
            running.call.abort();
        }
    }

    fn step(&mut self) -> Vec<Progress> {
        let mut progress = Vec::new();
        if let Ok(first) = self.events.recv_timeout(STEP) {
            progress.extend(self.take(first));
            while let Ok(event) = self.events.try_recv() {
                progress.extend(self.take(event));
            }
        }
        progress
    }

    fn waker(&self) -> Option<Waker> {
        let sender = self.sender.clone();
        Some(Arc::new(move || drop(sender.send(Event::Wake))))
    }
}

impl Model for RemoteModel {
    fn signature(&self) -> Signature {
        self.signature.clone()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.signature.check(inputs)?;
        self.prepare(inputs).map(drop)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut results: Vec<Option<Result<Outputs, ModelError>>> = Vec::with_capacity(batch.len());
        // All are counted before the first call, so that a limit of spending can say what the batch would take.
        let prepared: Vec<_> = batch
            .iter()
            .map(|inputs| {
                let request = self.prepare(inputs)?;
                let waiting = (!self.caller.is_recorded(&request)).then(|| Waiting::one(&self.caller));
                Ok((request, waiting))
            })
            .collect();
        for ((number, inputs), prepared) in (0..).zip(batch).zip(prepared) {
            let started =
                prepared.and_then(|(request, waiting)| self.launch(number, inputs, request, None, waiting));
            results.push(started.err().map(Err));
        }
        while !self.running.is_empty() {
            for Progress { number, end, .. } in self.step() {
                let place = usize::try_from(number)
                    .ok()
                    .and_then(|place| results.get_mut(place));
                if let (Some(place), Some(end)) = (place, end) {
                    *place = Some(end);
                }
            }
        }
        let lost = || {
            Err(ModelError::Failed {
                reason: "the request ended without an answer".to_owned(),
            })
        };
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(lost))
            .collect()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }

    fn availability(&self) -> Option<Availability> {
        Some(self.availability.clone())
    }
}
