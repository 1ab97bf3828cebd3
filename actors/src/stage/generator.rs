//! The generator: a replica of a language model. Requests join and leave its batch between two steps of the model, so
//! it has no queue of its own; the engine's scheduler selects who runs ([`kaskade_policy::hybrid_cache`]).
//!
//! A client that asks for streaming receives the answer piece by piece if the stage always replies; a stage that may
//! defer sends nothing until it has decided, unless the client wants to see what may be replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::actor::{Actor, Addr, AsyncContext, Context, Handler, Message};
use kaskade_models::{Executor, Outputs, Progress, Signature, StepResult};

use crate::{
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::exits::Router,
    dispatch::spans,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::PlanVersions,
    stage::model_thread,
    supervision::{PanicGuard, Supervisor},
    wire::Tokens,
};

/// Name of the generator among the tasks of a node.
pub(crate) const TASK: &str = "generator";

/// Components of a generator.
pub(crate) struct GeneratorParts {
    /// The variant that it runs.
    pub variant: String,
    /// Its model thread.
    pub executor: Executor,
    /// Routes finished answers.
    pub router: Router,
    /// The plans in which stages' exits are looked up.
    pub plans: PlanVersions,
    /// The process's clock.
    pub clock: Clock,
    /// Receives the number of requests in progress.
    pub depth: Arc<AtomicUsize>,
    /// The process's counters.
    pub metrics: Arc<Metrics>,
    /// The supervisor of the process's core tasks.
    pub supervisor: Supervisor,
}

/// Answers deliveries token by token.
pub(crate) struct Generator {
    parts: GeneratorParts,
    signature: Signature,
    running: BTreeMap<u64, Running>,
    next: u64,
    /// Keeps the actor alive while requests are in progress: its model knows only a weak address.
    itself: Option<Addr<Self>>,
    #[cfg_attr(not(test), expect(dead_code, reason = "its drop reports a panic"))]
    guard: PanicGuard,
}

/// A request in progress.
struct Running {
    delivery: Delivery,
    /// When its first step began, or its call of an endpoint, on the process's clock, microseconds.
    begun: Option<u64>,
    /// Number of its tokens so far.
    pieces: u32,
    /// When its last token was produced, on the process's clock, microseconds.
    last: u64,
    /// Largest number of requests that shared a step with it.
    batch: usize,
    /// Whether its client streams the answer.
    streams: bool,
}

/// The model has finished a step.
#[derive(Message)]
#[rtype(result = "()")]
struct Step(StepResult);

/// Cancels these requests of an ingress.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct Cancel {
    /// The ingress.
    pub ingress: String,
    /// The requests, as the ingress numbers them.
    pub ids: Vec<u64>,
}

impl Generator {
    /// Creates a generator without requests.
    pub(crate) fn new(parts: GeneratorParts) -> Self {
        Self {
            signature: parts.executor.signature().clone(),
            guard: parts.supervisor.panic_guard(TASK),
            parts,
            running: BTreeMap::new(),
            next: 0,
            itself: None,
        }
    }

    /// Returns whether the stage always replies, so that parts of its answer may be sent early.
    fn is_final_stage(&self, delivery: &Delivery) -> bool {
        let request = &delivery.request;
        let version = self.parts.plans.at(request.epoch);
        let stage = version
            .as_ref()
            .and_then(|version| version.stage(request.gear, &request.stage));
        stage.is_some_and(|stage| stage.exit.always_replies())
    }

    fn progress(&mut self, progress: Progress, began: u64, now: u64, batch: usize) {
        let Progress {
            number,
            pieces,
            part,
            end,
        } = progress;
        let Some(one) = self.running.get_mut(&number) else {
            return;
        };
        one.batch = one.batch.max(batch);
        if !part.is_empty() || end.is_none() {
            one.begun.get_or_insert(began);
        }
        if !part.is_empty() {
            let new = pieces.saturating_sub(one.pieces).max(1);
            let tokens = if one.pieces == 0 {
                Tokens::first(new, now.saturating_sub(one.delivery.arrived))
            } else {
                Tokens::next(new, now.saturating_sub(one.last))
            };
            self.parts.metrics.tokens(&self.parts.variant, &tokens);
            one.pieces = pieces;
            one.last = now;
            if one.streams {
                // An endpoint repeats no answer.
                let is_remote = self.parts.executor.availability().is_some();
                one.delivery
                    .send_part(part, pieces.saturating_sub(new), pieces, is_remote);
            }
        }
        if let Some(end) = end {
            self.end(number, end.map_err(Fault::from), now);
        }
    }

    fn end(&mut self, number: u64, outcome: Result<Outputs, Fault>, now: u64) {
        let Some(mut one) = self.running.remove(&number) else {
            return;
        };
        match outcome {
            Ok(outputs) => {
                // Without steps, the model had it from the beginning.
                let begun = one.begun.unwrap_or(one.last);
                let cost = self.parts.router.cost(&outputs);
                let run_us = now.saturating_sub(begun);
                one.delivery.record_hop(begun, run_us, one.batch, cost);
                spans::hop(&one.delivery, &self.parts.variant, begun, run_us, one.batch);
                self.parts.metrics.generated(&self.parts.variant);
                self.parts.router.route(one.delivery, outputs);
            }
            Err(fault) => one.delivery.fail(fault),
        }
    }

    /// Cancels and answers requests whose budget is over.
    fn expire(&mut self, now: u64) {
        let over = self
            .running
            .iter()
            .filter(|(_, one)| one.delivery.deadline <= now);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        for number in over {
            self.parts.executor.cancel(number);
            let fault = Fault::new(Code::Expired, "the budget ended before the answer was complete");
            self.end(number, Err(fault), now);
        }
    }

    fn update_depth(&mut self, ctx: &Context<Self>) {
        self.parts.depth.store(self.running.len(), Ordering::Relaxed);
        self.itself = (!self.running.is_empty()).then(|| ctx.address());
    }
}

impl Actor for Generator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // Weak, because the generator owns the model, whose thread owns the listener.
        let generator = ctx.address().downgrade();
        self.parts.executor.listen(move |stepped| {
            if let Some(generator) = generator.upgrade() {
                generator.do_send(Step(stepped));
            }
        });
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        model_thread::end(&mut self.parts.executor);
    }
}

impl Handler<Delivery> for Generator {
    type Result = ();

    fn handle(&mut self, mut delivery: Delivery, ctx: &mut Context<Self>) {
        #[cfg(test)]
        self.guard.panic_if_scripted();
        if let Err(error) = self.signature.check(&delivery.request.inputs) {
            let fault = Fault::of_inputs(error, &delivery.request.stage, delivery.request.hops.is_empty());
            return delivery.fail(fault);
        }
        let now = self.parts.clock.now();
        let is_final = self.is_final_stage(&delivery);
        let streams = delivery.request.stream && (is_final || delivery.request.optimistic);
        let inputs = if is_final {
            // No later stage needs the inputs.
            std::mem::take(&mut delivery.request.inputs)
        } else {
            delivery.request.inputs.clone()
        };
        let number = self.next;
        self.next += 1;
        let budget = Duration::from_micros(delivery.deadline.saturating_sub(now));
        if !self.parts.executor.submit_within(number, inputs, budget) {
            model_thread::report_ended(&self.parts.supervisor);
            let message = "the model thread has ended; restart the worker";
            return delivery.fail(Fault::new(Code::Unavailable, message));
        }
        // A request at an endpoint runs while it waits for it.
        let begun = self.parts.executor.waits_for_others().then_some(now);
        let one = Running {
            delivery,
            begun,
            pieces: 0,
            last: now,
            batch: 0,
            streams,
        };
        self.running.insert(number, one);
        self.update_depth(ctx);
    }
}

impl Handler<Step> for Generator {
    type Result = ();

    fn handle(&mut self, Step(stepped): Step, ctx: &mut Context<Self>) {
        let now = self.parts.clock.now();
        let began = now.saturating_sub(stepped.run_us);
        let (metrics, variant) = (&self.parts.metrics, &self.parts.variant);
        let batch = if self.parts.executor.waits_for_others() {
            metrics.waited(variant, stepped.run_us);
            // Each request is a call of its own, whatever arrives together.
            1
        } else {
            metrics.step(variant, stepped.run_us);
            let requests: BTreeSet<u64> = stepped.progress.iter().map(|one| one.number).collect();
            requests.len()
        };
        for progress in stepped.progress {
            self.progress(progress, began, now, batch);
        }
        self.expire(now);
        self.update_depth(ctx);
    }
}

impl Handler<Cancel> for Generator {
    type Result = ();

    fn handle(&mut self, Cancel { ingress, ids }: Cancel, ctx: &mut Context<Self>) {
        let cancelled = self.running.iter().filter(|(_, one)| {
            let request = &one.delivery.request;
            request.ingress == ingress && ids.contains(&request.id)
        });
        let cancelled: Vec<u64> = cancelled.map(|(number, _)| *number).collect();
        for number in cancelled {
            self.parts.executor.cancel(number);
            if let Some(one) = self.running.remove(&number) {
                one.delivery.discard();
            }
        }
        self.update_depth(ctx);
    }
}
