//! Answers queries for the stored plan on an embedded broker, which has no JetStream to read it from.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;

use crate::bus::Bus;
use crate::dispatch::dispatcher::Dispatcher;
use crate::plan::store::PlanStore;
use crate::subjects;

/// Answers every query with the newest stored plan, or with an empty body if there is none.
pub(super) async fn serve(bus: Bus, dispatcher: Dispatcher, store: Arc<dyn PlanStore>) {
    let mut requests = match bus
        .control()
        .subscribe(dispatcher.app().stored_plan(), None)
        .await
    {
        Ok(requests) => requests,
        Err(error) => {
            tracing::warn!(%error, "requests for the stored plan cannot be answered");
            return;
        }
    };
    while let Some(request) = requests.next().await {
        let Some(reply) = request.reply.filter(|reply| subjects::is_reply_allowed(reply)) else {
            continue;
        };
        let encoded = match store.get().await {
            Ok(Some(stored)) => stored.encode(),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        match encoded {
            Ok(plan) => dispatcher.publish_control(reply, Bytes::from(plan)),
            Err(error) => tracing::warn!(%error, "a request for the stored plan cannot be answered"),
        }
    }
}
