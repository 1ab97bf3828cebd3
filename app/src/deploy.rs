//! Deploying plans: writing them to the plan store of a running app, reading them, and rolling back.

mod loading;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kaskade_actors::bus::{Bus, BusConfig, BusError};
use kaskade_actors::plan::store::{self, HistoryEntry, PlanStore, StoreError};
use kaskade_actors::subjects::{self, SubjectError};
use kaskade_actors::wire::{Heartbeat, IngressState, Message as _};
use kaskade_policy::plan::Plan;
use kaskade_policy::rollout::{LaggingIngress, Rollout};
use thiserror::Error;
use tokio::sync::OnceCell;

use self::loading::Loading;

/// Time to listen for the newest epoch in use: processes send ten heartbeats per second.
const LISTEN: Duration = Duration::from_millis(500);

/// Time to listen for processes of an app: ingresses report once per second.
const LISTEN_LONG: Duration = Duration::from_millis(1_500);

/// Time without a report of an ingress after which none counts as running: ingresses report once per second.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Interval at which the progress of a rollout is checked, besides at each report.
const CHECK: Duration = Duration::from_millis(200);

/// A plan is not deployed or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeployError {
    /// The app's name is no subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The broker fails.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The plan store fails or refuses the plan.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The plan is another app's.
    #[error(
        "the plan is for app `{plan}`, not for `{app}`; give that app, or make a plan for this one with `kaskade plan`"
    )]
    OtherApp {
        /// The app of the plan.
        plan: String,
        /// The app that it is written for.
        app: String,
    },
    /// Nothing shows that the app exists: it has no plan store, and none of its processes runs.
    #[error(
        "app `{app}` is unknown at this broker: it has no plan store, and none of its processes runs. If the name is right, \
         `kaskade plan apply --create` creates the store; `--app FILE` does so too, after it has checked the plan"
    )]
    UnknownApp {
        /// The app.
        app: String,
    },
    /// The app has no stored plan.
    #[error("app `{app}` has no stored plan; write one with `kaskade plan apply FILE`")]
    NoPlan {
        /// The app.
        app: String,
    },
    /// Another epoch is stored than the one that the writer expects. The same attempt is refused again.
    #[error(
        "{}, and not epoch {expected}: read the stored plan, redo the change on it, and expect its epoch",
        newest_text(*.newest)
    )]
    NotExpected {
        /// The epoch that the writer expects.
        expected: u64,
        /// The newest epoch; `None` if no plan is stored.
        newest: Option<u64>,
    },
    /// The epoch is not in the history.
    #[error("epoch {epoch} is not in the plan store; it holds {held:?} (`kaskade plan history` lists them)")]
    NoSuchEpoch {
        /// The epoch that was asked for.
        epoch: u64,
        /// Epochs in the store.
        held: Vec<u64>,
    },
    /// There is no other plan to roll back to.
    #[error(
        "every stored plan is the same as the newest one: `kaskade plan history APP` lists the epochs, and `kaskade plan apply FILE` writes another"
    )]
    NothingEarlier,
    /// No ingress of the app reports.
    #[error(
        "epoch {epoch} is stored, but no ingress of app `{app}` has reported in time; processes adopt the plan when they start"
    )]
    NoIngress {
        /// The app.
        app: String,
        /// The epoch of the plan.
        epoch: u64,
    },
    /// Workers cannot load what the plan places on them.
    #[error(
        "epoch {epoch} is stored, but cannot be served: {} failed to load (see the workers' logs). If the app served a plan before, \
         it keeps serving that while its processes run; `kaskade plan rollback` stores it again",
        replicas_text(.failed)
    )]
    NotLoaded {
        /// The epoch of the plan.
        epoch: u64,
        /// The workers, and the replicas that they failed to load.
        failed: BTreeMap<String, Vec<String>>,
    },
    /// Ingresses admit the plan, but no worker has reported that it serves some of its replicas.
    #[error(
        "epoch {epoch} is stored and ingresses admit requests under it, but nothing serves {}: no process of these workers has reported that \
         it loaded them. Start the workers or custom actors, or make a plan for those that run; `kaskade plan apply --app FILE` checks a plan against the \
         workers of an app",
        replicas_text(.missing)
    )]
    NotServed {
        /// The epoch of the plan.
        epoch: u64,
        /// The workers, and the replicas that the plan places on them.
        missing: BTreeMap<String, Vec<String>>,
    },
    /// Some ingresses have not admitted the plan in time.
    #[error("epoch {epoch} is stored, but not every ingress admits requests under it in time: {}{}; `kaskade top` and the logs of the workers \
             tell what is missing", behind_text(.behind), unserved_text(.missing))]
    NotAdmitted {
        /// The epoch of the plan.
        epoch: u64,
        /// The ingresses that are missing.
        behind: Vec<LaggingIngress>,
        /// Workers, and the replicas on them of variants that nothing serves.
        missing: BTreeMap<String, Vec<String>>,
    },
}

fn newest_text(newest: Option<u64>) -> String {
    newest.map_or_else(
        || "the plan store is empty".to_owned(),
        |epoch| format!("the plan store holds epoch {epoch}"),
    )
}

/// Returns replicas by worker as text.
fn replicas_text(replicas: &BTreeMap<String, Vec<String>>) -> String {
    let each = replicas
        .iter()
        .map(|(worker, replicas)| format!("`{}` on worker `{worker}`", replicas.join("`, `")));
    each.collect::<Vec<_>>().join(", ")
}

fn behind_text(behind: &[LaggingIngress]) -> String {
    let each = behind
        .iter()
        .map(|one| format!("`{}` is at epoch {}", one.ingress, one.admits));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns what nothing serves as a clause; empty if that is nothing.
fn unserved_text(missing: &BTreeMap<String, Vec<String>>) -> String {
    if missing.is_empty() {
        return String::new();
    }
    format!("; no running process has loaded {}", replicas_text(missing))
}

/// A plan that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedPlan {
    /// Its epoch.
    pub epoch: u64,
    /// The epoch that it replaces; `None` if the store was empty.
    pub replaced: Option<u64>,
}

/// A plan that was rolled back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolledBackPlan {
    /// The older epoch, whose plan was written again.
    pub older: u64,
    /// Whether an ingress that runs has admitted requests under the older epoch; false also if that is not known, because ingresses know
    /// only what happened since they started.
    pub has_served: bool,
    /// What was written.
    pub written: AppliedPlan,
}

/// Progress of the adoption of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Ingresses that report.
    pub ingresses: usize,
    /// Those that do not admit requests under the plan yet.
    pub behind: Vec<LaggingIngress>,
    /// Whether all admit requests under the plan, and every ingress has had the time to report.
    pub is_admitted: bool,
    /// Whether no ingress has reported for some seconds: none is running.
    pub silent: bool,
    /// Workers, and the replicas on them of variants that nothing serves yet. Ingresses wait for workers that run.
    pub missing: BTreeMap<String, Vec<String>>,
}

impl Progress {
    /// Returns [`Progress::missing`] as text; `None` if nothing is missing.
    pub fn missing_text(&self) -> Option<String> {
        (!self.missing.is_empty()).then(|| replicas_text(&self.missing))
    }
}

/// The plans of one app.
///
/// ```no_run
/// use std::time::Duration;
///
/// use kaskade_actors::bus::BusConfig;
/// use kaskade_app::deploy::Deployment;
/// # use kaskade_policy::plan::Plan;
///
/// # async fn example(plan: Plan) -> Result<(), Box<dyn std::error::Error>> {
/// let bus = BusConfig::new("reviews").url("nats://127.0.0.1:4222");
/// let mut deployment = Deployment::open("reviews", bus).await?;
/// let written = deployment.apply(&plan, None).await?;
/// deployment.admitted(written.epoch, Duration::from_secs(60), |_| {}).await?;
/// # Ok(())
/// # }
/// ```
pub struct Deployment {
    app: subjects::App,
    bus: Bus,
    /// The plan store, once it is found or created.
    store: OnceCell<Arc<dyn PlanStore>>,
    states: async_nats::Subscriber,
    beats: async_nats::Subscriber,
    rollout: Rollout,
    begun: Instant,
}

impl Deployment {
    /// Connects to the broker of the app. Only [`Deployment::apply`] creates a plan store if there is none.
    ///
    /// # Errors
    /// What the broker or the plan store says.
    pub async fn open(app: &str, bus: BusConfig) -> Result<Self, DeployError> {
        let app = subjects::App::new(app)?;
        let bus = Bus::connect(bus).await?;
        let states = bus.subscribe(app.ingresses(), None).await?;
        let beats = bus.subscribe(app.beats(), None).await?;
        let store = store::find(&bus, &app).await?;
        Ok(Self {
            app,
            bus,
            store: OnceCell::new_with(store),
            states,
            beats,
            rollout: Rollout::default(),
            begun: Instant::now(),
        })
    }

    /// Returns whether something shows that the app exists: its plan store, or one of its processes, for which it listens for a second
    /// and a half if there is no store. A misspelt app has neither.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn is_known(&self) -> Result<bool, DeployError> {
        if self.store.initialized() {
            return Ok(true);
        }
        let states = self.bus.subscribe(self.app.ingresses(), None).await?;
        let beats = self.bus.subscribe(self.app.beats(), None).await?;
        let mut messages = futures::stream::select(states, beats);
        let heard = tokio::time::timeout(LISTEN_LONG, messages.next()).await;
        Ok(matches!(heard, Ok(Some(_))) || store::find(&self.bus, &self.app).await?.is_some())
    }

    /// Writes a plan as the newest one, if the newest epoch is still `expect` (`None`: the one that is stored now), and returns its
    /// epoch. The epoch is above every one in use, which takes half a second to listen for.
    ///
    /// # Errors
    /// [`DeployError::OtherApp`]; [`DeployError::NotExpected`] if another epoch than `expect` is stored; [`StoreError::Stale`] if another
    /// writer was first; what the broker says.
    pub async fn apply(&self, plan: &Plan, expect: Option<u64>) -> Result<AppliedPlan, DeployError> {
        if plan.app != self.app.name() {
            return Err(DeployError::OtherApp {
                plan: plan.app.clone(),
                app: self.app.name().to_owned(),
            });
        }
        let open = || store::open(&self.bus, &self.app);
        let store = self.store.get_or_try_init(open).await?;
        let replaced = match store.get().await {
            Ok(stored) => stored.map(|stored| stored.epoch),
            // It is replaced.
            Err(StoreError::Malformed { epoch, .. }) => Some(epoch),
            Err(error) => return Err(error.into()),
        };
        if let Some(expected) = expect.filter(|expected| Some(*expected) != replaced) {
            return Err(DeployError::NotExpected {
                expected,
                newest: replaced,
            });
        }
        let known = self.newest_in_use().await?;
        let epoch = store.put_above(plan, replaced, known).await?;
        Ok(AppliedPlan { epoch, replaced })
    }

    /// Returns the newest plan, or the one of that epoch.
    ///
    /// # Errors
    /// [`DeployError::NoPlan`], [`DeployError::NoSuchEpoch`], what the plan store says.
    pub async fn get(&self, epoch: Option<u64>) -> Result<HistoryEntry, DeployError> {
        let newest = match epoch {
            Some(_) => None,
            None => Some(self.newest().await?),
        };
        let past = self.history().await?;
        let wanted = epoch.or(newest).unwrap_or_default();
        let held = past.iter().map(|past| past.stored.epoch).collect();
        let found = past.into_iter().rev().find(|past| past.stored.epoch == wanted);
        found.ok_or(DeployError::NoSuchEpoch { epoch: wanted, held })
    }

    /// Returns the stored plans, the newest of them last.
    ///
    /// # Errors
    /// What the plan store says.
    pub async fn history(&self) -> Result<Vec<HistoryEntry>, DeployError> {
        match self.store.get() {
            Some(store) => Ok(store.history().await?),
            None => Ok(Vec::new()),
        }
    }

    /// Writes an older plan as a new epoch: that of `epoch`; without one, the newest earlier plan that differs from the newest one and
    /// under which a running ingress has admitted requests. If none is known to have served, it is the newest one that differs.
    ///
    /// # Errors
    /// As [`Deployment::get`] and [`Deployment::apply`]; [`DeployError::NothingEarlier`].
    pub async fn roll_back(&self, epoch: Option<u64>) -> Result<RolledBackPlan, DeployError> {
        let newest = self.newest().await?;
        let served = self.served().await?;
        let older = if let Some(epoch) = epoch {
            self.get(Some(epoch)).await?
        } else {
            earlier(self.history().await?, newest, &served).ok_or(DeployError::NothingEarlier)?
        };
        let written = self.apply(&older.stored.plan, Some(newest)).await;
        let written = written.map_err(|error| match error {
            // Another writer was first since the newest epoch was read; a second attempt reads it again.
            DeployError::NotExpected { expected, newest } => DeployError::Store(StoreError::Stale {
                expected: Some(expected),
                newest,
            }),
            error => error,
        })?;
        Ok(RolledBackPlan {
            older: older.stored.epoch,
            has_served: served.contains(&older.stored.epoch),
            written,
        })
    }

    /// Waits until every ingress admits requests under that epoch and workers serve all of its variants, at most `timeout`. `progress` is
    /// called whenever it changes.
    ///
    /// # Errors
    /// [`DeployError::NotLoaded`] once workers have failed to load replicas of it for some seconds; [`DeployError::NotAdmitted`],
    /// [`DeployError::NotServed`] and [`DeployError::NoIngress`] after the timeout.
    pub async fn admitted(
        &mut self,
        epoch: u64,
        timeout: Duration,
        mut progress: impl FnMut(&Progress),
    ) -> Result<(), DeployError> {
        let (mut heard, mut shown) = (Instant::now(), None);
        let until = heard + timeout;
        let stored = self.history().await?;
        let placed = stored.into_iter().find(|past| past.stored.epoch == epoch);
        let placed = placed.map(|past| past.stored.plan.placement).unwrap_or_default();
        let mut loading = Loading::new(epoch, placed);
        loop {
            let now = self.now_us();
            let missing = loading.missing();
            let is_admitted = self.rollout.is_admitted(epoch, now);
            if is_admitted && missing.is_empty() {
                return Ok(());
            }
            let ingresses = self.rollout.ingresses(now);
            if ingresses > 0 {
                heard = Instant::now();
            }
            let state = Progress {
                ingresses,
                behind: self.rollout.lagging(epoch, now),
                is_admitted,
                silent: heard.elapsed() >= SILENT_AFTER,
                missing: missing.clone(),
            };
            if Instant::now() >= until {
                return Err(match state.behind {
                    _ if is_admitted => DeployError::NotServed { epoch, missing },
                    behind if behind.is_empty() => DeployError::NoIngress {
                        app: self.app.name().to_owned(),
                        epoch,
                    },
                    behind => DeployError::NotAdmitted {
                        epoch,
                        behind,
                        missing,
                    },
                });
            }
            if let Some(failed) = loading.lasting_failures(Instant::now()) {
                return Err(DeployError::NotLoaded { epoch, failed });
            }
            if shown.as_ref() != Some(&state) {
                progress(&state);
                shown = Some(state);
            }
            tokio::select! {
                Some(message) = self.states.next() => if let Ok(state) = IngressState::decode(&message.payload) {
                    let now = self.now_us();
                    self.rollout.record(&state.ingress, state.admits, state.gone, now);
                },
                Some(message) = self.beats.next() => if let Ok(beat) = Heartbeat::decode(&message.payload) {
                    loading.record(beat, Instant::now());
                },
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// Returns the name of the app.
    pub fn app(&self) -> &str {
        self.app.name()
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.bus.close().await;
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn newest(&self) -> Result<u64, DeployError> {
        let stored = match self.store.get() {
            Some(store) => store.get().await?,
            None => None,
        };
        let newest = stored.ok_or_else(|| DeployError::NoPlan {
            app: self.app.name().to_owned(),
        })?;
        Ok(newest.epoch)
    }

    /// Returns the epochs under which the running ingresses have admitted requests since they started.
    async fn served(&self) -> Result<BTreeSet<u64>, DeployError> {
        let mut states = self.bus.subscribe(self.app.ingresses(), None).await?;
        let mut served = BTreeSet::new();
        let listening = async {
            while let Some(message) = states.next().await {
                if let Ok(state) = IngressState::decode(&message.payload) {
                    served.extend(state.served);
                }
            }
        };
        let _ = tokio::time::timeout(LISTEN_LONG, listening).await;
        Ok(served)
    }

    /// Returns the newest epoch that a process of the app reports; 0 if none does.
    async fn newest_in_use(&self) -> Result<u64, DeployError> {
        let mut beats = self.bus.subscribe(self.app.beats(), None).await?;
        let mut newest = 0;
        let listening = async {
            while let Some(message) = beats.next().await {
                if let Ok(beat) = Heartbeat::decode(&message.payload) {
                    newest = newest.max(beat.epoch);
                }
            }
        };
        let _ = tokio::time::timeout(LISTEN, listening).await;
        Ok(newest)
    }
}

/// Returns the plan to roll back to from the newest one: the newest other one that has served, or else the newest other one.
fn earlier(past: Vec<HistoryEntry>, newest: u64, served: &BTreeSet<u64>) -> Option<HistoryEntry> {
    let running = past.iter().rfind(|past| past.stored.epoch == newest);
    let running = running.map(|past| past.stored.plan.clone());
    let mut others: Vec<HistoryEntry> = past;
    others.retain(|past| Some(&past.stored.plan) != running.as_ref());
    let has_served = |past: &HistoryEntry| served.contains(&past.stored.epoch);
    let place = others.iter().rposition(has_served);
    let place = place.or_else(|| others.len().checked_sub(1))?;
    others.into_iter().nth(place)
}

#[cfg(test)]
mod tests;
