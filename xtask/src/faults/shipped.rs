//! The same load as the oracle's, sent by the client that Kaskade ships, which sends requests again.

use std::time::{Duration, Instant};

use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::wire::InferRequest;
use kaskade_actors::{App, Client, Code};

use super::oracle::{End, Fate, Load, Tally};
use crate::deployed_plan::APP;

/// Sends the load with the shipped client, and makes the fault when a third of it is sent; `strike` returns the moment from which
/// recovery counts. A request counts as lost if the client got no reply to it.
pub(super) async fn under<F>(load: &Load, strike: F) -> anyhow::Result<Tally>
where
    F: AsyncFnOnce() -> anyhow::Result<Instant>,
{
    let bus = Bus::connect(BusConfig::new(APP).url(&load.url)).await?;
    let client = Client::new(&bus, App::new(APP)?);
    let sending = tokio::spawn(send(client, load.clone()));
    tokio::time::sleep(Duration::from_secs_f64(load.total as f64 / 3.0 / load.rate)).await;
    let struck = strike().await?;
    Ok(Tally {
        fates: sending.await??,
        budget: load.budget,
        struck: Some(struck),
    })
}

async fn send(client: Client, load: Load) -> anyhow::Result<Vec<Fate>> {
    let begun = Instant::now();
    let mut asked = Vec::new();
    for number in 0..load.total {
        let due = begun + Duration::from_secs_f64(number as f64 / load.rate);
        tokio::time::sleep_until(due.into()).await;
        let (client, budget) = (client.clone(), load.budget);
        let request = InferRequest {
            inputs: (load.asks)(number),
            ..InferRequest::default()
        };
        asked.push(tokio::spawn(async move { ask(&client, &request, budget).await }));
    }
    let mut fates = Vec::new();
    for one in asked {
        fates.push(one.await?);
    }
    Ok(fates)
}

async fn ask(client: &Client, request: &InferRequest, budget: Duration) -> Fate {
    let sent = Instant::now();
    let reply = client.ask(request, async_nats::HeaderMap::new(), budget).await;
    let end = match reply {
        Ok(reply) => Some(End::Answer {
            degraded: reply.degraded,
        }),
        Err(fault) if fault.code == Code::NoReply => None,
        Err(fault) => Some(End::Fault(fault.code.id())),
    };
    Fate {
        sent,
        replies: end.map(|end| (sent.elapsed(), end)).into_iter().collect(),
    }
}
