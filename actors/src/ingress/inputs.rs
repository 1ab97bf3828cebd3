//! The inputs of a request in flight.

use std::sync::Arc;

use bytes::Bytes;
use kaskade_models::Tensor;

use crate::{
    dispatch::deferral::input_bytes,
    error::Fault,
    wire::{self, ContentType, InferRequest},
};

/// Inputs of a request, retained for later dispatches.
///
/// The first dispatch takes the decoded inputs. A later one, after a failure or for a stage that does not forward by
/// itself, decodes the body again. A request that is dispatched once is therefore never copied. Tensors of a request
/// from the same process are shared.
pub(super) struct RetainedInputs {
    decoded: Option<Vec<Tensor>>,
    /// Size of the input data, bytes.
    input_bytes: usize,
    source: Source,
}

/// Source from which the inputs are restored.
#[derive(Clone)]
enum Source {
    Body(ContentType, Bytes),
    Request(Arc<InferRequest>),
}

impl RetainedInputs {
    /// Retains the body of a request along with its decoded inputs.
    pub(super) fn new(decoded: Vec<Tensor>, content_type: ContentType, body: Bytes) -> Self {
        Self {
            input_bytes: input_bytes(&decoded),
            decoded: Some(decoded),
            source: Source::Body(content_type, body),
        }
    }

    /// Retains a request from the same process.
    pub(super) fn shared(request: Arc<InferRequest>) -> Self {
        Self {
            decoded: None,
            input_bytes: input_bytes(&request.inputs),
            source: Source::Request(request),
        }
    }

    /// Returns the size of the input data, bytes, as stage scores read it.
    pub(super) fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// Returns the memory that the inputs occupy, bytes. Tensors of a MessagePack body share its memory.
    pub(super) fn size(&self) -> usize {
        let size = |inputs: &[Tensor]| -> usize {
            let sizes = inputs.iter().map(|input| input.data.len() + input.name.len());
            sizes.sum()
        };
        let decoded = self.decoded.as_deref().map_or(0, size);
        match &self.source {
            Source::Body(ContentType::MessagePack, body) => decoded.max(body.len()),
            Source::Body(ContentType::Json, body) => decoded.saturating_add(body.len()),
            Source::Request(request) => size(&request.inputs),
        }
    }

    /// Returns the same inputs for another request, without the decoded tensors.
    pub(super) fn again(&self) -> Self {
        Self {
            decoded: None,
            input_bytes: self.input_bytes,
            source: self.source.clone(),
        }
    }

    /// Returns the inputs.
    ///
    /// # Errors
    /// None in practice: the body was decoded before.
    pub(super) fn get(&mut self) -> Result<Vec<Tensor>, Fault> {
        match (self.decoded.take(), &self.source) {
            (Some(decoded), _) => Ok(decoded),
            (None, Source::Body(content_type, body)) => Ok(wire::decode_infer(*content_type, body)?.inputs),
            (None, Source::Request(request)) => Ok(request.inputs.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{InferRequest, Message as _};

    #[test]
    fn every_dispatch_gets_the_same_inputs() {
        let inputs = vec![Tensor::from_f32("x", &[2], &[1.0, 2.0]).unwrap()];
        let request = InferRequest {
            inputs: inputs.clone(),
            ..InferRequest::default()
        };
        let json = br#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1.0,2.0]}]}"#;
        for (content_type, body) in [
            (ContentType::MessagePack, request.encode().unwrap()),
            (ContentType::Json, Bytes::from_static(json)),
        ] {
            let decoded = wire::decode_infer(content_type, &body).unwrap().inputs;
            let mut retained = RetainedInputs::new(decoded, content_type, body.clone());
            assert!(retained.size() >= body.len());
            for _ in 0..3 {
                assert_eq!(retained.get().unwrap(), inputs);
            }
        }
        let mut retained = RetainedInputs::shared(Arc::new(request));
        assert_eq!(retained.size(), 9);
        for inputs_again in [retained.again().get(), retained.get(), retained.get()] {
            assert_eq!(inputs_again.unwrap(), inputs);
        }
    }
}
