"""The client and Python stages in an app that the real program serves."""

import asyncio
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import kaskade
from kaskade import errors
from kaskade.testing import Process, free_port

from .deployment import KASKADE, REPOSITORY, app, image, needs_kaskade, stage_process

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
                    with self.assertRaises(errors.WrongInput):
                        await client.submit_and_wait({"other": [1.0]}, timeout=BUDGET)

    async def test_errors_of_the_app_are_typed(self) -> None:
        with app(["large-0"]) as (nats, _), stage_process(nats.url, "large-0"):
            async with await kaskade.AsyncClient.connect("digits", nats.url, budget=BUDGET) as client:
                with self.assertRaises(errors.WrongInput):
                    await client.infer({"other": [1.0]})


@needs_kaskade
class Example(unittest.TestCase):
    def test_a_profiled_stage_is_planned_and_served(self) -> None:
        """The commands of examples/python_stage/README.md."""
        example = REPOSITORY / "examples/python_stage"
        assert KASKADE
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            text = (example / "app.toml").read_text().replace("../digits", str(REPOSITORY / "examples/digits"))
            (here / "app.toml").write_text(text)

            def run(*command: str) -> str:
                done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
                return done.stdout

            stage = [sys.executable, str(example / "neighbours.py")]
            family = str(REPOSITORY / "examples/digits/profile.json")
            run(*stage, "profile", family, "profile.json")
            run(KASKADE, "validate", "profile.json")
            run(KASKADE, "plan", "cascade", "--profile", "profile.json", "--out", "plan.json")
            run(*stage, "place", "plan.json")
            run(KASKADE, "validate", "plan.json")
            listen = f"127.0.0.1:{free_port()}"
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            serve = [KASKADE, "serve", "--app", str(here / "app.toml"), "--worker", "local", "--listen", listen]
            with Process(serve) as served:
                served.wait_for("serving `digits`")
                with Process([*stage, "serve", f"nats://{listen}"], environment) as replica:
                    replica.wait_for("ready")
                    labels = np.frombuffer((REPOSITORY / "examples/digits/data/labels.idx1-ubyte").read_bytes(), np.uint8, offset=8)
                    with kaskade.Client("digits", f"nats://{listen}", budget=BUDGET) as client:
                        # The test images: neither model has seen them.
                        replies = [client.infer(image(index)) for index in range(1297, 1497)]
                    right = [reply["logits"].argmax() == label for reply, label in zip(replies, labels[1297:1497])]
                    self.assertEqual({reply.variant for reply in replies}, {"digits-tiny", "neighbours"})
                    self.assertGreater(np.mean(right), 0.95)
                    self.assertEqual(replica.terminate(), 0)
