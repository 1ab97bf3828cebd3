//! The client of an app.

use std::num::NonZeroU32;
use std::time::Duration;

use async_nats::HeaderMap;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::client::Accepted;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{FeedbackLabel, FeedbackReply, InferReply, InferRequest};
use kaskade_actors::{self as actors, Fault, subjects};
use kaskade_models::{Inputs, Tensor, TensorError};

use super::ServingError;

/// Default budget of a request, also of an app's `ingress.default_budget`.
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
    inner: actors::Client,
    budget: Duration,
    durable: bool,
}

impl Client {
    /// Connects to an app on a nats-server, or on the broker embedded by another process.
    ///
    /// # Errors
    /// [`ServingError::Bus`], or [`ServingError::Subject`] for an invalid name.
    pub async fn connect(url: impl Into<String>, app: &str) -> Result<Self, ServingError> {
        Self::connect_with(BusConfig::new(app).url(url), app).await
    }

    /// Connects with connection options, such as an nkey. The connection belongs to the runtime that awaits this call.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(bus: BusConfig, app: &str) -> Result<Self, ServingError> {
        let app = subjects::App::new(app)?;
        let bus = Bus::connect(bus).await?;
        Ok(Self {
            inner: actors::Client::new(&bus, app),
            bus,
            budget: DEFAULT_BUDGET,
            durable: false,
        })
    }

    /// Sets the budget of every request [default: 2 s].
    #[must_use]
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// Enables or disables retries of requests ([`actors::Client::retry`]) [default: enabled].
    #[must_use]
    pub fn retry(self, retries: bool) -> Self {
        Self {
            inner: self.inner.retry(retries),
            ..self
        }
    }

    /// Sets whether [`Client::infer`] submits durable requests and waits for their results [default: false].
    #[must_use]
    pub fn durable(self, durable: bool) -> Self {
        Self { durable, ..self }
    }

    /// Starts a request with a text.
    ///
    /// # Errors
    /// [`TensorError`] if the text cannot be a tensor.
    pub fn text(&self, text: &str) -> Result<Request<'_>, TensorError> {
        Ok(self.tensors(vec![Tensor::from_texts("text", &[text])?]))
    }

    /// Starts a request with tensors.
    pub fn tensors(&self, inputs: Inputs) -> Request<'_> {
        Request {
            client: self,
            inputs,
            budget: self.budget,
            id: None,
        }
    }

    /// Closes the connection. Requests without a reply fail.
    pub async fn close(&self) {
        self.bus.close().await;
    }

    /// Sends a request, and waits for its terminal reply.
    ///
    /// # Errors
    /// The app's fault; [`kaskade_actors::Code::NoReply`] if no reply came within the budget.
    pub async fn infer(&self, inputs: Inputs) -> Result<InferReply, Fault> {
        self.tensors(inputs).send().await
    }

    /// Submits a durable request, which gets one result even if processes are lost meanwhile. An id is generated if
    /// none is given.
    ///
    /// # Errors
    /// The fault of the app, or of submitting.
    pub async fn submit(&self, inputs: Inputs, id: Option<&str>) -> Result<Accepted, Fault> {
        let request = self.tensors(inputs);
        match id {
            Some(id) => request.id(id).submit().await,
            None => request.submit().await,
        }
    }

    /// Returns the result of a durable request; `None` if it has none yet, or if its result has expired.
    ///
    /// # Errors
    /// The fault of the request, or the reason why the result cannot be read.
    pub async fn result(&self, id: &str) -> Result<Option<InferReply>, Fault> {
        self.inner.result(id).await?.transpose()
    }

    /// Waits at most `timeout` for the result of a durable request, and returns it.
    ///
    /// # Errors
    /// The fault of the request; [`kaskade_actors::Code::NoReply`] if it has no result yet.
    pub async fn wait(&self, id: &str, timeout: Duration) -> Result<InferReply, Fault> {
        self.inner.wait_for(id, timeout).await
    }

    /// Cancels the requests with an id, as set by [`Request::id`]. They fail with [`kaskade_actors::Code::Cancelled`].
    ///
    /// # Errors
    /// [`kaskade_actors::Code::Malformed`] for an invalid id; [`kaskade_actors::Code::Unavailable`] if the connection is closed.
    pub async fn cancel(&self, id: &str) -> Result<(), Fault> {
        self.inner.cancel(id).await
    }

    /// Sends the correct answer (the label) of an earlier request, identified by its id ([`actors::Client::feedback`]).
    ///
    /// # Errors
    /// The app's fault.
    pub async fn feedback(
        &self,
        id: &str,
        label: FeedbackLabel,
        timeout: Duration,
    ) -> Result<Option<FeedbackReply>, Fault> {
        self.inner.feedback(id, label, timeout).await
    }

    /// Sends a request to a language model, and calls `part` with each new piece of the answer.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn stream(&self, inputs: Inputs, part: impl FnMut(InferReply)) -> Result<InferReply, Fault> {
        self.tensors(inputs).stream(part).await
    }
}

/// Builder of a request.
#[derive(Debug, Clone)]
#[must_use = "a request is sent by `send` or `submit`"]
pub struct Request<'a> {
    client: &'a Client,
    inputs: Inputs,
    budget: Duration,
    id: Option<String>,
}

impl Request<'_> {
    /// Adds a second text, such as the context of a question.
    ///
    /// # Errors
    /// [`TensorError`] if the text cannot be a tensor.
    pub fn text_pair(mut self, text: &str) -> Result<Self, TensorError> {
        self.inputs.push(Tensor::from_texts("text_pair", &[text])?);
        Ok(self)
    }

    /// Limits the length of a language model's answer, tokens.
    ///
    /// # Errors
    /// [`TensorError`] if the number cannot be a tensor.
    pub fn max_tokens(mut self, max_tokens: NonZeroU32) -> Result<Self, TensorError> {
        self.inputs
            .push(Tensor::from_i64("max_tokens", &[1], &[max_tokens.get().into()])?);
        Ok(self)
    }

    /// Sets the budget, after which the request fails.
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// Sets the request id, for [`Client::cancel`], [`Client::feedback`] and [`Client::wait`]. Ids must be unique.
    pub fn id(self, id: impl Into<String>) -> Self {
        Self {
            id: Some(id.into()),
            ..self
        }
    }

    /// Sends the request and waits for its terminal reply.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn send(self) -> Result<InferReply, Fault> {
        let (client, budget) = (self.client, self.budget);
        let (request, headers) = self.encoded();
        if client.durable {
            client.inner.submit_and_wait(&request, headers, budget).await
        } else {
            client.inner.ask(&request, headers, budget).await
        }
    }

    /// Sends the request to a language model, and calls `part` with each new piece of the answer.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn stream(self, part: impl FnMut(InferReply)) -> Result<InferReply, Fault> {
        let (client, budget) = (self.client, self.budget);
        let (request, headers) = self.encoded();
        client.inner.stream(request, headers, budget, part).await
    }

    /// Submits a durable request, which gets one result even if processes are lost meanwhile.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit(self) -> Result<Accepted, Fault> {
        let client = self.client;
        let (request, headers) = self.encoded();
        client.inner.submit(&request, headers).await
    }

    fn encoded(self) -> (InferRequest, HeaderMap) {
        let request = InferRequest {
            inputs: self.inputs,
            id: self.id,
            ..InferRequest::default()
        };
        let mut headers = HeaderMap::new();
        headers::put_budget(&mut headers, self.budget);
        (request, headers)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kaskade_actors::Code;

    use super::*;
    use crate::config::App;
    use crate::serving::Service;

    /// Regression: the Rust client could not set request ids, so it could not cancel requests.
    #[tokio::test]
    async fn requests_are_named_by_the_client() {
        let file = Path::new(kaskade_testkit::ROOT).join("examples/digits/app.toml");
        let app = App::load(&file).unwrap();
        let bus = BusConfig::new(app.name.as_str());
        let service = Service::builder(&app).bus(bus).start().unwrap();
        let client = service.client().await.unwrap().budget(Duration::from_secs(20));
        let blank = vec![Tensor::from_f32("image", &[1, 8, 8], &[0.0; 64]).unwrap()];
        let named = client.tensors(blank).id("first").send().await.unwrap();
        assert_eq!(named.id.as_deref(), Some("first"));
        client.cancel("first").await.unwrap();
        assert_eq!(client.cancel("").await.unwrap_err().code, Code::Malformed);
        assert_eq!(client.result("first").await.unwrap_err().code, Code::NotDurable);
        client.close().await;
        service.stop();
    }
}
