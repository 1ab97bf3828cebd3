"""Clients that are closed end what is in progress, and replicas that end keep no requests."""

import asyncio
import signal
import sys
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats

import kaskade
from kaskade import errors, tensors, wire
from kaskade.testing import NatsServer, Process, wait_until

from .deployment import NATS, needs_nats
from .test_broker import BUDGET, answer, ingress

SOON = 2.0
"""Time within which what is closed has ended; the machine may be busy, seconds."""


@needs_nats
class Closed(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)

    async def test_closing_ends_the_calls_of_other_threads(self) -> None:
        def ask(client: kaskade.Client) -> dict[str, Any]:
            outcomes: dict[str, Any] = {}

            def call(name: str, work: Callable[[], Any]) -> None:
                try:
                    outcomes[name] = work()
                except BaseException as error:
                    outcomes[name] = error

            def part() -> Any:
                stream = client.stream({})
                next(stream)
                return next(stream)

            calls = {
                "infer": lambda: client.infer({}, budget=30.0),
                "stream": part,
                "wait": lambda: client.wait("order-1", timeout=30.0),
            }
            threads = [threading.Thread(target=call, args=named, daemon=True) for named in calls.items()]
            for thread in threads:
                thread.start()
            wait_until("all have asked", lambda: len(asked) == len(calls))
            client.close()
            for thread in threads:
                thread.join(SOON)
            return outcomes

        asked: list[Any] = []

        async def serve(message: Any) -> None:
            asked.append(message)
            if b"stream" in message.data:
                await message.respond(answer(part=0))

        async with ingress(self.server.url, serve) as connection:
            client = await asyncio.to_thread(kaskade.Client, "fake", self.server.url, budget=BUDGET)
            await connection.subscribe(client._client.app.result_query("order-1"), cb=serve)
            await connection.flush()
            outcomes = await asyncio.to_thread(ask, client)
        self.assertEqual({name: type(outcome) for name, outcome in outcomes.items()},
                         {name: errors.Unavailable for name in ("infer", "stream", "wait")})

    async def test_closing_ends_requests_that_wait_for_the_connection(self) -> None:
        client = await kaskade.AsyncClient.connect("fake", self.server.url, budget=60.0)
        await asyncio.to_thread(self.server.kill)
        while client._link.up.is_set():
            await asyncio.sleep(0.01)
        asked = [asyncio.create_task(work) for work in (client.infer({}), client.submit({}), client.wait("order-1", 60.0))]
        while len(client._inbox.waiting) < len(asked):
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await client.close()
        for task in asked:
            with self.assertRaises(errors.Unavailable):
                await asyncio.wait_for(task, BUDGET)
        self.assertLess(time.monotonic() - began, SOON)


@needs_nats
class Interrupted(unittest.IsolatedAsyncioTestCase):
    """Ctrl-C during a call of the blocking client."""

    PROGRAM = """
import sys, kaskade
with kaskade.Client("fake", sys.argv[1], budget=60.0) as client:
    try:
        if sys.argv[2] == "infer":
            client.infer({}, id="mine")
        for part in client.stream({}, id="mine"):
            print("part", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""

    async def test_it_raises_keyboard_interrupt_and_cancels_the_request(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        cancelled: asyncio.Queue[Any] = asyncio.Queue()
        with NatsServer(NATS) as server:
            async with ingress(server.url, seen.put) as connection:
                await connection.subscribe("kaskade.fake.cancel", cb=cancelled.put)
                await connection.flush()
                for call in ("infer", "stream", "part"):
                    with Process([sys.executable, "-c", self.PROGRAM, server.url, call]) as process:
                        message = await asyncio.wait_for(seen.get(), BUDGET)
                        if call == "part":
                            await message.respond(answer(part=0))
                            await asyncio.to_thread(process.wait_for, "part")
                        process.process.send_signal(signal.SIGINT)
                        self.assertEqual(await asyncio.to_thread(process.process.wait, BUDGET), 0, process.output())
                        self.assertTrue(process.output().endswith("interrupted\n"), process.output())
                    told = await asyncio.wait_for(cancelled.get(), BUDGET)
                    self.assertEqual(told.headers[wire.REQUEST_ID], "mine")


@needs_nats
class Hanging(unittest.IsolatedAsyncioTestCase):
    """A stage whose function hangs."""

    async def asyncSetUp(self) -> None:
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)
        script = str(Path(__file__).with_name("stage_process.py"))
        self.arguments = [sys.executable, script, self.server.url, "r1", "60"]

    async def stage(self, grace: float) -> Process:
        """Starts the stage with a request that it never answers."""
        stage = self.enterContext(Process([*self.arguments, str(grace)]))
        await asyncio.to_thread(stage.wait_for, "ready")
        asking = await nats.connect(self.server.url)
        inputs = tensors.encode_all({"image": [[[1.0]]]})
        body = wire.pack({"id": 1, "ingress": "i1", "stage": "large", "inputs": inputs})
        await asking.publish("kaskade.digits.stage.large", body, reply="kaskade.digits.done.i1.1")
        await asking.close()
        await asyncio.to_thread(stage.wait_for, "batch")
        return stage

    async def test_a_stage_ends_after_its_grace(self) -> None:
        stage = await self.stage(grace=0.5)
        began = time.monotonic()
        self.assertEqual(await asyncio.to_thread(stage.terminate), 1)
        self.assertLess(time.monotonic() - began, 5.0)
        self.assertIn("KSK0005: replica `r1` left with 1 unanswered requests", stage.output())

    async def test_a_second_signal_ends_the_grace(self) -> None:
        stage = await self.stage(grace=50.0)
        began = time.monotonic()
        stage.process.send_signal(signal.SIGTERM)
        # The leave ends the subscriptions at first.
        asking = await nats.connect(self.server.url)
        while True:
            try:
                await asking.request("kaskade.digits.replica.r1", b"", timeout=0.1)
            except nats.errors.NoRespondersError:
                break
            except asyncio.TimeoutError:
                continue
        await asking.close()
        self.assertEqual(await asyncio.to_thread(stage.terminate), 1)
        self.assertLess(time.monotonic() - began, 10.0)


if __name__ == "__main__":
    unittest.main()
