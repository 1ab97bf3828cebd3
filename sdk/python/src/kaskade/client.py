"""The asynchronous client of an app."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import nats.errors

from . import wire
from .connection import CONNECT_TIMEOUT, Broker, Link, connect
from .errors import (
    Expired,
    Internal,
    KaskadeError,
    Malformed,
    NoReply,
    NotDurable,
    Overloaded,
    TooLarge,
    Unavailable,
    UnknownApp,
    InvalidInput,
    describe,
)
from .inbox import Inbox
from .retry import Allowance, Latency, Loss, RetryPolicy
from .subjects import App, check_request_id
from .wire import Parameter, Reply

REPLY_MARGIN = 0.5
"""Time beyond its budget that a client waits for the reply to travel back, seconds."""
ALLOWANCE_PAUSE = 0.1
"""Pause until a silent request that may not be sent again now asks again, seconds."""
ACK_TIMEOUT = 5.0
"""Timeout of the stream's acknowledgement, seconds."""
LEAST_PATIENCE = 0.5
"""Shortest timeout of an acknowledgement or of a query for a result, however little time is left, seconds."""
PUSH_POLL_PAUSE = 1.0
"""Pause between two polls for a result whose push is awaited, seconds."""

# "maximum bytes exceeded", "maximum messages exceeded", and the server's or the account's storage used up.
_FULL = {10_047, 10_023, 10_077, 10_028}


@dataclass(frozen=True)
class Accepted:
    """A durable request that the stream has stored."""

    id: str
    duplicate: bool


class AsyncClient:
    """A client of one app, for asyncio. `connect` makes one; it is an asynchronous context manager.

    A request is sent again with the same id, within its budget, when its connection breaks before the reply, when the
    app is busy or short of replicas (retryable errors), when the app's ingresses have moved to another server, and, unless
    it is streamed, when the app is silent for much longer than usual. The model may run twice; the caller gets one answer.
    """

    def __init__(self, link: Link, app: str, budget: float = 2.0, retry: RetryPolicy | None = None) -> None:
        self.app = App(app)
        self.budget = budget
        self.retry = retry or RetryPolicy()
        self._allowance = Allowance()
        self._latency = Latency()
        self._link = link
        self._served = False
        #: Whether this broker has stored a request, or answered a query for a result.
        self._stores = False
        self._closed = False
        self._inbox = Inbox(link)

    @classmethod
    async def connect(
        cls,
        app: str,
        broker: Broker | str = "",
        *,
        budget: float = 2.0,
        retry: RetryPolicy | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> AsyncClient:
        """Connects to an app. `broker` is a URL or a `Broker`; the default is `NATS_URL`, else the loopback.

        `budget` is the time for a request that names none, `connect_timeout` that for the connection, with all servers and
        attempts, seconds. Raises `BrokerUnavailable`; as `BrokerRefused` if the credentials or a certificate are wrong, or if an
        address has no host or another scheme than `nats`, `tls`, `ws` or `wss`.
        """
        App(app)
        broker = Broker(broker) if isinstance(broker, str) else broker
        return cls(await connect(broker, f"kaskade-python-{app}", connect_timeout), app, budget, retry)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Requests in progress fail with `Unavailable`."""
        self._closed = True
        self._inbox.fail(self._ended())
        await self._link.close()
        # Requests that wait for the connection go on, and fail when they are published.
        self._link.up.set()

    async def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Reply:
        """Sends a request and returns the answer.

        `inputs` are arrays (numpy, torch, lists, texts) by name, without a batch dimension. `budget` is the time for
        the answer, seconds. `id` names the request; by default it is random. The parameter `stream` is left out; `stream`
        is the method for it. `traceparent` is the W3C trace context of the request; by default that of OpenTelemetry's
        current span, if there is one. Raises the typed error of the app, `NotPermitted`, or `NoReply` after the budget. If the
        task is cancelled, the request is cancelled too.
        """
        request_id = check_request_id(id if id is not None else secrets.token_hex(12))
        whole = {name: value for name, value in (parameters or {}).items() if name != "stream"}
        body = self._checked(wire.encode_infer(inputs, request_id, whole))
        trace = wire.trace_headers(traceparent)
        budget = self.budget if budget is None else budget
        try:
            attempts = self._attempts(body, request_id, trace, budget, streaming=False, own_id=id is None)
            async with aclosing(attempts) as replies:
                async for reply in replies:
                    return reply
        except asyncio.CancelledError:
            await self._cancel_quietly(request_id)
            raise
        raise Internal("the request ended without an answer")

    async def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> AsyncGenerator[Reply, None]:
        """Sends a request to a language model and yields its answer in parts, and last the complete answer.

        Parts have `part`, the number of their first token; the complete answer has none. A request is sent again only
        before its first part. Only stages that always reply send parts, unless the parameter `stream` is `optimistic`: then a
        part of another `stage` replaces the parts before it. Leaving the loop early cancels the request. Raises as `infer`.
        """
        request_id = check_request_id(id if id is not None else secrets.token_hex(12))
        body = self._checked(wire.encode_infer(inputs, request_id, {"stream": "true", **(parameters or {})}))
        trace = wire.trace_headers(traceparent)
        complete = False
        try:
            budget = self.budget if budget is None else budget
            attempts = self._attempts(body, request_id, trace, budget, streaming=True, own_id=id is None)
            async with aclosing(attempts) as replies:
                async for reply in replies:
                    complete = reply.part is None
                    yield reply
        except KaskadeError:
            complete = True
            raise
        finally:
            if not complete:
                await self._cancel_quietly(request_id)

    async def cancel(self, id: str) -> None:
        """Cancels the requests of that id. They end with `Cancelled`."""
        headers = {wire.REQUEST_ID: check_request_id(id)}
        await self._publish(self.app.cancel, b"", "", headers)

    async def _cancel_quietly(self, request_id: str) -> None:
        """Cancels a request that nothing waits for any more; without a connection its budget ends it."""
        if not self._closed:
            with suppress(KaskadeError):
                await self.cancel(request_id)

    async def feedback(self, id: str, label: int | str, timeout: float = 1.0) -> bool | None:
        """Tells the right answer to a request that was answered before: the number of a class or its name, or a text.

        Returns whether the answer was right; `None` if no ingress remembers the request within `timeout` seconds: it had
        no id, was labelled before or is too old, or the app's plan is not certified. Raises `InvalidInput` if the label cannot
        be compared with the answer, `UnknownApp` if no process serves the app, `Unavailable` if the connection breaks.
        """
        body = wire.encode_feedback(check_request_id(id), label)
        until = time.monotonic() + timeout
        token, queue = await self._inbox.open(self.app.feedback)
        try:
            if not self._link.up.is_set():
                await self._until_up(until, "sending a label")
            headers = {"content-type": "application/json"}
            await self._publish(self.app.feedback, body, self._inbox.reply(token), headers)
            message = await _next(queue, until - time.monotonic())
        except asyncio.TimeoutError:
            return None
        finally:
            self._inbox.close(token)
        if isinstance(message, KaskadeError):
            raise message
        if message is Loss.CONNECTION:
            raise Unavailable("sending a label: the connection broke before the reply")
        if _no_responders(message):
            raise self._no_responders()
        try:
            told = json.loads(message.data)
            refusal = told.get("refused")
            right = None if refusal else bool(told["right"])
        except (ValueError, AttributeError, KeyError) as error:
            raise Internal(f"the reply to a label cannot be read: {describe(error)}") from None
        if refusal:
            raise InvalidInput(f"the label of `{id}`: {refusal}")
        return right

    async def _until_up(self, until: float, what: str) -> None:
        """Waits for the connection; raises `Unavailable` if it does not return in time."""
        try:
            await asyncio.wait_for(self._link.up.wait(), max(until - time.monotonic(), 0.0))
        except asyncio.TimeoutError:
            raise Unavailable(f"{what}: the connection to the broker is lost") from None

    async def submit(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Accepted:
        """Submits a durable request, which gets exactly one result even if processes are lost meanwhile.

        After an error the request may be submitted again under the same id without being stored twice. Raises
        `NotDurable` or `NeedsJetStream` if the app accepts none, `Overloaded` if the stream is full, `Unavailable` if
        the stream has not acknowledged the request.
        """
        request_id = check_request_id(id if id is not None else secrets.token_hex(12))
        body = self._checked(wire.encode_infer(inputs, request_id, parameters))
        return await self._submit(body, budget, request_id, wire.trace_headers(traceparent))

    async def result(self, id: str) -> Reply | None:
        """Returns the result of a durable request; `None` if it has none yet, or if its result has expired.

        Raises the request's own error, `NotDurable`, or `Unavailable` if the server could not be asked.
        """
        return await self._result(id, ACK_TIMEOUT)

    async def _result(self, id: str, timeout: float) -> Reply | None:
        subject = self.app.result_query(check_request_id(id))
        message = await self._ask(subject, b"", {}, "fetching a result", timeout)
        if message is None:
            raise NotDurable(
                f"app `{self.app.name}` stores no results here; durable requests need [durable] in its file and JetStream"
            )
        status = (message.headers or {}).get("Status")
        if status not in (None, "404"):
            raise Unavailable(f"fetching a result: {status} {(message.headers or {}).get('Description', '')}")
        self._stores = True
        return None if status else self._read(message)

    async def wait(self, id: str, timeout: float = 30.0) -> Reply:
        """Waits for the result of a durable request; polls at least once.

        Raises the request's own error, or `NoReply` if there is no result in time; then one may wait again. Raises
        `NotDurable` at once if this client has neither submitted a request nor asked for a result successfully before.
        """
        until = time.monotonic() + timeout
        pause = 0.01
        while True:
            absent: KaskadeError | None = None
            try:
                reply = await self._result(id, _patience(until))
            except (NotDurable, Overloaded, Unavailable) as error:
                if self._closed or (isinstance(error, NotDurable) and not self._stores):
                    raise
                # The server may come back, also the one with the results; the wait is bounded anyway.
                absent, reply = error, None
            if reply is not None:
                return reply
            left = until - time.monotonic()
            if left <= 0:
                if isinstance(absent, NotDurable):
                    raise absent
                raise NoReply(f"request `{id}` has no result: it is in progress, was never submitted, or has expired")
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)

    async def submit_and_wait(
        self,
        inputs: Mapping[str, Any],
        *,
        timeout: float = 30.0,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Reply:
        """Submits a durable request and waits for its result; the result stays stored either way.

        The result is pushed as soon as it is stored, and polled every second in case the push is lost. The result of a
        duplicate is polled at once: it is pushed to the first submission, if to any. Raises as `submit` and `wait`.
        """
        request_id = check_request_id(id if id is not None else secrets.token_hex(12))
        body = self._checked(wire.encode_infer(inputs, request_id, parameters))
        trace = wire.trace_headers(traceparent)
        until = time.monotonic() + timeout
        token, queue = await self._inbox.open(self.app.submit)
        try:
            push = {wire.PUSH: self._inbox.reply(token)}
            accepted = await self._submit(body, budget, request_id, trace | push, _patience(until))
            if not accepted.duplicate:
                reply = await self._pushed(queue, request_id, until)
                if reply is not None:
                    return reply
        finally:
            self._inbox.close(token)
        return await self.wait(request_id, until - time.monotonic())

    async def _pushed(self, queue: asyncio.Queue[Any], request_id: str, until: float) -> Reply | None:
        """Returns the result that is pushed to `queue`, or a stored one if the push is lost; `None` if neither comes in time."""
        while (left := until - time.monotonic()) > 0:
            try:
                message = await _next(queue, min(PUSH_POLL_PAUSE, left))
            except asyncio.TimeoutError:
                message = None
            if isinstance(message, KaskadeError):
                raise message
            if message is not None and message is not Loss.CONNECTION:
                return self._read(message)
            # After an error of the query the push may still come, and the wait is bounded anyway.
            with suppress(NotDurable, Overloaded, Unavailable):
                reply = await self._result(request_id, _patience(until))
                if reply is not None:
                    return reply
        return None

    async def _submit(
        self, body: bytes, budget: float | None, request_id: str, headers: dict[str, str], timeout: float = ACK_TIMEOUT
    ) -> Accepted:
        headers = headers | {wire.REQUEST_ID: request_id, wire.MESSAGE_ID: request_id}
        if budget is not None:
            headers[wire.BUDGET] = wire.budget_header(budget)
        message = await self._ask(self.app.submit, body, headers, "submitting a request", timeout)
        if message is None:
            raise self._no_responders()
        error = wire.read_fault(message.headers)
        if error is not None:
            raise error
        try:
            ack = json.loads(message.data)
            refusal = ack.get("error")
        except (ValueError, AttributeError) as error:
            raise Internal(f"the reply to a durable request is not a stream acknowledgement: {error}") from None
        if refusal:
            kind = Overloaded if refusal.get("err_code") in _FULL else Unavailable
            raise kind(f"the stream refused the request: {refusal.get('description', '')}")
        self._stores = True
        return Accepted(request_id, bool(ack.get("duplicate", False)))

    async def _ask(self, subject: str, body: bytes, headers: dict[str, str], what: str, timeout: float) -> Any:
        """Returns the one reply of a request that is idempotent; `None` for "no responders"."""
        until = time.monotonic() + timeout
        while True:
            token, queue = await self._inbox.open(subject)
            try:
                await asyncio.wait_for(self._link.up.wait(), max(until - time.monotonic(), 0.0))
                await self._publish(subject, body, self._inbox.reply(token), headers)
                message = await _next(queue, until - time.monotonic())
            except asyncio.TimeoutError:
                raise Unavailable(f"{what}: the server has not answered") from None
            finally:
                self._inbox.close(token)
            if isinstance(message, KaskadeError):
                raise message
            if message is not Loss.CONNECTION:
                return None if _no_responders(message) else message

    async def _attempts(
        self, body: bytes, request_id: str, trace: dict[str, str], budget: float, streaming: bool, own_id: bool
    ) -> AsyncGenerator[Reply, None]:
        """Yields the replies of a request, over as many attempts as the policy allows. With an id that no other request has, the
        answer cancels the attempts that are not answered."""
        wire.budget_header(budget)
        began = time.monotonic()
        parts = 0
        attempt = 0
        earlier: KaskadeError | None = None
        unanswered = False
        while True:
            attempt += 1
            failure: KaskadeError | Loss
            sends: dict[str, float] = {}
            try:
                async with aclosing(self._attempt(body, request_id, trace, began + budget, streaming, sends)) as replies:
                    async for reply in replies:
                        parts += 1
                        if own_id and reply.part is None and (unanswered or len(sends) > 1):
                            # They would be computed to their end. The ingress that answered no longer has the request.
                            await self._cancel_quietly(request_id)
                        yield reply
                        if reply.part is None or not streaming:
                            return
                failure = Loss.CONNECTION
            except KaskadeError as error:
                if isinstance(error, Expired | NoReply) and earlier is not None and parts == 0:
                    # The budget ended during this attempt: what an earlier one failed with says more.
                    raise earlier from None
                failure = earlier = error
            unanswered = unanswered or failure is Loss.CONNECTION or len(sends) > 1
            left = budget - (time.monotonic() - began)
            pause = None
            if parts == 0 and not self._closed:
                # After a reconnection the server may not know the ingresses yet.
                known = self._served or self._link.losses > 0
                pause = self.retry.pause(failure, attempt, left, known, random.random())
            if isinstance(failure, Overloaded) and pause is not None and not self._allowance.take(time.monotonic()):
                pause = None
            if pause is None:
                if isinstance(failure, KaskadeError):
                    raise failure
                raise Unavailable("the connection to the broker broke before the answer")
            await asyncio.sleep(pause)

    async def _attempt(
        self,
        body: bytes,
        request_id: str,
        trace: dict[str, str],
        deadline: float,
        streaming: bool,
        sends: dict[str, float],
    ) -> AsyncGenerator[Reply, None]:
        """Yields the replies of one attempt; ends without a final one if the connection breaks. It sends the request again if
        the app is silent; the first answer counts. Notes in `sends` when it was sent, by reply subject."""
        token, queue = await self._inbox.open(self.app.infer)
        try:
            # While the connection is down nothing is sent, so that nothing is sent twice when it is back.
            await asyncio.wait_for(self._link.up.wait(), max(deadline - time.monotonic(), 0.0))
            sent, silence = await self._send(body, request_id, trace, token, deadline, sends)
            while True:
                now = time.monotonic()
                wait = deadline + REPLY_MARGIN - now
                again = None if streaming or silence is None else sent + silence - now
                try:
                    message = await _next(queue, min(wait, wait if again is None else again))
                except asyncio.TimeoutError:
                    now = time.monotonic()
                    if again is None or now >= deadline:
                        raise
                    if len(sends) >= self.retry.attempts:
                        silence = None
                    elif self._allowance.take(now) and self._link.up.is_set():
                        sent, silence = await self._send(body, request_id, trace, token, deadline, sends)
                    else:
                        silence = now - sent + ALLOWANCE_PAUSE
                    continue
                if message is Loss.CONNECTION:
                    return
                if isinstance(message, KaskadeError):
                    raise message
                if _no_responders(message):
                    raise self._no_responders()
                reply = self._read(message)
                if reply.part is None and not streaming:
                    self._latency.answered(time.monotonic() - sends.get(message.subject, sent))
                yield reply
                if reply.part is None:
                    return
        except asyncio.TimeoutError:
            raise NoReply("no reply arrived within the budget") from None
        finally:
            self._inbox.close(token)

    async def _send(
        self,
        body: bytes,
        request_id: str,
        trace: dict[str, str],
        token: str,
        deadline: float,
        sends: dict[str, float],
    ) -> tuple[float, float | None]:
        """Sends a request. Returns when, by reply subject also in `sends`, and the silence after which it counts as lost."""
        now = time.monotonic()
        left = max(deadline - now, 0.0)
        headers = {
            wire.REQUEST_ID: request_id,
            wire.BUDGET: wire.budget_header(left),
            **trace,
        }
        reply = self._inbox.reply(token, len(sends))
        sends[reply] = now
        await self._publish(self.app.infer, body, reply, headers)
        return now, self._latency.silence(len(sends) - 1, left)

    def _read(self, message: Any) -> Reply:
        self._served = True
        error = wire.read_fault(message.headers)
        if error is not None:
            raise error
        reply = wire.decode_reply(message.data)
        if reply.part is None:
            self._allowance.answered()
        return reply

    def _checked(self, body: bytes) -> bytes:
        limit = self._link.payload_limit
        if len(body) > limit:
            raise TooLarge(
                f"the request has {len(body)} bytes; the broker accepts at most {limit}; send less, or raise `max_payload`: "
                "of the embedded broker under `[nats]` in app.toml, of a nats-server in its configuration"
            )
        return body

    async def _publish(self, subject: str, body: bytes, reply: str, headers: dict[str, str]) -> None:
        if self._closed:
            raise self._ended()
        try:
            await self._link.nc.publish(subject, body, reply=reply, headers=headers)
        except nats.errors.Error as error:
            raise Unavailable(f"the connection to the broker: {error}") from error
        except ValueError as error:
            raise Malformed(str(error)) from error

    def _ended(self) -> Unavailable:
        return Unavailable("the client was closed")

    def _no_responders(self) -> UnknownApp:
        return UnknownApp(f"no process serves app `{self.app.name}` on this broker; start it, or correct the name")


async def _next(queue: asyncio.Queue[Any], timeout: float) -> Any:
    """Returns the next reply; raises `TimeoutError` if none has arrived in time, however late this is run."""
    try:
        return await asyncio.wait_for(queue.get(), max(timeout, 0.0))
    except asyncio.TimeoutError:
        # The loop may have been busy until the time was over.
        if queue.empty():
            raise
        return queue.get_nowait()


def _patience(until: float) -> float:
    """Returns the timeout of one acknowledgement or query in a wait that ends at `until`, seconds."""
    return min(max(until - time.monotonic(), LEAST_PATIENCE), ACK_TIMEOUT)


def _no_responders(message: Any) -> bool:
    return bool(message.headers) and message.headers.get("Status") == "503"
