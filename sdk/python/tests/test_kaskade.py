"""The client and Python stages in an app that the real program serves."""

import asyncio
import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import kaskade
from kaskade import errors
from kaskade.testing import wait_until

from .deployment import app, image, needs_kaskade, stage_process

REQUESTS = 300
BUDGET = 30.0
ONCE = kaskade.RetryPolicy(attempts=1)


async def ask(client: kaskade.AsyncClient, index: int) -> None:
    """Sends one request, and checks that the answer is its own."""
    inputs = image(index)
    reply = await client.infer(inputs)
    assert reply.stage == "large", reply
    np.testing.assert_allclose(reply["logits"][0], inputs["image"].sum(), rtol=1e-5)


async def load(client: kaskade.AsyncClient, requests: int = REQUESTS, pause: float = 0.003) -> list[Any]:
    """Sends requests at a steady rate; returns their errors."""
    tasks = []
    for index in range(requests):
        tasks.append(asyncio.create_task(ask(client, index)))
        await asyncio.sleep(pause)
    return [outcome for outcome in await asyncio.gather(*tasks, return_exceptions=True) if outcome is not None]


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A stand-in for a collector of OTLP: its address, and what it was sent."""
    sent: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


@needs_kaskade
class Served(unittest.IsolatedAsyncioTestCase):
    async def test_killed_in_mid_batch_nothing_is_lost(self) -> None:
        with app(["large-0", "large-1"]) as (nats, _), stage_process(nats.url, "large-0", 0.3) as first:
            with stage_process(nats.url, "large-1", 0.05):
                async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET, retry=ONCE) as client:
                    requests = asyncio.create_task(load(client))
                    await asyncio.to_thread(first.wait_for, "batch\nbatch\n")
                    # A batch takes 0.3 s, and the line is printed when it begins.
                    first.kill()
                    self.assertEqual(await requests, [])

    async def test_a_graceful_leave_loses_nothing(self) -> None:
        with app(["large-0", "large-1"]) as (nats, _), stage_process(nats.url, "large-0", 0.05) as first:
            with stage_process(nats.url, "large-1", 0.05):
                async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET, retry=ONCE) as client:
                    requests = asyncio.create_task(load(client))
                    await asyncio.to_thread(first.wait_for, "batch\nbatch\n")
                    self.assertEqual(await asyncio.to_thread(first.terminate), 0, first.output())
                    self.assertEqual(await requests, [])

    async def test_a_server_that_restarts_under_load_loses_nothing(self) -> None:
        with app(["large-0"]) as (nats, _), stage_process(nats.url, "large-0"):
            async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET) as client:
                await ask(client, 0)
                requests = asyncio.create_task(load(client, pause=0.01))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(nats.restart)
                self.assertEqual(await requests, [])

    async def test_durable_requests_are_stored_and_answered_once(self) -> None:
        with app(["large-0"], "durable = {}") as (nats, _):
            async with await kaskade.AsyncClient.connect("digits", nats.url) as client:
                with stage_process(nats.url, "large-0"):
                    accepted = await client.submit(image(3), id="order-1")
                    again = await client.submit(image(3), id="order-1")
                    self.assertEqual((accepted.id, accepted.duplicate, again.duplicate), ("order-1", False, True))
                    reply = await client.wait("order-1", timeout=BUDGET)
                    self.assertEqual(reply.stage, "large")
                    stored = await client.result("order-1")
                    self.assertEqual(stored["logits"].tolist(), reply["logits"].tolist())
                    with self.assertRaises(errors.NoReply):
                        await client.wait("order-2", timeout=0.0)
                    self.assertEqual((await client.submit_and_wait(image(4), timeout=BUDGET)).stage, "large")
                    with self.assertRaises(errors.InvalidInput):
                        await client.submit_and_wait({"other": [1.0]}, timeout=BUDGET)

    async def test_the_trace_of_a_request_is_exported(self) -> None:
        with collector() as (address, sent), app(["large-0"], f'telemetry = {{ otlp = "{address}", sample = 1.0 }}') as (nats, _):
            with stage_process(nats.url, "large-0"):
                async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET) as client:
                    await ask(client, 0)
                    exported = lambda: any(b"ingress digits" in body for body in sent)  # noqa: E731
                    await asyncio.to_thread(wait_until, "the trace is exported", exported)

    async def test_errors_of_the_app_are_typed(self) -> None:
        with app(["large-0"]) as (nats, _), stage_process(nats.url, "large-0"):
            async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET) as client:
                with self.assertRaises(errors.InvalidInput):
                    await client.infer({"other": [1.0]})
