"""The client for code without asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import warnings
import weakref
from collections.abc import Coroutine, Generator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from .client import Accepted, AsyncClient
from .connection import CONNECT_TIMEOUT, Broker
from .errors import Unavailable
from .retry import RetryPolicy
from .wire import Parameter, Reply

T = TypeVar("T")

CANCEL_TIMEOUT = 1.0
"""Longest time for which an interrupted call waits until its request is cancelled, seconds."""


class Client:
    """A client of one app that blocks. It runs an event loop on its own thread, and may be used from several threads.

    Its methods are those of `AsyncClient`, with the same retries and errors.
    """

    def __init__(
        self,
        app: str,
        broker: Broker | str = "",
        *,
        budget: float = 2.0,
        retry: RetryPolicy | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        """Connects to an app, as `AsyncClient.connect`."""
        self._loop = asyncio.new_event_loop()
        self._ending: asyncio.Task[None] | None = None
        self._closed = False
        #: Held to give work to the loop, and to close the client: no work comes after its end.
        self._giving = threading.Lock()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="kaskade-client", daemon=True)
        self._thread.start()
        connecting = AsyncClient.connect(app, broker, budget=budget, retry=retry, connect_timeout=connect_timeout)
        try:
            self._client = self._run(connecting)
        except BaseException:
            self._closed = True
            self._stop()
            raise
        self._dropped = weakref.finalize(self, _end_dropped, app, self._client, self._loop, self._thread)
        # At the end of the process the thread ends anyway.
        self._dropped.atexit = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread. Requests in progress on other threads fail with `Unavailable`."""
        if not self._thread.is_alive():
            return
        with self._giving:
            if self._closed:
                return
            self._closed = True
            self._dropped.detach()
            ended = asyncio.run_coroutine_threadsafe(_end(self._client), self._loop)
        try:
            ended.result()
        finally:
            self._stop()

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Reply:
        """Sends a request and returns the answer, as `AsyncClient.infer`."""
        return self._run(
            self._client.infer(inputs, budget=budget, id=id, parameters=parameters, traceparent=traceparent)
        )

    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Generator[Reply, None, None]:
        """Yields the parts of an answer and then the complete answer, as `AsyncClient.stream`.

        Leaving the loop early, `close` and Ctrl-C cancel the request.
        """
        parts = self._client.stream(inputs, budget=budget, id=id, parameters=parameters, traceparent=traceparent)
        part: Coroutine[Any, Any, Reply | None] | None = None

        async def following() -> Reply | None:
            return await anext(parts, None)

        async def end() -> None:
            if part is not None:
                # Its wait may have been interrupted.
                await _settle(part)
            await parts.aclose()

        try:
            while True:
                part = following()
                reply = self._run(part)
                if reply is None:
                    return
                yield reply
        finally:
            if threading.current_thread() is self._thread:
                # The generator is collected on the loop's thread, which cannot wait for itself.
                self._ending = self._loop.create_task(end())
            else:
                # A client that is closed has ended its streams.
                with suppress(Unavailable):
                    self._run(end())

    def cancel(self, id: str) -> None:
        """Cancels the requests of that id."""
        self._run(self._client.cancel(id))

    def feedback(self, id: str, label: int | str, timeout: float = 1.0) -> bool | None:
        """Tells the right answer to an earlier request, as `AsyncClient.feedback`."""
        return self._run(self._client.feedback(id, label, timeout))

    def submit(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Accepted:
        """Submits a durable request, as `AsyncClient.submit`."""
        return self._run(
            self._client.submit(inputs, budget=budget, id=id, parameters=parameters, traceparent=traceparent)
        )

    def result(self, id: str) -> Reply | None:
        """Returns the result of a durable request, as `AsyncClient.result`."""
        return self._run(self._client.result(id))

    def wait(self, id: str, timeout: float = 30.0) -> Reply:
        """Waits for the result of a durable request, as `AsyncClient.wait`."""
        return self._run(self._client.wait(id, timeout))

    def submit_and_wait(
        self,
        inputs: Mapping[str, Any],
        *,
        timeout: float = 30.0,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        traceparent: str | None = None,
    ) -> Reply:
        """Submits a durable request and waits for its result, as `AsyncClient.submit_and_wait`."""
        return self._run(
            self._client.submit_and_wait(
                inputs, timeout=timeout, budget=budget, id=id, parameters=parameters, traceparent=traceparent
            )
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = None
        try:
            future = self._give(work)
            if future is None:
                raise Unavailable("the client is closed, or was made in another process; make one in this process")
            return future.result()
        except concurrent.futures.CancelledError:
            if self._closed:
                raise Unavailable("the client was closed") from None
            raise
        except BaseException:
            if future is None or not future.done():
                self._interrupt(work)
            raise

    def _interrupt(self, work: Coroutine[Any, Any, Any]) -> None:
        """Ends work whose caller was interrupted, and waits until it has cancelled its request."""
        settled = self._give(_settle(work))
        if settled is not None:
            with suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                settled.result(CANCEL_TIMEOUT)

    def _give(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T] | None:
        """Starts work on the loop; returns `None`, and drops the work, if the client is closed."""
        # After `fork` the thread is missing in the new process, where the work would wait for ever; so might the lock.
        if self._thread.is_alive():
            with self._giving:
                if not self._closed:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        return None

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _settle(work: Coroutine[Any, Any, Any]) -> None:
    """Cancels work, wherever it is, and waits until it has ended."""
    running = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    else:
        # It has ended, or its caller was interrupted before it began.
        work.close()


async def _end(client: AsyncClient) -> None:
    """Closes the connection and ends what still runs on the loop, as `asyncio.run` does."""
    try:
        await client.close()
    finally:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


def _end_dropped(app: str, client: AsyncClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Ends the connection and the thread of a client that was dropped without `close`. It does not wait: it may run on any thread."""
    if not thread.is_alive():
        return
    asyncio.run_coroutine_threadsafe(_end(client), loop).add_done_callback(lambda _: loop.stop())
    warnings.warn(f"a client of app `{app}` was not closed", ResourceWarning, stacklevel=2)
