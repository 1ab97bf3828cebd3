"""Runs functions one after another on a daemon thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Runner:
    """A daemon thread that runs functions one after another.

    Unlike a `ThreadPoolExecutor`, it does not keep the process from ending while a function hangs.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs a function and returns its result, or raises its exception. Raises `RuntimeError` if no thread can be started."""
        if not self._thread.is_alive():
            self._thread.start()
        done: Future[T] = Future()
        self._jobs.put((done, function, arguments))
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Ends the thread after the functions that it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, function, arguments = job
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(function(*arguments))
            except BaseException as error:
                done.set_exception(error)
