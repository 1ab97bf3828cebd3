//! Labels that arrive later: the right answer to a request that was answered before.
//!
//! Every ingress receives every label; the one that answered the request replies, so that a label without a reply within the client's
//! patience belongs to a request that no ingress remembers.

use async_nats::{Message as NatsMessage, Subject};
use futures::StreamExt;
use kaskade_policy::confidence::deferral::number_of_text;
use kaskade_policy::watch::Answer;

use super::actor::Ingress;
use crate::{
    actor::{Addr, Context, Handler, Message},
    subjects,
    wire::{ContentType, Feedback, FeedbackReply, RightAnswer, headers},
};

/// A label as received.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Labelled {
    feedback: Feedback,
    content_type: ContentType,
    reply: Option<Subject>,
}

/// Passes labels to the ingress.
pub(super) async fn pump(mut labels: async_nats::Subscriber, ingress: Addr<Ingress>) {
    while let Some(message) = labels.next().await {
        match read(&message) {
            Ok(labelled) => ingress.do_send(labelled),
            Err(reason) => tracing::warn!(reason, "a label could not be read"),
        }
    }
}

fn read(message: &NatsMessage) -> Result<Labelled, String> {
    let content_type = headers::content_type(message.headers.as_ref()).map_err(|fault| fault.to_string())?;
    let feedback = Feedback::read(content_type, &message.payload).map_err(|fault| fault.to_string())?;
    let reply = message.reply.clone();
    Ok(Labelled {
        feedback,
        content_type,
        reply: reply.filter(|reply| subjects::is_reply_allowed(reply)),
    })
}

/// Returns a label in the form in which that answer is compared.
fn right_answer(label: &RightAnswer, answer: &Answer) -> Answer {
    match (label, answer) {
        (RightAnswer::Class(class), _) => Answer::Number(*class),
        (RightAnswer::Text(text), Answer::Text { by, .. }) => Answer::text(text, *by),
        (RightAnswer::Text(text), Answer::Number(_)) => Answer::Number(number_of_text(text.trim()).into()),
    }
}

impl Handler<Labelled> for Ingress {
    type Result = ();

    fn handle(&mut self, labelled: Labelled, _: &mut Context<Self>) {
        let Labelled {
            feedback,
            content_type,
            reply,
        } = labelled;
        let Some(recent) = self.audits.recent.take(&feedback.id) else {
            return;
        };
        let right = right_answer(&feedback.label, &recent.answer);
        let counts = recent.judged(&right);
        self.metrics.watch(|metrics| metrics.labelled(counts.right > 0));
        self.count_labels(&recent, &counts);
        let told = FeedbackReply {
            id: feedback.id,
            right: counts.right > 0,
            variant: recent.variant,
            audited: recent.largest.is_some(),
        };
        if let (Some(reply), Some(payload)) = (reply, told.encoded(content_type)) {
            let headers = (content_type == ContentType::Json).then(|| headers::for_body(ContentType::Json));
            self.dispatcher.publish(reply, None, headers, payload);
        }
    }
}
