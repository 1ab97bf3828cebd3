//! Delayed labels.

use std::time::Duration;

use async_nats::{Request, RequestErrorKind};

use super::Client;
use crate::{
    error::{Code, Fault},
    wire::{ContentType, Feedback, FeedbackLabel, FeedbackReply, Message as _, headers},
};

impl Client {
    /// Sends the correct answer (the label) of an earlier request, identified by the request id, and returns how it was
    /// used. `None` if no ingress remembers the request within `timeout`: it had no id, already has a label, is too
    /// old, or its plan has no certified list.
    ///
    /// # Errors
    /// [`Code::UnknownApp`] if no process serves the app; [`Code::Malformed`] for an invalid id; [`Code::TooLarge`] if
    /// the message exceeds the broker's limit; [`Code::Unavailable`] if the connection is closed.
    pub async fn feedback(
        &self,
        id: &str,
        label: FeedbackLabel,
        timeout: Duration,
    ) -> Result<Option<FeedbackReply>, Fault> {
        let feedback = Feedback {
            id: id.to_owned(),
            label,
        };
        let payload = feedback.encode()?;
        self.bus.check_size(None, payload.len())?;
        let request = Request::new().payload(payload).timeout(Some(timeout));
        let subject = self.app.feedback();
        let asked = async {
            match self.nats.send_request(subject.clone(), request).await {
                Ok(reply) => match headers::fault(reply.headers.as_ref()) {
                    Some(fault) => Err(fault),
                    None => Ok(Some(FeedbackReply::read(
                        ContentType::MessagePack,
                        &reply.payload,
                    )?)),
                },
                Err(error) => match error.kind() {
                    RequestErrorKind::TimedOut => Ok(None),
                    RequestErrorKind::NoResponders => Err(self.no_responders()),
                    _ => Err(Fault::new(Code::Unavailable, error.to_string())),
                },
            }
        };
        self.permitted(&subject, asked).await
    }
}
