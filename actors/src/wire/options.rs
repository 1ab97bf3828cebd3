//! Options of a request besides its body.

use std::time::Duration;

use async_nats::HeaderMap;

use super::headers::{self, Trace};
use super::lists::MAX_PARAMETERS;
use super::{InferRequest, MAX_RANK, MAX_TENSORS};
use crate::error::{Code, Fault};
use crate::ids;

/// Name of the parameter that requests a streamed answer.
pub(crate) const STREAM: &str = "stream";

/// Id, budget and trace of a request: sent as headers on the bus, passed directly within a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOptions {
    /// Request id; unique, unless the client wants to cancel several requests at once.
    pub id: String,
    /// Whether the id is unique to this request, so that its remaining attempts may be cancelled by it.
    pub has_unique_id: bool,
    /// Budget of the request.
    pub budget: Duration,
    /// Trace context: the span that becomes the parent of the ingress's span.
    pub trace: Trace,
}

impl RequestOptions {
    /// Returns the options in the headers, with `budget`; generates an id if neither the headers nor the request have
    /// one.
    ///
    /// # Errors
    /// [`Code::Malformed`] for an invalid id.
    pub(crate) fn read(headers: &HeaderMap, request: &InferRequest, budget: Duration) -> Result<Self, Fault> {
        let named = headers::request_id(headers)?.or(request.id.as_deref());
        Ok(Self {
            has_unique_id: named.is_none(),
            id: named.map_or_else(ids::unique_token, ToOwned::to_owned),
            budget,
            trace: Trace::read(headers).unwrap_or_else(Trace::start),
        })
    }

    /// Returns the options as headers.
    ///
    /// # Errors
    /// [`Code::Malformed`] for an invalid id.
    pub(crate) fn headers(&self) -> Result<HeaderMap, Fault> {
        let mut headers = HeaderMap::new();
        headers::put_request_id(&mut headers, &self.id)?;
        headers::put_budget(&mut headers, self.budget);
        self.trace.put(&mut headers);
        Ok(headers)
    }
}

impl InferRequest {
    /// Requests parts of the answer from stages that always reply, unless the request already states the parameter.
    pub(crate) fn ask_for_parts(&mut self) {
        let stream = self.parameters.entry(STREAM.to_owned());
        stream.or_insert_with(|| "true".to_owned());
    }

    /// Requests only the complete answer.
    pub(crate) fn ask_for_no_parts(&mut self) {
        self.parameters.remove(STREAM);
    }

    /// Checks a request that is not encoded, as decoding would.
    ///
    /// # Errors
    /// [`Code::Malformed`].
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let malformed = |reason: String| {
            Err(Fault::new(
                Code::Malformed,
                format!("not a valid InferRequest: {reason}"),
            ))
        };
        if self.inputs.len() > MAX_TENSORS {
            return malformed(format!("more than {MAX_TENSORS} inputs"));
        }
        if self.parameters.len() > MAX_PARAMETERS {
            return malformed(format!("more than {MAX_PARAMETERS} parameters"));
        }
        for input in &self.inputs {
            if input.shape.len() > MAX_RANK {
                return malformed(format!(
                    "tensor `{}` has more than {MAX_RANK} dimensions",
                    input.name
                ));
            }
            // The elements are shared, not copied.
            if let Err(error) = input.clone().checked() {
                return malformed(error.to_string());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message as _;
    use bytes::Bytes;
    use kaskade_models::{Datatype, Tensor};

    #[test]
    fn a_request_is_checked_as_decoding_checks_it() {
        let tensor = |shape: &[usize], bytes: usize| Tensor {
            name: "x".to_owned(),
            shape: shape.to_vec(),
            datatype: Datatype::F32,
            data: Bytes::from(vec![0; bytes]),
        };
        let with = |inputs: Vec<Tensor>| InferRequest {
            inputs,
            ..InferRequest::default()
        };
        let mut many = with(Vec::new());
        many.parameters = (0..=MAX_PARAMETERS)
            .map(|number| (number.to_string(), String::new()))
            .collect();
        for (request, valid) in [
            (with(vec![tensor(&[2], 8)]), true),
            (with(vec![tensor(&[2], 7)]), false),
            (with(vec![tensor(&[1; MAX_RANK], 4)]), true),
            (with(vec![tensor(&[1; MAX_RANK + 1], 4)]), false),
            (with(vec![tensor(&[], 4); MAX_TENSORS]), true),
            (with(vec![tensor(&[], 4); MAX_TENSORS + 1]), false),
            (many, false),
        ] {
            assert_eq!(request.check().is_ok(), valid, "{request:?}");
            let decoded = InferRequest::decode(&request.encode().unwrap());
            assert_eq!(decoded.is_ok(), valid, "{request:?}");
        }
    }

    #[test]
    fn options_are_the_same_as_headers() {
        let options = RequestOptions {
            id: "one".to_owned(),
            has_unique_id: false,
            budget: Duration::from_millis(7),
            trace: Trace::start(),
        };
        let headers = options.headers().unwrap();
        assert_eq!(headers::budget(&headers).unwrap(), Some(options.budget));
        let read = RequestOptions::read(&headers, &InferRequest::default(), options.budget);
        assert_eq!(read.unwrap(), options);
    }
}
