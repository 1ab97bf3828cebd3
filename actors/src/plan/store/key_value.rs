//! The plan store of a nats-server: one bucket per app with one key.
//!
//! If the bucket does not exist, it is created with file storage, a history of 16 plans and, in a cluster, three
//! replicas ([`crate::bus::replication`]). An existing bucket is not modified. A bucket that is missing later counts as
//! an empty store, and the next write creates it again.

use async_nats::jetstream::context::{GetStreamErrorKind, KeyValueError};
use async_nats::jetstream::kv::{self, CreateErrorKind, Entry, Operation, UpdateErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kaskade_policy::plan::Plan;

use super::error::StoreError;
use super::plan_store::{HistoryEntry, PlanStore, Plans};
use super::stored_plan::{StoredPlan, encode, epoch_of, read};
use crate::bus::{Bus, replication};
use crate::subjects::App;

const KEY: &str = "plan";
const HISTORY: i64 = 16;

/// Name of the operation that creates the bucket, for errors.
const CREATING: &str = "creating the plan bucket";

/// Size that the protocol adds to a value, bytes: headers of the compare-and-set.
const HEADROOM: usize = 1024;

/// A plan store in JetStream.
#[derive(Debug, Clone)]
pub struct KeyValueStore {
    bucket: kv::Store,
    bus: Bus,
    app: App,
}

impl KeyValueStore {
    /// Opens the store of an app; creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::NeedsJetStream`], [`StoreError::Unreachable`].
    pub async fn open(bus: &Bus, app: &App) -> Result<Self, StoreError> {
        if let Some(found) = Self::find(bus, app).await? {
            return Ok(found);
        }
        Ok(Self::on(bus, app, create(bus, app).await?))
    }

    /// Opens the store of an app; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::NeedsJetStream`], [`StoreError::Unreachable`].
    pub async fn find(bus: &Bus, app: &App) -> Result<Option<Self>, StoreError> {
        if !bus.has_jetstream().await {
            let url = bus.url().to_owned();
            return Err(if bus.connection().is_jetstream_denied() {
                StoreError::NotPermitted {
                    what: "read the plan store",
                    role: "the planner or the observer; `kaskade serve` connects as the user of its `--role`, by default `all`, which \
                           `kaskade auth init --all` makes",
                    url,
                }
            } else {
                StoreError::NeedsJetStream { url }
            });
        }
        match jetstream(bus).get_key_value(app.bucket()).await {
            Ok(bucket) => Ok(Some(Self::on(bus, app, bucket))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(StoreError::unreachable("opening the plan bucket", &error)),
        }
    }

    fn on(bus: &Bus, app: &App, bucket: kv::Store) -> Self {
        Self {
            bucket,
            bus: bus.clone(),
            app: app.clone(),
        }
    }

    /// Returns whether the server reports that the bucket does not exist.
    async fn is_missing(&self) -> bool {
        let found = jetstream(&self.bus).get_key_value(self.app.bucket()).await;
        found.is_err_and(|error| is_missing(&error))
    }

    /// Returns the newest value; `None` if there is none or the bucket is missing.
    async fn entry(&self) -> Result<Option<Entry>, StoreError> {
        match self.bucket.entry(KEY).await {
            Ok(entry) => Ok(entry.filter(|entry| entry.operation == Operation::Put)),
            Err(_) if self.is_missing().await => Ok(None),
            Err(error) => Err(StoreError::unreachable("reading the plan", &error)),
        }
    }

    async fn swap(&self, plan: &Plan, epoch: u64, expected: Option<u64>) -> Result<(), StoreError> {
        let bytes = encode(plan, epoch)?;
        let (size, limit) = (bytes.len(), self.bus.max_payload().saturating_sub(HEADROOM));
        if size > limit {
            return Err(StoreError::TooLarge { size, limit });
        }
        let written = match expected {
            None => self.create_value(bytes.into()).await?,
            Some(expected) => self.update_value(bytes.into(), expected).await?,
        };
        if written {
            return Ok(());
        }
        // Only for the error message; the write has been refused in any case.
        let newest = self.entry().await.ok().flatten();
        Err(StoreError::Stale {
            expected,
            newest: newest.as_ref().map(epoch_in),
        })
    }

    /// Writes the first value. Returns false if a value exists.
    async fn create_value(&self, bytes: Bytes) -> Result<bool, StoreError> {
        let mut created = self.bucket.create(KEY, bytes.clone()).await;
        let refused = |error: &kv::CreateError| error.kind() == CreateErrorKind::AlreadyExists;
        if created.as_ref().is_err_and(|error| !refused(error)) && self.is_missing().await {
            create(&self.bus, &self.app).await?;
            created = self.bucket.create(KEY, bytes).await;
        }
        match created {
            Ok(_) => Ok(true),
            Err(error) if refused(&error) => Ok(false),
            Err(error) => Err(StoreError::unreachable("writing the plan", &error)),
        }
    }

    /// Replaces the value with the epoch `expected`. Returns false if another value is stored.
    async fn update_value(&self, bytes: Bytes, expected: u64) -> Result<bool, StoreError> {
        let Some(entry) = self.entry().await?.filter(|entry| epoch_in(entry) == expected) else {
            return Ok(false);
        };
        match self.bucket.update(KEY, bytes, entry.revision).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(false),
            Err(error) => Err(StoreError::unreachable("writing the plan", &error)),
        }
    }

    #[cfg(test)]
    pub(super) async fn put_raw(&self, bytes: &[u8]) -> u64 {
        self.bucket.put(KEY, bytes.to_vec().into()).await.unwrap()
    }

    #[cfg(test)]
    pub(super) async fn recreate(&self) {
        jetstream(&self.bus)
            .delete_key_value(self.app.bucket())
            .await
            .unwrap();
        create(&self.bus, &self.app).await.unwrap();
    }
}

fn jetstream(bus: &Bus) -> jetstream::Context {
    jetstream::new(bus.client().clone())
}

/// Creates the bucket.
async fn create(bus: &Bus, app: &App) -> Result<kv::Store, StoreError> {
    let config = kv::Config {
        bucket: app.bucket(),
        description: format!("Plans of the Kaskade app {app}"),
        history: HISTORY,
        ..kv::Config::default()
    };
    let jetstream = jetstream(bus);
    let created = replication::create(bus, bus.replicas(), |num_replicas| {
        jetstream.create_key_value(kv::Config {
            num_replicas,
            ..config.clone()
        })
    });
    // A server that denies the operation sends no answer.
    let subject = format!("$JS.API.STREAM.CREATE.KV_{}", app.bucket());
    let refused = bus.connection().refused(&subject);
    tokio::select! {
        biased;
        created = created => created.map_err(|error| StoreError::unreachable(CREATING, &error)),
        _ = refused => Err(StoreError::NotPermitted {
            what: "create the plan store",
            role: "the planner",
            url: bus.url().to_owned(),
        }),
    }
}

fn is_missing(error: &KeyValueError) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<jetstream::context::GetStreamError>());
    source.is_some_and(|error| {
        matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
    })
}

fn epoch_in(entry: &Entry) -> u64 {
    epoch_of(&entry.value, entry.revision)
}

fn read_entry(entry: &Entry) -> Result<StoredPlan, StoreError> {
    read(&entry.value, entry.revision)
}

impl PlanStore for KeyValueStore {
    fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>> {
        async { self.entry().await?.as_ref().map(read_entry).transpose() }.boxed()
    }

    fn write<'a>(
        &'a self,
        plan: &'a Plan,
        epoch: u64,
        expected: Option<u64>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.swap(plan, epoch, expected).boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
        async {
            let watched = self.bucket.watch_with_history(KEY).await;
            let entries = watched.map_err(|error| StoreError::unreachable("watching the plan", &error))?;
            let plans = entries.filter_map(async |entry| match entry {
                Ok(entry) if entry.operation == Operation::Put => Some(read_entry(&entry)),
                Ok(_) => None,
                Err(error) => Some(Err(StoreError::unreachable("watching the plan", &error))),
            });
            Ok(Plans(plans.boxed()))
        }
        .boxed()
    }

    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
        async {
            let mut entries = match self.bucket.history(KEY).await {
                Ok(entries) => entries,
                Err(_) if self.is_missing().await => return Ok(Vec::new()),
                Err(error) => return Err(StoreError::unreachable("reading past plans", &error)),
            };
            let mut past = Vec::new();
            while let Some(entry) = entries.next().await {
                let entry = entry.map_err(|error| StoreError::unreachable("reading past plans", &error))?;
                if entry.operation != Operation::Put {
                    continue;
                }
                if let Ok(stored) = read_entry(&entry) {
                    past.push(HistoryEntry {
                        stored,
                        written_at: entry.created.into(),
                    });
                }
            }
            Ok(past)
        }
        .boxed()
    }
}
