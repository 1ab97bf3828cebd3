//! The inputs of a request in flight.

use bytes::Bytes;
use kaskade_models::Tensor;

use crate::{
    error::Fault,
    wire::{self, ContentType},
};

/// The inputs of a request for each of its dispatches.
///
/// The first dispatch takes the decoded inputs. A later one, after a failure or for a stage that does not forward by itself,
/// decodes the body again. A request that is sent once is therefore never copied.
pub(super) struct RetainedInputs {
    decoded: Option<Vec<Tensor>>,
    content_type: ContentType,
    body: Bytes,
}

impl RetainedInputs {
    /// Retains the body of a request beside its decoded inputs.
    pub(super) fn new(decoded: Vec<Tensor>, content_type: ContentType, body: Bytes) -> Self {
        Self {
            decoded: Some(decoded),
            content_type,
            body,
        }
    }

    /// Returns the bytes that they occupy: the tensors of a MessagePack body share its memory.
    pub(super) fn size(&self) -> usize {
        let decoded = self.decoded.iter().flatten();
        let decoded: usize = decoded.map(|input| input.data.len() + input.name.len()).sum();
        match self.content_type {
            ContentType::MessagePack => decoded.max(self.body.len()),
            ContentType::Json => decoded.saturating_add(self.body.len()),
        }
    }

    /// Returns the same inputs for another request, without the decoded ones.
    pub(super) fn again(&self) -> Self {
        Self {
            decoded: None,
            content_type: self.content_type,
            body: self.body.clone(),
        }
    }

    /// Returns the inputs.
    ///
    /// # Errors
    /// Never, because the body was decoded before.
    pub(super) fn get(&mut self) -> Result<Vec<Tensor>, Fault> {
        match self.decoded.take() {
            Some(decoded) => Ok(decoded),
            None => Ok(wire::decode_infer(self.content_type, &self.body)?.inputs),
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
    }
}
