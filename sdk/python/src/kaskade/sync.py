"""The client for code without asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from .client import Accepted, AsyncClient
from .connection import Broker
from .errors import Unavailable
from .retry import RetryPolicy
from .wire import Reply

T = TypeVar("T")


class Client:
    """A client of one app that blocks. It runs an event loop on its own thread, and may be used from several threads.

    Its methods are those of `AsyncClient`, with the same retries and errors.
    """

    def __init__(
        self, app: str, broker: Broker | str = "", *, budget: float = 2.0, retry: RetryPolicy | None = None
    ) -> None:
        """Connects to an app, as `AsyncClient.connect`."""
        self._loop = asyncio.new_event_loop()
        self._ending: asyncio.Task[None] | None = None
        self._closed = False
        #: Held to give work to the loop, and to close the client: no work comes after its end.
        self._giving = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kaskade-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(AsyncClient.connect(app, broker, budget=budget, retry=retry))
        except BaseException:
            self._closed = True
            self._stop()
            raise

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
            ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
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
        parameters: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends a request and returns the answer, as `AsyncClient.infer`."""
        return self._run(self._client.infer(inputs, budget=budget, id=id, parameters=parameters))

    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        budget: float | None = None,
        id: str | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Iterator[Reply]:
        """Yields the parts of an answer and then the complete answer, as `AsyncClient.stream`."""
        parts = self._client.stream(inputs, budget=budget, id=id, parameters=parameters)

        async def following() -> Reply | None:
            async for reply in parts:
                return reply
            return None

        async def end() -> None:
            await parts.aclose()

        try:
            while (reply := self._run(following())) is not None:
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
        parameters: Mapping[str, str] | None = None,
    ) -> Accepted:
        """Submits a durable request, as `AsyncClient.submit`."""
        return self._run(self._client.submit(inputs, budget=budget, id=id, parameters=parameters))

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
        parameters: Mapping[str, str] | None = None,
    ) -> Reply:
        """Submits a durable request and waits for its result, as `AsyncClient.submit_and_wait`."""
        return self._run(
            self._client.submit_and_wait(inputs, timeout=timeout, budget=budget, id=id, parameters=parameters)
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # After `fork` the thread is missing in the new process, where the work would wait for ever.
        future = self._give(work) if self._thread.is_alive() else None
        if future is None:
            work.close()
            raise Unavailable("the client is closed, or was made in another process; make one in this process")
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._closed:
                raise Unavailable("the client was closed") from None
            raise
        except BaseException:
            # An interrupt of this thread ends the work on the other.
            future.cancel()
            raise

    def _give(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T] | None:
        """Starts work on the loop; `None` if the client is closed."""
        with self._giving:
            return None if self._closed else asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        """Closes the connection and ends what still runs on the loop, as `asyncio.run` does."""
        try:
            await self._client.close()
        finally:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
