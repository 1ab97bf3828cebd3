"""A replica: serves a stage over NATS with a bounded queue, batches, heartbeats and a graceful leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats.errors

from . import tensors, wire
from .batch import Answer, Outcome, run_batch
from .batching import BatchQueue, Waiting
from .chunks import LARGEST_MESSAGE, Assembler, AssemblyError, Chunk, cut
from .connection import Broker, Link, connect
from .errors import BadOutput, Expired, Internal, KaskadeError, Malformed, Overloaded, TooLarge, Unavailable
from .leaving import Senders
from .probes import Probes
from .runner import Runner
from .subjects import GROUP, App, check_token
from .wire import Cost, Hop, StageRequest

if TYPE_CHECKING:
    from .stages import Stage

log = logging.getLogger("kaskade")

BEAT_PERIOD = 0.1
"""Time between heartbeats, seconds."""
FAILURE_GRACE = 5.0
"""Time for the server to end the subscriptions of a replica that has failed, seconds."""


@dataclass
class _Delivery:
    request: StageRequest
    reply: str
    cancelled: bool = False


class Replica:
    """A replica of a running app. `Stage.attach` makes one."""

    def __init__(self, stage: Stage, link: Link, replica: str) -> None:
        self.stage = stage
        self.id = check_token("replica", replica)
        self.app = App(stage.app)
        self.batches = 0
        self.requests = 0
        self.busy = 0.0
        """Time spent in the function, seconds."""
        self.beaten = time.monotonic()
        """When the event loop was last able to send a heartbeat, on the monotonic clock."""
        self.cancelled = 0
        """Requests that were dropped because they were cancelled."""
        self._link = link
        self._queue: BatchQueue[_Delivery] = BatchQueue(stage.batching, stage.queue_capacity)
        self._assembler = Assembler()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._running: list[_Delivery] = []
        self._sequence = 0
        #: Differs from that of an earlier start.
        self._instance = secrets.randbits(53)
        self._leaving = False
        self._draining = False
        self._function = stage.batch_function
        self._runner = Runner("kaskade-stage")
        self._subscriptions: list[Any] = []
        self.failed = asyncio.Event()
        """Set if the replica has ended by a defect: its heartbeats and subscriptions have ended, and what it had is answered
        with `Unavailable`."""
        self._failing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        link.on_returned.append(self._returned)

    @classmethod
    async def attach(cls, stage: Stage, broker: Broker, replica: str) -> Replica:
        """Connects, subscribes and begins to send heartbeats; returns when requests can arrive."""
        check_token("replica", replica)
        link = await connect(broker, f"kaskade-python-{replica}")
        try:
            self = cls(stage, link, replica)
            group = await link.nc.subscribe(self.app.stage(stage.name), queue=GROUP, cb=self._receive)
            single = await link.nc.subscribe(self.app.replica(replica), cb=self._receive)
            await link.nc.subscribe(self.app.stage_cancel, cb=self._on_stage_cancel)
            self._subscriptions = [group, single]
            await link.barrier()
        except BaseException as error:
            await link.close()
            if isinstance(error, nats.errors.Error | asyncio.TimeoutError):
                raise Unavailable(f"subscribing to stage `{stage.name}`: {error}") from error
            raise
        self._tasks = [asyncio.create_task(self._beats()), asyncio.create_task(self._work())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aenter__(self) -> Replica:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self, grace: float = 10.0) -> bool:
        """Leaves in good order; returns whether everything accepted was answered within `grace` seconds.

        It announces the leave, takes requests until the ingresses choose other replicas, ends the subscriptions with a
        round trip, answers what it has accepted, and sends a last heartbeat.
        """
        until = time.monotonic() + grace
        try:
            if self._failing is None:
                await self._announce()
                await self._unsubscribe(until)
            self._draining = True
            self._changed.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._emptied(), max(until - time.monotonic(), 0.0))
        finally:
            await self._close()
        return not self.unanswered

    @property
    def unanswered(self) -> int:
        """The number of requests that wait or run."""
        return len(self._queue) + len(self._running)

    @property
    def queued(self) -> int:
        """The number of requests that wait."""
        return len(self._queue)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker."""
        return self._link.up.is_set()

    @property
    def leaving(self) -> bool:
        """Whether the replica takes no more requests soon."""
        return self._leaving or self._draining

    async def _close(self) -> None:
        if self._failing is not None:
            await self._failing
        if self.unanswered:
            log.warning("replica `%s` left with %d unanswered requests", self.id, self.unanswered)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._beat(last=True)
        await self._link.close()
        self._runner.close()

    async def _unsubscribe(self, until: float) -> None:
        """Ends interest, waits for the server at most `until`, and hands over what had arrived."""
        for subscription in self._subscriptions:
            with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._link.unsubscribe(subscription), max(until - time.monotonic(), 0.1))

    async def _announce(self) -> None:
        """Announces the leave and waits until no ingress is known to send more."""
        senders, heard = Senders(self.id), asyncio.Event()

        async def hear(message: Any) -> None:
            with contextlib.suppress(KaskadeError):
                senders.hear(wire.unpack(message.data))
                heard.set()

        with contextlib.suppress(nats.errors.Error):
            await self._link.nc.subscribe(self.app.ingresses, cb=hear)
        self._leaving = True
        began = time.monotonic()
        await self._beat()
        while (wait := senders.wait(time.monotonic() - began)) > 0:
            heard.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(heard.wait(), wait)

    async def _emptied(self) -> None:
        while self.unanswered:
            self._idle.clear()
            await self._idle.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Ends the replica if a task fails: what does not run requests must take none and send no heartbeats."""
        if task.cancelled() or self._failing is not None:
            return
        log.error("replica `%s` failed", self.id, exc_info=task.exception())
        for other in self._tasks:
            other.cancel()
        self._failing = asyncio.create_task(self._fail())

    async def _fail(self) -> None:
        try:
            await self._unsubscribe(time.monotonic() + FAILURE_GRACE)
            held, self._running = self._running + self._queue.take(), []
            for delivery in held:
                await self._answer(delivery.request, delivery.reply, self._failure())
            await self._beat(last=True)
        finally:
            self.failed.set()
            self._idle.set()

    def _failure(self) -> Unavailable:
        return Unavailable(f"replica `{self.id}` failed; its log has the cause")

    def _returned(self) -> None:
        # A sequence that begins again tells ingresses that messages of the old connection may be lost.
        self._sequence = 0

    async def _receive(self, message: Any) -> None:
        if message.headers and wire.PADDING in message.headers:
            return
        now = time.monotonic()
        deadline = now + wire.read_budget(message.headers)
        body, reply = message.data, message.reply
        chunk = (message.headers or {}).get(wire.CHUNK)
        request = None
        try:
            if chunk is not None:
                whole = self._assembler.take(Chunk.parse(chunk), body, reply, now, deadline)
                if whole is None:
                    return
                body, reply = whole
            request = wire.decode_stage_request(body)
        except AssemblyError as failed:
            return await self._answer(None, failed.reply, failed.error)
        except KaskadeError as error:
            return await self._answer(None, reply, error)
        if self._failing is not None:
            await self._answer(request, reply, self._failure())
        elif self._queue.push(_Delivery(request, reply), now, deadline):
            self._changed.set()
        else:
            full = f"the queue of replica `{self.id}` is full; try again later, or add replicas"
            await self._answer(request, reply, Overloaded(full))

    async def _on_stage_cancel(self, message: Any) -> None:
        """Drops requests that an ingress has cancelled: nothing waits for their answers."""
        try:
            ingress, ids = wire.decode_stage_cancel(message.data)
        except KaskadeError as error:
            log.warning("a cancellation could not be decoded: %s", error)
            return

        def unwanted(delivery: _Delivery) -> bool:
            return delivery.request.ingress == ingress and delivery.request.id in ids

        self.cancelled += self._queue.discard(unwanted)
        for delivery in self._running:
            # The function runs to its end; the answer is not sent.
            if unwanted(delivery) and not delivery.cancelled:
                delivery.cancelled = True
                self.cancelled += 1
        self._changed.set()

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            step = self._queue.poll(time.monotonic(), self._draining)
            for expired in step.expired:
                late = Expired(f"the budget ended in the queue of replica `{self.id}`")
                await self._answer(expired.item.request, expired.item.reply, late)
            if step.batch:
                await self._run(step.batch)
                continue
            if not len(self._queue):
                self._idle.set()
            wait = None if step.wait_until is None else max(step.wait_until - time.monotonic(), 0.0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)

    async def _run(self, batch: list[Waiting[_Delivery]]) -> None:
        self._running = [waiting.item for waiting in batch]
        began = time.monotonic()
        # On a thread of its own, so that heartbeats go on.
        answers, took = await self._runner.run(self._compute, batch, began)
        self.batches += 1
        self.requests += len(batch)
        self.busy += took
        for waiting, body in zip(batch, answers, strict=True):
            if not waiting.item.cancelled:
                await self._send(waiting.item.reply, body)
        self._running = []

    def _compute(self, batch: list[Waiting[_Delivery]], began: float) -> tuple[list[bytes], float]:
        """Runs a batch and encodes the answers, on the executor's thread."""
        start = time.perf_counter()
        outcomes = run_batch(self._function, [waiting.item.request.inputs for waiting in batch])
        took = time.perf_counter() - start
        bodies = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            wait_us = int((began - waiting.since) * 1e6)
            cost = Cost.stated(outcome.outputs) if isinstance(outcome, Answer) else None
            hop = Hop(self.stage.name, max(wait_us, 0), int(took * 1e6), len(batch), cost)
            bodies.append(_encode(waiting.item.request, self.id, outcome, hop))
        return bodies, took

    async def _answer(self, request: StageRequest | None, reply: str, error: KaskadeError) -> None:
        if isinstance(error, Malformed):
            log.warning("a stage request could not be decoded: %s", error)
        await self._send(reply, wire.encode_done(request, self.id, error))

    async def _send(self, reply: str, body: bytes) -> None:
        if not reply:
            return
        limit = self._link.payload_limit
        try:
            if len(body) <= limit:
                await self._link.nc.publish(reply, body)
                return
            for chunk, part in cut(secrets.randbits(64), body, limit):
                await self._link.nc.publish(reply, part, headers={wire.CHUNK: str(chunk)})
        except (nats.errors.Error, OSError) as error:
            # The ingress sends the request again when it misses the answer.
            log.warning("an answer of replica `%s` could not be sent: %s", self.id, error)

    async def _beats(self) -> None:
        period = BEAT_PERIOD
        due = time.monotonic()
        while True:
            self.beaten = time.monotonic()
            # While the connection is down nothing is sent: old heartbeats would arrive together later.
            if self._link.up.is_set():
                await self._beat()
            due = max(due + period, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _beat(self, last: bool = False) -> None:
        waiting, running = len(self._queue), len(self._running)
        listed = {
            "id": self.id,
            "stage": self.stage.name,
            "variant": self.stage.variant,
            "queue": waiting,
            "in_flight": running,
        }
        beat = {
            "actor": self.id,
            "kind": "custom",
            "replicas": [] if last else [listed],
            "queue": waiting,
            "in_flight": running,
            "leaving": self._leaving,
            "sequence": self._sequence,
            "instance": self._instance,
        }
        self._sequence += 1
        if self.batches:
            beat["runs"] = {
                self.stage.variant: {
                    "batches": self.batches,
                    "requests": self.requests,
                    "busy_us": int(self.busy * 1e6),
                }
            }
        try:
            await self._link.nc.publish(self.app.beat(self.id), wire.pack(beat))
        except (nats.errors.Error, OSError) as error:
            log.debug("a heartbeat could not be sent: %s", error)


def _encode(request: StageRequest, replica: str, outcome: Outcome, hop: Hop) -> bytes:
    """Returns the `StageReply` of an outcome; an answer that cannot be encoded becomes an error."""
    if not isinstance(outcome, Answer):
        return wire.encode_done(request, replica, outcome, hop)
    try:
        outputs = tensors.encode_all(outcome.outputs)
    except KaskadeError as error:
        return wire.encode_done(request, replica, BadOutput(error.message), hop)
    body = wire.encode_done(request, replica, (outputs, outcome.confidence), hop)
    if len(body) > LARGEST_MESSAGE:
        excess = TooLarge(f"the answer has {len(body)} bytes; at most {LARGEST_MESSAGE} are decoded")
        return wire.encode_done(request, replica, excess, hop)
    return body


def serve(stage: Stage, broker: Broker, replica: str, grace: float, http: str) -> None:
    """Serves a stage until SIGTERM or SIGINT, then leaves; a second signal ends the grace. Probes are at `http`, if it is not empty."""

    async def run() -> None:
        with contextlib.ExitStack() as closing:
            probes = Probes(http) if http else None
            if probes is not None:
                closing.callback(probes.close)
            await serve_until_stopped(probes)

    async def serve_until_stopped(probes: Probes | None) -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def signalled() -> None:
            (hurry if stop.is_set() else stop).set()

        # Before the replica takes requests, so that no signal ends the process with them.
        _handle_signals(signalled)
        attaching = asyncio.ensure_future(Replica.attach(stage, broker, replica))
        await _first(attaching, stop.wait())
        if attaching.cancelled():
            return
        attached = attaching.result()
        if probes is not None:
            probes.replica = attached
        try:
            log.info("replica `%s` serves stage `%s` of app `%s`", replica, stage.name, stage.app)
            print(f"ready: {replica}", flush=True)
            await _first(stop.wait(), attached.failed.wait())
            if attached.failed.is_set():
                raise Internal(f"replica `{replica}` failed; the log has the cause")
        finally:
            # The one that is later is cancelled; a leave that is cancelled closes the connection.
            await _first(attached.leave(grace), hurry.wait())
        if attached.unanswered:
            raise Expired(f"replica `{replica}` left with {attached.unanswered} unanswered requests")

    asyncio.run(run())


def _handle_signals(handler: Callable[[], None]) -> None:
    """Calls `handler` at SIGINT and SIGTERM; raises `RuntimeError` where the loop cannot handle signals."""
    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, handler)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise RuntimeError(
            "`serve` ends by signals, so it must be called on the main thread, and not on Windows; elsewhere use `attach` and `leave`"
        ) from error


async def _first(*waits: Awaitable[Any]) -> None:
    """Waits until one of several ends, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, later = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in later:
        task.cancel()
    await asyncio.gather(*later, return_exceptions=True)
    for task in done:
        task.result()
