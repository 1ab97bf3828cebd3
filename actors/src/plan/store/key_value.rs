//! The plan store of a nats-server: one bucket per app with one key; the epoch is the revision.
//!
//! If the bucket does not exist, it is created with file storage, one replica and a history of 16 plans. For other
//! settings, such as three replicas in a cluster, create it first: `nats kv add kaskade-<app> --replicas 3 --history
//! 16`.

use async_nats::jetstream::context::{KeyValueError, KeyValueErrorKind};
use async_nats::jetstream::kv::{self, CreateErrorKind, Entry, Operation, UpdateErrorKind};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kaskade_policy::plan::Plan;

use super::{PlanStore, Plans, StoreError, Stored, read, write};
use crate::bus::Bus;
use crate::subjects::App;

const KEY: &str = "plan";
const HISTORY: i64 = 16;

/// A server that denies the operation does not answer, so the message names the role that may do it.
const CREATING: &str = "creating the plan bucket (with role permissions, only the planner may do so)";

/// Bytes that the protocol adds to a value: headers of the compare-and-set.
const HEADROOM: usize = 1024;

/// A plan store in JetStream.
#[derive(Debug, Clone)]
pub struct KeyValueStore {
    bucket: kv::Store,
    bus: Bus,
}

impl KeyValueStore {
    /// Opens the store of that app; creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::NeedsJetStream`], [`StoreError::Unreachable`].
    pub async fn open(bus: &Bus, app: &App) -> Result<Self, StoreError> {
        if !bus.has_jetstream().await {
            return Err(StoreError::NeedsJetStream {
                url: bus.url().to_owned(),
            });
        }
        let jetstream = async_nats::jetstream::new(bus.client().clone());
        let name = app.bucket();
        let bucket = match jetstream.get_key_value(&name).await {
            Ok(bucket) => bucket,
            Err(error) if absent(&error) => {
                let config = kv::Config {
                    bucket: name,
                    description: format!("Plans of the Kaskade app {app}"),
                    history: HISTORY,
                    ..kv::Config::default()
                };
                let created = jetstream.create_key_value(config).await;
                created.map_err(|error| StoreError::unreachable(CREATING, &error))?
            }
            Err(error) => return Err(StoreError::unreachable("opening the plan bucket", &error)),
        };
        Ok(Self {
            bucket,
            bus: bus.clone(),
        })
    }

    async fn entry(&self) -> Result<Option<Entry>, StoreError> {
        let entry = self.bucket.entry(KEY).await;
        let entry = entry.map_err(|error| StoreError::unreachable("reading the plan", &error))?;
        Ok(entry.filter(|entry| entry.operation == Operation::Put))
    }

    async fn swap(&self, bytes: Vec<u8>, expected: Option<u64>) -> Result<u64, StoreError> {
        let (size, limit) = (bytes.len(), self.bus.max_payload().saturating_sub(HEADROOM));
        if size > limit {
            return Err(StoreError::TooLarge { size, limit });
        }
        let (lost, error) = match expected {
            None => match self.bucket.create(KEY, bytes.into()).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) => (error.kind() == CreateErrorKind::AlreadyExists, error.to_string()),
            },
            Some(expected) => match self.bucket.update(KEY, bytes.into(), expected).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) => (
                    error.kind() == UpdateErrorKind::WrongLastRevision,
                    error.to_string(),
                ),
            },
        };
        if !lost {
            return Err(StoreError::unreachable("writing the plan", &error));
        }
        // Only for the error message; the write has been refused in any case.
        let newest = self.entry().await.ok().flatten().map(|entry| entry.revision);
        Err(StoreError::Stale { expected, newest })
    }

    #[cfg(test)]
    pub(super) async fn put_raw(&self, bytes: &[u8], expected: Option<u64>) -> Result<u64, StoreError> {
        self.swap(bytes.to_vec(), expected).await
    }
}

fn absent(error: &KeyValueError) -> bool {
    error.kind() == KeyValueErrorKind::GetBucket
}

impl PlanStore for KeyValueStore {
    fn get(&self) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        async {
            let entry = self.entry().await?;
            entry.map(|entry| read(&entry.value, entry.revision)).transpose()
        }
        .boxed()
    }

    fn put<'a>(&'a self, plan: &'a Plan, expected: Option<u64>) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move { self.swap(write(plan)?, expected).await }.boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
        async {
            let watched = self.bucket.watch_with_history(KEY).await;
            let entries = watched.map_err(|error| StoreError::unreachable("watching the plan", &error))?;
            let plans = entries.filter_map(async |entry| match entry {
                Ok(entry) if entry.operation == Operation::Put => Some(read(&entry.value, entry.revision)),
                Ok(_) => None,
                Err(error) => Some(Err(StoreError::unreachable("watching the plan", &error))),
            });
            Ok(Plans(plans.boxed()))
        }
        .boxed()
    }
}
