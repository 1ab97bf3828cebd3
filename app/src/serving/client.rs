//! The client of an app.

use std::num::NonZeroU32;
use std::time::Duration;

use async_nats::HeaderMap;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::client::Accepted;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{FeedbackReply, InferReply, InferRequest, RightAnswer};
use kaskade_actors::{self as actors, Fault, subjects};
use kaskade_models::{Inputs, Tensor, TensorError};

use super::ServingError;

/// Default time budget of a request; the default of an app's `ingress.default_budget`.
pub const DEFAULT_BUDGET: Duration = Duration::from_secs(2);

/// A client of one app. Cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// use kaskade_app::serving::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("nats://127.0.0.1:4222", "reviews").await?;
/// let request = client.text("a film that stays with you")?.budget(Duration::from_millis(250));
/// println!("{:?}", request.send().await?.confidence);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    bus: Bus,
    asked: actors::Client,
    budget: Duration,
    durable: bool,
}

impl Client {
    /// Connects to the app of that name on a nats-server, or on the broker that another process embeds.
    ///
    /// # Errors
    /// [`ServingError::Bus`], or [`ServingError::Subject`] for an invalid name.
    pub async fn connect(url: impl Into<String>, app: &str) -> Result<Self, ServingError> {
        Self::open(app, BusConfig::new(app).url(url), DEFAULT_BUDGET).await
    }

    /// Connects. The connection belongs to the runtime that this is awaited on.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn open(app: &str, bus: BusConfig, budget: Duration) -> Result<Self, ServingError> {
        let app = subjects::App::new(app)?;
        let bus = Bus::connect(bus).await?;
        Ok(Self {
            asked: actors::Client::new(&bus, app),
            bus,
            budget,
            durable: false,
        })
    }

    /// The same with another time budget for every request.
    #[must_use]
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// Starts a request with a text.
    ///
    /// # Errors
    /// When the text is no tensor.
    pub fn text(&self, text: &str) -> Result<Request<'_>, TensorError> {
        Ok(self.tensors(vec![Tensor::from_texts("text", &[text])?]))
    }

    /// Starts a request with tensors.
    pub fn tensors(&self, inputs: Inputs) -> Request<'_> {
        Request {
            client: self,
            inputs,
            budget: self.budget,
        }
    }

    /// The same, but whether a request is sent again after a failure ([`actors::Client::retry`]); the default is to do so.
    #[must_use]
    pub fn retry(self, retries: bool) -> Self {
        Self {
            asked: self.asked.retry(retries),
            ..self
        }
    }

    /// The same, with every request submitted to be kept until it is answered.
    #[must_use]
    pub fn durably(self) -> Self {
        Self {
            durable: true,
            ..self
        }
    }

    /// Closes the connection. Requests without a reply fail.
    pub async fn leave(&self) {
        self.bus.close().await;
    }

    /// Sends the request, and waits for the one terminal reply.
    ///
    /// # Errors
    /// The app's fault; [`kaskade_actors::Code::NoReply`] if no reply came within the budget.
    pub async fn ask(&self, inputs: Inputs) -> Result<InferReply, Fault> {
        if !self.durable {
            return self.asked.infer(inputs, self.budget).await;
        }
        let (request, headers) = self.submission(inputs, None);
        self.asked.submit_and_wait(&request, headers, self.budget).await
    }

    /// Submits a durable request, which gets one result even if processes are lost meanwhile.
    ///
    /// # Errors
    /// The fault of the app or of the stream.
    pub async fn submit(&self, inputs: Inputs, id: Option<&str>) -> Result<Accepted, Fault> {
        let (request, headers) = self.submission(inputs, id);
        self.asked.submit(&request, headers).await
    }

    fn submission(&self, inputs: Inputs, id: Option<&str>) -> (InferRequest, HeaderMap) {
        let request = InferRequest {
            inputs,
            id: id.map(ToOwned::to_owned),
            ..InferRequest::default()
        };
        let mut headers = HeaderMap::new();
        headers::put_budget(&mut headers, self.budget);
        (request, headers)
    }

    /// Returns the result of a durable request; waits for it at most `patience`.
    ///
    /// # Errors
    /// The request's fault; [`kaskade_actors::Code::NoReply`] if it has no result yet.
    pub async fn wait_for(&self, id: &str, patience: Duration) -> Result<InferReply, Fault> {
        self.asked.wait_for(id, patience).await
    }

    /// Tells the right answer to a request that was answered before, by its id ([`actors::Client::feedback`]).
    ///
    /// # Errors
    /// The app's fault.
    pub async fn feedback(
        &self,
        id: &str,
        label: RightAnswer,
        patience: Duration,
    ) -> Result<Option<FeedbackReply>, Fault> {
        self.asked.feedback(id, label, patience).await
    }

    /// Sends a request to a language model; `part` is called with each new piece of the answer.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn stream(&self, inputs: Inputs, part: impl FnMut(InferReply)) -> Result<InferReply, Fault> {
        let request = InferRequest {
            inputs,
            ..InferRequest::default()
        };
        self.asked
            .stream(request, HeaderMap::new(), self.budget, part)
            .await
    }
}

/// A request that is being put together.
#[derive(Debug, Clone)]
#[must_use = "a request is sent by `send` or `submit`"]
pub struct Request<'a> {
    client: &'a Client,
    inputs: Inputs,
    budget: Duration,
}

impl Request<'_> {
    /// Adds a second text, such as the context of a question.
    ///
    /// # Errors
    /// When the text is no tensor.
    pub fn text_pair(mut self, text: &str) -> Result<Self, TensorError> {
        self.inputs.push(Tensor::from_texts("text_pair", &[text])?);
        Ok(self)
    }

    /// Bounds a language model's answer.
    ///
    /// # Errors
    /// When the number is no tensor.
    pub fn max_tokens(mut self, most: NonZeroU32) -> Result<Self, TensorError> {
        self.inputs
            .push(Tensor::from_i64("max_tokens", &[1], &[most.get().into()])?);
        Ok(self)
    }

    /// Sets the time within which the request is answered, or fails.
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// Sends the request and waits for its one terminal reply.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn send(self) -> Result<InferReply, Fault> {
        self.client.clone().budget(self.budget).ask(self.inputs).await
    }

    /// Submits a durable request, which gets one result even if processes are lost meanwhile.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit(self, id: Option<&str>) -> Result<Accepted, Fault> {
        self.client
            .clone()
            .budget(self.budget)
            .submit(self.inputs, id)
            .await
    }
}
