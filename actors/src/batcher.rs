//! The batcher: the queue of one replica. *When* a queue becomes a batch is decided by [`kaskade_plans::batching`].

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};
use kaskade_models::{Executor, Signature};
use kaskade_plans::{
    batching::{BatchQueue, Next},
    plan::Batching,
    run_time::RunTimeEstimate,
};

use crate::{
    clock::Clock,
    delivery::Delivery,
    exchange::full_queue,
    fault::{Code, Fault},
    metrics::Metrics,
    router::{Batch, Router},
};

/// Queues deliveries for one replica and hands them to its model thread in batches.
pub struct Batcher {
    replica: String,
    queue: BatchQueue<Delivery>,
    signature: Signature,
    executor: Executor,
    router: Addr<Router>,
    clock: Clock,
    depth: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    run_time: RunTimeEstimate,
    idle: bool,
    timer: Option<SpawnHandle>,
}

/// The model thread has finished a batch.
#[derive(Message)]
#[rtype(result = "()")]
struct Idle {
    batch: usize,
    run_us: u64,
}

/// The gear has shifted.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Rebatch(pub Batching);

/// What a batcher is made of.
pub struct BatcherParts {
    /// The replica it queues for.
    pub replica: String,
    /// The trigger it starts with.
    pub batching: Batching,
    /// Requests that may wait.
    pub capacity: usize,
    /// The replica's model thread.
    pub executor: Executor,
    /// Where finished batches go.
    pub router: Addr<Router>,
    /// The process's clock.
    pub clock: Clock,
    /// Where it tells its neighbours how long its queue is.
    pub depth: Arc<AtomicUsize>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
}

impl Batcher {
    /// A batcher for an idle replica.
    pub fn new(parts: BatcherParts) -> Self {
        Self {
            replica: parts.replica,
            queue: BatchQueue::new(parts.batching, parts.capacity),
            signature: parts.executor.signature().clone(),
            executor: parts.executor,
            router: parts.router,
            clock: parts.clock,
            depth: parts.depth,
            metrics: parts.metrics,
            run_time: RunTimeEstimate::default(),
            idle: true,
            timer: None,
        }
    }

    /// Asks the policy what to do now, and does it.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let poll = self.queue.poll(now, self.idle);
        for late in poll.late {
            let message = format!(
                "replica `{}` could not have answered within the budget",
                self.replica
            );
            late.fail(Fault::new(Code::Expired, message));
        }
        match poll.next {
            Next::Run(batch) => self.run(batch, now, ctx),
            Next::WaitUntil(at) => self.wake_at(at, now, ctx),
            Next::Wait => {}
        }
        self.depth.store(self.queue.len(), Ordering::Relaxed);
    }

    fn run(&mut self, deliveries: Vec<Delivery>, started: u64, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let inputs = deliveries
            .iter()
            .map(|delivery| delivery.request.inputs.clone())
            .collect();
        let (router, batcher) = (self.router.clone(), ctx.address());
        let submitted = self.executor.run(inputs, move |result| {
            batcher.do_send(Idle {
                batch: deliveries.len(),
                run_us: result.run_us,
            });
            router.do_send(Batch {
                deliveries,
                result,
                started,
            });
        });
        self.idle = submitted.is_err();
        if submitted.is_err() {
            // The deliveries went down with the closure and have answered for themselves.
            tracing::error!(replica = self.replica, "the model thread is gone");
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
}

impl Handler<Delivery> for Batcher {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, ctx: &mut Context<Self>) {
        if let Err(error) = self.signature.check(&delivery.request.inputs) {
            return delivery.fail(Fault::new(Code::WrongInput, error.to_string()));
        }
        let (now, deadline) = (self.clock.now(), delivery.deadline);
        if let Err(refused) = self.queue.push(delivery, now, deadline) {
            self.metrics.queue_full();
            refused.fail(full_queue(&self.replica));
        }
        self.pump(ctx);
    }
}

impl Handler<Idle> for Batcher {
    type Result = ();

    fn handle(&mut self, idle: Idle, ctx: &mut Context<Self>) {
        self.idle = true;
        self.run_time.observe(idle.batch, idle.run_us);
        self.queue.set_expected_run(self.run_time.line());
        self.pump(ctx);
    }
}

impl Handler<Rebatch> for Batcher {
    type Result = ();

    fn handle(&mut self, Rebatch(batching): Rebatch, ctx: &mut Context<Self>) {
        self.queue.set_batching(batching);
        self.pump(ctx);
    }
}
