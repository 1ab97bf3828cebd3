//! Delayed labels: the correct answers to requests that were answered before.
//!
//! Every ingress receives every label, and only the one that answered the request replies. If no reply comes within the
//! client's timeout, no ingress remembers the request.

use async_nats::{Message as NatsMessage, Subject};
use futures::StreamExt;

use super::actor::Ingress;
use crate::{
    actor::{Addr, Context, Handler, Message},
    dispatch::dispatcher::Dispatcher,
    error::Fault,
    subjects,
    wire::{ContentType, Feedback, headers},
};

/// A label as received.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Labelled {
    feedback: Feedback,
    content_type: ContentType,
    reply: Option<Subject>,
}

/// Passes received labels to the ingress.
pub(super) async fn pump(mut labels: async_nats::Subscriber, ingress: Addr<Ingress>, dispatcher: Dispatcher) {
    while let Some(message) = labels.next().await {
        match read(&message) {
            Ok(labelled) => ingress.do_send(labelled),
            // Without this reply the client would conclude that no ingress remembers its request.
            Err(fault) => {
                tracing::warn!(%fault, "a label could not be read");
                dispatcher.refuse_message(&message, &fault);
            }
        }
    }
}

fn read(message: &NatsMessage) -> Result<Labelled, Fault> {
    let content_type = headers::content_type_of(message.headers.as_ref(), &message.payload)?;
    let feedback = Feedback::read(content_type, &message.payload)?;
    let reply = message.reply.clone();
    Ok(Labelled {
        feedback,
        content_type,
        reply: reply.filter(|reply| subjects::is_reply_allowed(reply)),
    })
}

impl Handler<Labelled> for Ingress {
    type Result = ();

    fn handle(&mut self, labelled: Labelled, _: &mut Context<Self>) {
        let Labelled {
            feedback,
            content_type,
            reply,
        } = labelled;
        let Some(feedback_reply) = self.audits.label(feedback) else {
            return;
        };
        if feedback_reply.refused.is_none() {
            self.metrics
                .certificates(|metrics| metrics.labelled(feedback_reply.right));
        }
        if let (Some(reply), Some(payload)) = (reply, feedback_reply.encoded(content_type)) {
            let headers = (content_type == ContentType::Json).then(|| headers::for_body(ContentType::Json));
            self.dispatcher.publish(reply, None, headers, payload);
        }
    }
}
