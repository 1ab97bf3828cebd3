//! The batcher: the queue of one replica. [`kaskade_policy::batching`] decides when a batch starts.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::actor::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};
use kaskade_models::{BatchResult, Executor, Signature};
use kaskade_policy::batching::{BatchQueue, Next};
use kaskade_policy::plan::Batching;
use kaskade_policy::run_time::RunTimeEstimate;

use crate::{
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::dispatcher::full_queue,
    dispatch::exits::Router,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::PlanVersions,
    stage::device_lease::{Device, Lease, LeaseGranted},
    stage::model_thread,
    supervision::{PanicGuard, Supervisor},
};

/// Queues deliveries of one replica and passes them to its model thread in batches.
pub(crate) struct Batcher {
    replica: String,
    queue: BatchQueue<Delivery>,
    signature: Signature,
    executor: Executor,
    router: Router,
    plans: PlanVersions,
    clock: Clock,
    depth: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    run_time: RunTimeEstimate,
    idle: bool,
    lease: Option<Lease>,
    /// The lease of the previous device, while a batch still runs there.
    former: Option<Lease>,
    /// Own address while requests wait, so that a retired replica still runs them.
    kept: Option<Addr<Self>>,
    /// Whether the replica holds the lease of its device and its batch has not started.
    granted: bool,
    timer: Option<SpawnHandle>,
    /// Whether a [`Pump`] is in the mailbox.
    pump_due: bool,
    supervisor: Supervisor,
    #[cfg_attr(not(test), expect(dead_code, reason = "its drop reports a panic"))]
    guard: PanicGuard,
}

/// Task name of a batcher in a node.
pub(crate) const TASK: &str = "batcher";

/// The model thread has finished a batch.
#[derive(Message)]
#[rtype(result = "()")]
struct Ended {
    deliveries: Vec<Delivery>,
    result: BatchResult,
    /// Start of the batch, on the process's clock, microseconds.
    started: u64,
}

/// Polls the policy after the deliveries already in the mailbox, so that they may form one batch.
#[derive(Message)]
#[rtype(result = "()")]
struct Pump;

/// Sets the batching after a gear shift or a new plan.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SetBatching {
    /// The new batching parameters.
    pub batching: Batching,
    /// The device whose replicas run one at a time; `None` if replicas run independently.
    pub device: Option<Device>,
}

/// Components of a batcher.
pub(crate) struct BatcherParts {
    /// The replica that the batcher serves.
    pub replica: String,
    /// Initial batching parameters.
    pub batching: Batching,
    /// Capacity of the queue, requests.
    pub capacity: usize,
    /// The replica's model thread.
    pub executor: Executor,
    /// Routes finished batches.
    pub router: Router,
    /// Plans that requests are admitted under.
    pub plans: PlanVersions,
    /// The process's clock.
    pub clock: Clock,
    /// Receives the current queue length.
    pub depth: Arc<AtomicUsize>,
    /// Receives the size of the running batch.
    pub running: Arc<AtomicUsize>,
    /// The process's counters.
    pub metrics: Arc<Metrics>,
    /// The supervisor of the process's core tasks.
    pub supervisor: Supervisor,
}

impl Batcher {
    /// Creates a batcher for an idle replica.
    pub(crate) fn new(parts: BatcherParts) -> Self {
        Self {
            replica: parts.replica,
            queue: BatchQueue::new(parts.batching, parts.capacity),
            signature: parts.executor.signature().clone(),
            executor: parts.executor,
            router: parts.router,
            plans: parts.plans,
            clock: parts.clock,
            depth: parts.depth,
            running: parts.running,
            metrics: parts.metrics,
            run_time: RunTimeEstimate::default(),
            idle: true,
            lease: None,
            former: None,
            kept: None,
            granted: false,
            timer: None,
            pump_due: false,
            guard: parts.supervisor.panic_guard(TASK),
            supervisor: parts.supervisor,
        }
    }

    /// Polls the policy and executes its decision.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let may_run = self.may_run(now);
        let poll = self.queue.poll(now, may_run);
        for late in poll.late {
            let message = format!("replica `{}` cannot answer within the budget", self.replica);
            late.fail(Fault::new(Code::Expired, message));
        }
        match poll.next {
            Next::Run(batch) => self.run(batch, now, ctx),
            Next::WaitUntil(at) => self.wait(Some(at), now, ctx),
            Next::Wait => self.wait(None, now, ctx),
        }
        if self.queue.is_empty() {
            self.kept = None;
        } else if self.kept.is_none() {
            self.kept = Some(ctx.address());
        }
        self.depth.store(self.queue.len(), Ordering::Relaxed);
    }

    /// Returns whether a batch may start now. On a shared device the lease is requested as soon as the queue is due,
    /// even while the previous batch runs.
    fn may_run(&mut self, now: u64) -> bool {
        let Some(lease) = &self.lease else {
            return self.idle;
        };
        if !self.granted && self.queue.due_at(now).is_some_and(|due| due <= now) {
            self.granted = lease.request(now);
        }
        self.idle && self.granted
    }

    /// Handles that nothing runs before `at`: releases the lease and sets a timer for the time when the queue is due.
    fn wait(&mut self, at: Option<u64>, now: u64, ctx: &mut Context<Self>) {
        let mut due = None;
        if let Some(lease) = &self.lease {
            if self.granted {
                self.granted = lease.release();
            }
            due = self.queue.due_at(now).filter(|due| *due > now);
        }
        if let Some(at) = at.into_iter().chain(due).min() {
            self.wake_at(at, now, ctx);
        }
    }

    fn run(&mut self, mut deliveries: Vec<Delivery>, started: u64, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        // The result returns the inputs.
        let inputs = deliveries
            .iter_mut()
            .map(|delivery| std::mem::take(&mut delivery.request.inputs))
            .collect();
        let size = deliveries.len();
        let batcher = ctx.address();
        let submitted = self.executor.run(inputs, move |result| {
            batcher.do_send(Ended {
                deliveries,
                result,
                started,
            });
        });
        self.idle = submitted.is_err();
        self.running
            .store(if self.idle { 0 } else { size }, Ordering::Relaxed);
        self.granted = false;
        if submitted.is_err() {
            if let Some(lease) = &self.lease {
                self.granted = lease.release();
            }
            // The deliveries were dropped with the closure and have answered with a fault.
            tracing::error!(replica = self.replica, "the model thread has ended");
            model_thread::report_ended(&self.supervisor);
        }
    }

    fn wake_at(&mut self, at: u64, now: u64, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let wait = std::time::Duration::from_micros(at.saturating_sub(now));
        self.timer = Some(ctx.run_later(wait, |batcher, ctx| {
            batcher.timer = None;
            batcher.pump(ctx);
        }));
    }
}

impl Actor for Batcher {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Context<Self>) {
        for lease in [self.former.take(), self.lease.take()].into_iter().flatten() {
            lease.cancel();
        }
        model_thread::end(&mut self.executor);
    }
}

impl Handler<Delivery> for Batcher {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, ctx: &mut Context<Self>) {
        #[cfg(test)]
        self.guard.panic_if_scripted();
        if let Err(error) = self.signature.check(&delivery.request.inputs) {
            let fault = Fault::of_inputs(error, &delivery.request.stage, delivery.request.hops.is_empty());
            return delivery.fail(fault);
        }
        // The time that later tasks of the path need is not available to this one.
        let (request, version) = (&delivery.request, self.plans.at(delivery.request.epoch));
        let after_us = version.map_or(0, |version| version.after_us(request.gear, &request.stage));
        let (now, deadline) = (self.clock.now(), delivery.deadline.saturating_sub(after_us));
        if let Err(refused) = self.queue.push(delivery, now, deadline) {
            self.metrics.queue_full();
            refused.fail(full_queue(&self.replica));
        }
        if !std::mem::replace(&mut self.pump_due, true) {
            ctx.notify(Pump);
        }
    }
}

impl Handler<Pump> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Pump, ctx: &mut Context<Self>) {
        self.pump_due = false;
        self.pump(ctx);
    }
}

impl Handler<Ended> for Batcher {
    type Result = ();

    fn handle(&mut self, ended: Ended, ctx: &mut Context<Self>) {
        let Ended {
            deliveries,
            result,
            started,
        } = ended;
        self.idle = true;
        self.running.store(0, Ordering::Relaxed);
        if let Some(former) = self.former.take() {
            former.cancel();
        } else if let Some(lease) = &self.lease {
            self.granted = lease.release();
        }
        self.run_time.observe(deliveries.len(), result.run_us);
        self.queue.set_expected_run(self.run_time.line());
        // Let the model run the next batch while the results of this one are routed.
        self.pump(ctx);
        self.router.route_batch(deliveries, result, started);
    }
}

impl Handler<SetBatching> for Batcher {
    type Result = ();

    fn handle(&mut self, SetBatching { batching, device }: SetBatching, ctx: &mut Context<Self>) {
        self.queue.set_batching(batching);
        let registered = self.lease.as_ref().map(Lease::device);
        if registered != device.as_ref() {
            match self.lease.take() {
                // A batch still runs on that device, which no other replica may use meanwhile.
                Some(lease) if !self.idle && self.former.is_none() => self.former = Some(lease),
                Some(lease) => lease.cancel(),
                None => {}
            }
            self.granted = false;
            self.lease = device.map(|device| device.register(ctx.address().downgrade().recipient()));
        }
        self.pump(ctx);
    }
}

impl Handler<LeaseGranted> for Batcher {
    type Result = ();

    fn handle(&mut self, granted: LeaseGranted, ctx: &mut Context<Self>) {
        if self.lease.as_ref().is_some_and(|lease| lease.has(&granted)) {
            self.granted = true;
            self.pump(ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
    use tokio::sync::mpsc;

    use super::*;
    use crate::actor::System;
    use crate::bus::{Bus, BusConfig};
    use crate::dispatch::dispatcher::Dispatcher;
    use crate::subjects::App;
    use crate::wire::StageRequest;
    use crate::wire::headers::Trace;

    const APP: &str = "batcher";

    /// Reports the sizes of its batches. With a gate, a batch ends when the gate opens.
    struct Counting(mpsc::UnboundedSender<usize>, Option<Gate>);

    type Gate = std::sync::mpsc::Receiver<()>;

    impl Model for Counting {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            self.0.send(batch.len()).unwrap();
            if let Some(gate) = &self.1 {
                gate.recv().unwrap();
            }
            batch.iter().map(|inputs| Ok(inputs.clone())).collect()
        }
    }

    const BATCHING: Batching = Batching {
        min_queue: 1,
        max_batch: 8,
        max_wait_us: 0,
    };

    /// Starts a batcher whose model reports the sizes of its batches.
    fn start(dispatcher: &Dispatcher) -> (Addr<Batcher>, mpsc::UnboundedReceiver<usize>) {
        start_gated(dispatcher, None)
    }

    fn start_gated(
        dispatcher: &Dispatcher,
        gate: Option<Gate>,
    ) -> (Addr<Batcher>, mpsc::UnboundedReceiver<usize>) {
        let (sizes, size) = mpsc::unbounded_channel();
        let load = move || Ok::<_, String>(Box::new(Counting(sizes, gate)) as Box<dyn Model>);
        let executor = Executor::spawn("model", load).unwrap();
        let (plans, metrics) = (PlanVersions::new(APP), Arc::<Metrics>::default());
        let batcher = Batcher::new(BatcherParts {
            replica: "r".to_owned(),
            batching: BATCHING,
            capacity: 16,
            executor,
            router: Router::new("model", plans.clone(), Arc::clone(&metrics)),
            plans,
            clock: dispatcher.clock(),
            depth: Arc::default(),
            running: Arc::default(),
            metrics,
            supervisor: dispatcher.supervisor().clone(),
        });
        (batcher.start(), size)
    }

    async fn dispatcher() -> Dispatcher {
        let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
        Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start())
    }

    fn deliver(batcher: &Addr<Batcher>, dispatcher: &Dispatcher, id: u64) {
        let request = StageRequest {
            id,
            inputs: vec![Tensor::from_f32("x", &[1], &[0.5]).unwrap()],
            ..StageRequest::default()
        };
        let deadline = dispatcher.clock().now() + 10_000_000;
        let delivery = Delivery::new(request, deadline, Trace::start(), dispatcher.clone(), "r", None);
        batcher.do_send(delivery);
    }

    #[test]
    fn deliveries_that_arrive_together_are_one_batch() {
        System::new().block_on(async {
            let dispatcher = dispatcher().await;
            let (batcher, mut size) = start(&dispatcher);
            for id in 1..=5 {
                deliver(&batcher, &dispatcher, id);
            }
            assert_eq!(size.recv().await, Some(5));
        });
    }

    /// Holds the leases of devices, and reports each grant.
    struct Holder(mpsc::UnboundedSender<()>);

    impl Holder {
        fn start_reporting() -> (Addr<Self>, mpsc::UnboundedReceiver<()>) {
            let (granted, grants) = mpsc::unbounded_channel();
            (Self(granted).start(), grants)
        }
    }

    impl Actor for Holder {
        type Context = Context<Self>;
    }

    impl Handler<LeaseGranted> for Holder {
        type Result = ();

        fn handle(&mut self, _: LeaseGranted, _: &mut Context<Self>) {
            // The test may have ended.
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_grant_of_the_device_before_is_no_grant_of_this_one() {
        System::new().block_on(async {
            let dispatcher = dispatcher().await;
            let (batcher, mut size) = start(&dispatcher);
            let (holder, _grants) = Holder::start_reporting();
            let held = || {
                let device = Device::default();
                let lease = device.clone().register(holder.downgrade().recipient());
                assert!(lease.request(0));
                (device, lease)
            };
            let ((before, lease_before), (device, lease)) = (held(), held());
            batcher.send(on(&before)).await.unwrap();
            deliver(&batcher, &dispatcher, 1);
            batcher.send(Pump).await.unwrap();
            // The grant is queued behind the change of the device.
            batcher.do_send(on(&device));
            assert!(!lease_before.release());
            batcher.send(Pump).await.unwrap();
            assert!(size.try_recv().is_err(), "another replica runs on the device");
            assert!(!lease.release());
            assert_eq!(size.recv().await, Some(1));
        });
    }

    fn on(device: &Device) -> SetBatching {
        SetBatching {
            batching: BATCHING,
            device: Some(device.clone()),
        }
    }

    #[test]
    fn a_batcher_keeps_the_device_of_its_running_batch_until_the_batch_ends() {
        System::new().block_on(async {
            let dispatcher = dispatcher().await;
            let (end, gate) = std::sync::mpsc::channel();
            let (batcher, mut size) = start_gated(&dispatcher, Some(gate));
            let (before, device) = (Device::default(), Device::default());
            let (holder, mut grants) = Holder::start_reporting();
            let other = before.clone().register(holder.downgrade().recipient());
            batcher.send(on(&before)).await.unwrap();
            deliver(&batcher, &dispatcher, 1);
            assert_eq!(size.recv().await, Some(1));
            batcher.send(on(&device)).await.unwrap();
            assert!(!other.request(0), "the batch runs on it");
            end.send(()).unwrap();
            deliver(&batcher, &dispatcher, 2);
            assert_eq!(size.recv().await, Some(1));
            assert_eq!(grants.recv().await, Some(()), "the batch on it has ended");
            end.send(()).unwrap();
        });
    }

    #[test]
    fn a_retired_batcher_that_waits_for_its_device_runs_what_it_has() {
        System::new().block_on(async {
            let dispatcher = dispatcher().await;
            let (batcher, mut size) = start(&dispatcher);
            let (holder, _grants) = Holder::start_reporting();
            let device = Device::default();
            let held = device.clone().register(holder.downgrade().recipient());
            assert!(held.request(0));
            batcher.send(on(&device)).await.unwrap();
            deliver(&batcher, &dispatcher, 1);
            batcher.send(Pump).await.unwrap();
            drop(batcher);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            held.release();
            assert_eq!(size.recv().await, Some(1));
            assert_eq!(size.recv().await, None, "the batcher has ended");
        });
    }
}
