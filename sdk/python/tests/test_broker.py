"""The client and a replica against a real nats-server."""

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nkeys
import numpy as np

import kaskade
from kaskade import errors, tensors, wire
from kaskade.chunks import Assembler, Chunk, cut
from kaskade.connection import barrier, connect
from kaskade.retry import Latency
from kaskade.testing import NatsServer, Process

from .deployment import NATS, REPOSITORY, double, free_port, needs_nats

BUDGET = 20.0


def answer(**fields: Any) -> bytes:
    return wire.pack({"outputs": [], "stage": "s", "variant": "v", "hops": [], "degraded": False, **fields})


@contextlib.asynccontextmanager
async def ingress(url: str, serve: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
    """A stand-in for the ingresses of the app `fake`."""
    connection = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    await connection.subscribe("kaskade.fake.infer", cb=serve)
    await barrier(connection)
    try:
        yield connection
    finally:
        await connection.close()


async def fault(message: Any, code: str, text: str = "no") -> None:
    headers = {wire.SERVICE_ERROR: text, wire.SERVICE_ERROR_CODE: "503", wire.FAULT: code}
    await message._client.publish(message.reply, b"", headers=headers)


@needs_nats
class ClientTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)

    async def client(self, **options: Any) -> kaskade.AsyncClient:
        client = await kaskade.AsyncClient.connect("fake", self.server.url, budget=BUDGET, **options)
        self.addAsyncCleanup(client.close)
        return client

    async def test_retryable_faults_are_retried_with_the_same_id_and_what_is_left(self) -> None:
        seen = []

        async def serve(message: Any) -> None:
            seen.append((message.headers[wire.REQUEST_ID], int(message.headers[wire.BUDGET])))
            if len(seen) < 3:
                await fault(message, "KSK0006")
            else:
                await message.respond(answer(confidence=0.5))

        async with ingress(self.server.url, serve):
            reply = await (await self.client()).infer({"x": [1.0]}, id="mine")
        self.assertEqual(reply.confidence, 0.5)
        self.assertEqual([name for name, _ in seen], ["mine"] * 3)
        self.assertTrue(BUDGET * 1e6 >= seen[0][1] > seen[1][1] > seen[2][1])

    async def test_an_overloaded_app_gets_most_requests_once(self) -> None:
        seen = []

        async def serve(message: Any) -> None:
            seen.append(message)
            await fault(message, "KSK0006")

        async with ingress(self.server.url, serve):
            client = await self.client()
            asked = [client.infer({"x": [1.0]}, budget=4.0) for _ in range(400)]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        self.assertTrue(all(isinstance(outcome, errors.KaskadeError) for outcome in outcomes))
        # The allowance, and what the time of the requests adds.
        self.assertLessEqual(len(seen), 400 + 200 + 4 * 20)

    async def test_other_faults_are_raised_at_once(self) -> None:
        seen = []

        async def serve(message: Any) -> None:
            seen.append(message)
            await fault(message, "KSK0003", "input `x` is missing")

        async with ingress(self.server.url, serve):
            with self.assertRaisesRegex(errors.InvalidInput, "input `x` is missing"):
                await (await self.client()).infer({})
        self.assertEqual(len(seen), 1)

    async def test_a_budget_that_ends_during_a_later_attempt_raises_the_fault_before_it(self) -> None:
        seen = []

        async def serve(message: Any) -> None:
            seen.append(message)
            await fault(message, "KSK0007" if len(seen) == 1 else "KSK0005")

        async with ingress(self.server.url, serve):
            with self.assertRaises(errors.Unavailable):
                await (await self.client()).infer({})
        self.assertEqual(len(seen), 2)

    async def test_an_app_that_nothing_serves_is_unknown(self) -> None:
        client = await self.client()
        began = time.monotonic()
        with self.assertRaises(errors.UnknownApp):
            await client.infer({})
        self.assertLess(time.monotonic() - began, BUDGET / 2)

    async def test_without_a_reply_the_budget_ends_the_request(self) -> None:
        async def silent(_: Any) -> None:
            pass

        async with ingress(self.server.url, silent):
            with self.assertRaises(errors.NoReply):
                await (await self.client()).infer({}, budget=0.1)

    async def test_a_request_whose_connection_breaks_is_sent_again(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()

        async with ingress(self.server.url, seen.put):
            client = await self.client()
            asked = asyncio.create_task(client.infer({"x": [1.0]}))
            first = await seen.get()
            await asyncio.to_thread(self.server.restart)
            second = await asyncio.wait_for(seen.get(), BUDGET)
            await second.respond(answer())
            await asked
        self.assertEqual(first.headers[wire.REQUEST_ID], second.headers[wire.REQUEST_ID])
        self.assertGreater(int(first.headers[wire.BUDGET]), int(second.headers[wire.BUDGET]))

    async def test_after_a_reconnection_a_request_without_responders_is_sent_again(self) -> None:
        returned, judged = asyncio.Event(), asyncio.Event()

        class Judge(kaskade.RetryPolicy):
            def pause(self, *of: Any) -> float | None:
                judged.set()
                return super().pause(*of)

        client = await self.client(retry=Judge())
        client._link.on_returned.append(returned.set)
        await asyncio.to_thread(self.server.restart)
        await asyncio.wait_for(returned.wait(), BUDGET)
        asked = asyncio.create_task(client.infer({}))
        await asyncio.wait_for(judged.wait(), BUDGET)

        async def serve(message: Any) -> None:
            await message.respond(answer(variant="late"))

        async with ingress(self.server.url, serve):
            self.assertEqual((await asked).variant, "late")

    async def test_a_request_that_an_ingress_took_with_it_is_sent_again(self) -> None:
        seen: list[tuple[str, int]] = []

        async def serve(message: Any) -> None:
            seen.append((message.headers[wire.REQUEST_ID], int(message.headers[wire.BUDGET])))
            if len(seen) != 2:
                await message.respond(answer())

        async with ingress(self.server.url, serve):
            client = await self.client()
            await client.infer({}, id="usual")
            began = time.monotonic()
            await client.infer({}, id="lost")
            self.assertLess(time.monotonic() - began, BUDGET / 2)
        self.assertEqual([name for name, _ in seen], ["usual", "lost", "lost"])
        self.assertGreater(seen[1][1], seen[2][1])
        silent: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, silent.put):
            once = await self.client(retry=kaskade.RetryPolicy(attempts=1))
            once._latency.answered(0.001)
            with self.assertRaises(errors.NoReply):
                await once.infer({}, budget=0.6)
        self.assertEqual(silent.qsize(), 1, "retries are disabled")

    async def test_an_answer_cancels_the_attempts_that_lost_if_the_id_is_the_clients_own(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        cancelled: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, seen.put) as connection:
            await connection.subscribe("kaskade.fake.cancel", cb=cancelled.put)
            await barrier(connection)
            client = await self.client()
            answered = set()

            async def sent() -> Any:
                while (message := await asyncio.wait_for(seen.get(), BUDGET)).headers[wire.REQUEST_ID] in answered:
                    pass
                return message

            for id, lost in (("shared", "silence"), (None, "silence"), (None, "connection")):
                client._latency = Latency()
                if lost == "silence":
                    client._latency.answered(0.001)
                asked = asyncio.create_task(client.infer({}, id=id))
                await sent()
                if lost == "connection":
                    await asyncio.to_thread(self.server.restart)
                second = await sent()
                answered.add(second.headers[wire.REQUEST_ID])
                await second.respond(answer())
                await asked
                if id is None:
                    message = await asyncio.wait_for(cancelled.get(), BUDGET)
                    self.assertEqual(message.headers[wire.REQUEST_ID], second.headers[wire.REQUEST_ID])
            self.assertTrue(cancelled.empty())

    async def test_a_stored_result_is_polled_beside_the_push_and_at_once_of_a_duplicate(self) -> None:
        asked: list[str] = []

        async def submit(message: Any) -> None:
            duplicate = message.headers[wire.REQUEST_ID] == "again"
            await message.respond(json.dumps({"stream": "s", "seq": 1, "duplicate": duplicate}).encode())

        async def result(message: Any) -> None:
            asked.append(message.subject)
            # The first query fails; the push, which never comes, could still.
            if len(asked) == 1:
                await message._client.publish(message.reply, b"", headers={"Status": "500"})
            else:
                await message.respond(answer())

        async with ingress(self.server.url, submit) as connection:
            client = await self.client()
            await connection.subscribe(client.app.submit, cb=submit)
            for name in ("lost", "again"):
                await connection.subscribe(client.app.result_query(name), cb=result)
            await barrier(connection)
            began = time.monotonic()
            self.assertEqual((await client.submit_and_wait({}, id="lost", timeout=BUDGET)).stage, "s")
            self.assertLess(time.monotonic() - began, BUDGET / 2)
            began = time.monotonic()
            self.assertEqual((await client.submit_and_wait({}, id="again", timeout=BUDGET)).stage, "s")
            self.assertLess(time.monotonic() - began, 1.0)
        self.assertEqual(len(asked), 3)

    async def test_a_closed_client_ends_its_requests(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, seen.put):
            client = await self.client()
            asked = asyncio.create_task(client.infer({}))
            await seen.get()
            await client.close()
            with self.assertRaises(errors.Unavailable):
                await asyncio.wait_for(asked, BUDGET / 2)
            self.assertEqual(client._inbox.waiting, {})

    async def test_parts_are_streamed_and_leaving_early_cancels(self) -> None:
        async def serve(message: Any) -> None:
            self.assertEqual(wire.unpack(message.data)["parameters"], {"stream": "true", "tenant": "blue"})
            for part, text in enumerate(["a", "b", "c"]):
                await message.respond(answer(outputs=[tensors.encode("text", text)], part=part))
            await message.respond(answer(outputs=[tensors.encode("text", "abc")]))

        cancelled: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, serve) as connection:
            await connection.subscribe("kaskade.fake.cancel", cb=cancelled.put)
            await barrier(connection)
            client = await self.client()
            parts = [(reply.part, reply.text()) async for reply in client.stream({}, parameters={"tenant": "blue"})]
            self.assertEqual(parts, [(0, "a"), (1, "b"), (2, "c"), (None, "abc")])
            self.assertTrue(cancelled.empty())
            left = client.stream({}, id="left", parameters={"tenant": "blue"})
            async for _ in left:
                break
            await left.aclose()
            self.assertEqual((await cancelled.get()).headers[wire.REQUEST_ID], "left")

    async def test_a_stream_may_be_optimistic(self) -> None:
        async def serve(message: Any) -> None:
            await message.respond(answer(id=wire.unpack(message.data)["parameters"]["stream"]))

        async with ingress(self.server.url, serve):
            client = await self.client()
            asked = [[reply.id async for reply in client.stream({}, parameters=parameters)]
                     for parameters in (None, {"stream": "optimistic"})]
        self.assertEqual(asked, [["true"], ["optimistic"]])

    async def test_the_parameter_stream_makes_no_part_the_answer(self) -> None:
        async def serve(message: Any) -> None:
            if "stream" in wire.unpack(message.data)["parameters"]:
                await message.respond(answer(outputs=[tensors.encode("text", "a")], part=0))
            await message.respond(answer(outputs=[tensors.encode("text", "abc")]))

        async with ingress(self.server.url, serve):
            client = await self.client()
            reply = await client.infer({}, parameters={"stream": "true", "tenant": "blue"})
            self.assertEqual((reply.part, reply.text()), (None, "abc"))

    async def test_a_cancelled_task_cancels_its_request(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        cancelled: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, seen.put) as connection:
            await connection.subscribe("kaskade.fake.cancel", cb=cancelled.put)
            await barrier(connection)
            client = await self.client()
            asked = asyncio.create_task(client.infer({}, id="given-up"))
            await seen.get()
            asked.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asked
            message = await asyncio.wait_for(cancelled.get(), BUDGET)
            self.assertEqual(message.headers[wire.REQUEST_ID], "given-up")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.infer({}, id="late"), 0.05)
            message = await asyncio.wait_for(cancelled.get(), BUDGET)
            self.assertEqual(message.headers[wire.REQUEST_ID], "late")
            self.assertEqual(client._inbox.waiting, {})

    async def test_a_task_that_is_cancelled_without_a_connection_ends(self) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        async with ingress(self.server.url, seen.put):
            client = await self.client()
            tasks = [asyncio.create_task(client.infer({})), asyncio.create_task(anext(client.stream({})))]
            for _ in tasks:
                await seen.get()
            await client.close()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with self.assertRaises((asyncio.CancelledError, errors.Unavailable)):
                    await asyncio.wait_for(task, BUDGET)

    async def test_the_blocking_client_does_the_same(self) -> None:
        async def serve(message: Any) -> None:
            if "parameters" in wire.unpack(message.data):
                await message.respond(answer(part=0))
            await message.respond(answer(id="x"))

        def ask() -> list[Any]:
            with kaskade.Client("fake", self.server.url, budget=BUDGET) as client:
                return [client.infer({"x": [1.0]}).id, [reply.part for reply in client.stream({})]]

        async with ingress(self.server.url, serve):
            self.assertEqual(await asyncio.to_thread(ask), ["x", [0, None]])

    async def test_a_request_above_the_limit_is_refused_with_both_sizes(self) -> None:
        client = await self.client()
        with self.assertRaisesRegex(errors.TooLarge, "2000.* bytes; the broker accepts at most 1047552"):
            await client.infer({"x": np.zeros(2_000_000, np.uint8)})

    async def test_no_server_is_a_typed_error(self) -> None:
        with self.assertRaises(errors.BrokerUnavailable):
            await kaskade.AsyncClient.connect("fake", f"nats://127.0.0.1:{free_port()}")

    async def test_without_streams_requests_are_not_durable(self) -> None:
        client = await self.client()
        with self.assertRaises(errors.UnknownApp):
            await client.submit({})
        with self.assertRaises(errors.NotDurable):
            await client.result("order-1")


@needs_nats
class PermissionsTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_client_without_a_permission_is_told_at_once_what_the_server_refuses(self) -> None:
        may = {"a": {"publish": {"deny": ["kaskade.Fake.>", "$JS.>"]}}, "b": {"subscribe": {"deny": ["_INBOX.>"]}}}
        users = ", ".join(f"{{ user: {name}, password: {name}, permissions: {json.dumps(of)} }}" for name, of in may.items())
        server = NatsServer(NATS, extra=f"authorization {{ users: [ {users} ] }}")
        self.addCleanup(server.__exit__, None, None, None)
        for user, named in (("a", "kaskade.fake."), ("b", "_inbox.")):
            url = server.url.replace("nats://", f"nats://{user}:{user}@")
            client = await kaskade.AsyncClient.connect("Fake", url, budget=BUDGET)
            began = time.monotonic()
            for _ in range(2):
                for work in (client.infer({}), anext(client.stream({})), client.submit({}), client.feedback("a", 1, BUDGET)):
                    with self.assertRaisesRegex(errors.NotPermitted, named):
                        await work
            self.assertLess(time.monotonic() - began, BUDGET / 2)
            await client.close()


@needs_nats
class ReplicaTest(unittest.IsolatedAsyncioTestCase):
    max_payload: int | None = None

    async def asyncSetUp(self) -> None:
        self.server = NatsServer(NATS, max_payload=self.max_payload)
        self.addCleanup(self.server.__exit__, None, None, None)
        self.ingress = await nats.connect(self.server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        self.addAsyncCleanup(self.ingress.close)
        self.done: asyncio.Queue[Any] = asyncio.Queue()
        self.beats: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def beat(message: Any) -> None:
            await self.beats.put(wire.unpack(message.data))

        await self.ingress.subscribe("kaskade.fake.done.i1.*", cb=self.done.put)
        await self.ingress.subscribe("kaskade.fake.beat.*", cb=beat)
        await barrier(self.ingress)

    async def send(self, request: int, value: float = 1.0, to: str = "stage.double", **headers: str) -> None:
        body = wire.pack({"id": request, "ingress": "i1", "stage": "double", "attempt": 3,
                          "inputs": wire.tensors.encode_all({"x": [value]})})
        await self.ingress.publish(f"kaskade.fake.{to}", body, reply=f"kaskade.fake.done.i1.{request}", headers=headers or None)

    async def result(self) -> dict[str, Any]:
        message = await asyncio.wait_for(self.done.get(), BUDGET)
        return wire.unpack(message.data)

    async def test_requests_of_the_group_and_of_the_replica_are_answered(self) -> None:
        async with await double().attach(self.server.url, "r1"):
            await self.send(1, 2.0)
            await self.send(2, 3.0, to="replica.r1")
            answers = {done["id"]: done for done in [await self.result(), await self.result()]}
        for request, value in [(1, 4.0), (2, 6.0)]:
            done = answers[request]
            self.assertEqual(tensors.decode(done["outputs"][0])[1].tolist(), [value])
            self.assertEqual((done["attempt"], done["replica"], done["hops"][-1]["stage"]), (3, "r1", "double"))

    async def test_a_full_queue_refuses_at_once_and_late_requests_expire(self) -> None:
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        @kaskade.stage("fake", "double", max_batch=1, queue_capacity=2)
        def held(x: np.ndarray) -> np.ndarray:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(BUDGET)
            return x

        async with await held.attach(self.server.url, "r1") as replica:
            await self.send(1)
            while not replica._running:
                await asyncio.sleep(0.01)
            await self.send(2, **{wire.BUDGET: "1"})
            await self.send(3)
            await self.send(4)
            refused = await self.result()
            self.assertEqual((refused["id"], refused["error"]["code"]), (4, "KSK0006"))
            gate.set()
            answers = {done["id"]: done for done in [await self.result() for _ in range(3)]}
        self.assertEqual(answers[2]["error"]["code"], "KSK0005")
        self.assertTrue("outputs" in answers[1] and "outputs" in answers[3])

    async def test_garbage_is_answered_as_malformed(self) -> None:
        async with await double().attach(self.server.url, "r1"):
            await self.ingress.publish("kaskade.fake.stage.double", b"\xc1", reply="kaskade.fake.done.i1.9")
            self.assertEqual((await self.result())["error"]["code"], "KSK0001")

    async def test_padding_is_ignored_and_a_token_in_the_reply_subject_is_kept(self) -> None:
        await self.ingress.subscribe("kaskade.fake.done.i1.*.*.*", cb=self.done.put)
        await barrier(self.ingress)
        async with await double().attach(self.server.url, "r1"):
            await self.send(1, **{"Kaskade-Padding": "1"})
            body = wire.pack({"id": 2, "ingress": "i1", "inputs": tensors.encode_all({"x": [1.0]})})
            await self.ingress.publish("kaskade.fake.stage.double", body, reply="kaskade.fake.done.i1.2.0.1-2-3")
            message = await asyncio.wait_for(self.done.get(), BUDGET)
        self.assertEqual(message.subject, "kaskade.fake.done.i1.2.0.1-2-3")

    async def test_requests_that_are_cancelled_are_dropped_and_the_others_answered(self) -> None:
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()
        ran: list[float] = []

        @kaskade.stage("fake", "double", max_batch=1)
        def held(x: np.ndarray) -> np.ndarray:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(BUDGET)
            ran.append(float(x[0, 0]))
            return x

        async with await held.attach(self.server.url, "r1") as replica:
            await self.send(1, 1.0)
            while not replica._running:
                await asyncio.sleep(0.01)
            for number in (2, 3, 4):
                await self.send(number, float(number))
            while len(replica._queue) < 3:
                await asyncio.sleep(0.01)
            # The first runs, the third waits; the second is of another ingress; garbage changes nothing.
            for body in (wire.pack({"ingress": "i2", "ids": [2]}), b"\xc1", wire.pack({"ingress": "i1", "ids": ["3"]}),
                         wire.pack({"ingress": "i1", "ids": [1, 3, 99]})):
                await self.ingress.publish("kaskade.fake.stage_cancel", body)
            while replica.cancelled < 2:
                await asyncio.sleep(0.01)
            gate.set()
            answered = [(await self.result())["id"] for _ in range(2)]
        self.assertEqual((answered, ran), ([2, 4], [1.0, 2.0, 4.0]))
        self.assertTrue(self.done.empty())

    async def test_a_replica_whose_loop_fails_stops_its_heartbeats(self) -> None:
        replica = await double().attach(self.server.url, "r1")
        replica._function = None
        await self.send(1)
        await asyncio.wait_for(replica.failed.wait(), BUDGET)
        self.assertTrue(all(task.done() or task.cancelling() for task in replica._tasks))
        self.assertEqual((await self.result())["error"]["code"], "KSK0007", "what ran is answered")
        for to in ("stage.double", "replica.r1"):
            with self.assertRaises(nats.errors.NoRespondersError):
                await self.ingress.request(f"kaskade.fake.{to}", b"", timeout=BUDGET)
        began = time.monotonic()
        self.assertTrue(await replica.leave(grace=BUDGET))
        self.assertLess(time.monotonic() - began, BUDGET / 2)

    async def test_a_replica_that_fails_answers_what_waits(self) -> None:
        replica = await double(max_wait=60.0, min_queue=10).attach(self.server.url, "r1")
        for request in (1, 2):
            await self.send(request)
        # Until both have been polled for: the third is to be the one that fails.
        while len(replica._queue) < 2 or replica._changed.is_set():
            await asyncio.sleep(0.01)
        with unittest.mock.patch.object(replica._queue, "poll", side_effect=RuntimeError):
            await self.send(3)
            answers = {done["id"]: done["error"]["code"] for done in [await self.result() for _ in range(3)]}
        self.assertEqual(answers, dict.fromkeys((1, 2, 3), "KSK0007"))
        await replica.leave()

    async def test_a_server_that_restarts_during_a_leave_renews_no_subscription(self) -> None:
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        @kaskade.stage("fake", "double")
        def held(x: np.ndarray) -> np.ndarray:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(BUDGET)
            return x

        replica = await held.attach(self.server.url, "r1")
        await self.send(1)
        while not replica._running:
            await asyncio.sleep(0.01)
        leaving = asyncio.create_task(replica.leave(grace=BUDGET))
        while not replica._draining:
            await asyncio.sleep(0.01)
        losses = replica._link.losses
        await asyncio.to_thread(self.server.restart)
        while replica._link.losses == losses or not replica._link.up.is_set() or not self.ingress.is_connected:
            await asyncio.sleep(0.01)
        for to in ("stage.double", "replica.r1"):
            with self.assertRaises(nats.errors.NoRespondersError):
                await self.ingress.request(f"kaskade.fake.{to}", b"", timeout=BUDGET)
        gate.set()
        self.assertTrue(await leaving)

    async def test_heartbeats_go_on_during_a_batch(self) -> None:
        @kaskade.stage("fake", "double")
        def slow(x: np.ndarray) -> np.ndarray:
            time.sleep(1.0)
            return x

        async with await slow.attach(self.server.url, "r1"):
            await self.send(1)
            beats = [await asyncio.wait_for(self.beats.get(), BUDGET) for _ in range(6)]
            self.assertTrue(self.done.empty(), "six heartbeats take less time than the batch")
            await self.result()
        self.assertEqual([beat["sequence"] for beat in beats], list(range(6)))
        self.assertEqual(beats[-1]["replicas"], [{"id": "r1", "stage": "double", "variant": "double", "queue": 0, "in_flight": 1}])

    async def test_a_leaving_replica_announces_it_first_and_answers_what_it_took(self) -> None:
        replica = await double(max_wait=30.0, min_queue=100, max_batch=100).attach(self.server.url, "r1")
        await self.send(1)
        while not len(replica._queue):
            await asyncio.sleep(0.01)
        leaving = asyncio.create_task(replica.leave())
        while not (beat := await asyncio.wait_for(self.beats.get(), BUDGET))["leaving"]:
            pass
        self.assertEqual([listed["id"] for listed in beat["replicas"]], ["r1"])
        # Senders have not all heard of it yet: a request is still taken.
        await self.send(2)
        self.assertEqual(sorted([(await self.result())["id"], (await self.result())["id"]]), [1, 2])
        self.assertTrue(await leaving)
        while (beat := await asyncio.wait_for(self.beats.get(), BUDGET))["replicas"]:
            pass
        self.assertTrue(beat["leaving"])

    async def test_what_the_server_sent_before_the_end_of_a_subscription_is_handled(self) -> None:
        for _ in range(20):
            replica = await double(queue_capacity=10_000).attach(self.server.url, "r1")
            sent = 0

            async def send() -> None:
                nonlocal sent
                while not replica._draining:
                    sent += 1
                    await self.send(sent)
                    await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.01)
            for subscription in replica._subscriptions:
                await replica._link.unsubscribe(subscription)
            replica._draining = True
            await sending
            await barrier(self.ingress)
            # Every request is answered, or the server has said that there is no replica.
            while sent:
                await asyncio.wait_for(self.done.get(), BUDGET)
                sent -= 1
            await replica._link.close()

    async def test_after_a_reconnect_it_serves_and_counts_heartbeats_from_the_start(self) -> None:
        async with await double().attach(self.server.url, "r1"):
            while (await asyncio.wait_for(self.beats.get(), BUDGET))["sequence"] < 3:
                pass
            await asyncio.to_thread(self.server.restart)
            while (await asyncio.wait_for(self.beats.get(), BUDGET))["sequence"] > 2:
                pass
            await self.send(1)
            self.assertIn("outputs", await self.result())


@needs_nats
class StandaloneStageTest(unittest.IsolatedAsyncioTestCase):
    """The stage of examples/python_client, which uses nats-py alone."""

    async def test_padding_is_ignored_and_the_branch_of_a_pipeline_copied(self) -> None:
        server = NatsServer(NATS)
        self.addCleanup(server.__exit__, None, None, None)
        asking = await nats.connect(server.url)
        self.addAsyncCleanup(asking.close)
        script = str(REPOSITORY / "examples/python_client/stage.py")
        with Process([sys.executable, script, server.url, "fake", "double"]) as stage:
            await asyncio.to_thread(stage.wait_for, "ready")
            await asking.publish("kaskade.fake.stage.double", b"", headers={wire.PADDING: "1"})
            request = {"id": 1, "stage": "double", "inputs": tensors.encode_all({"x": [1.0]})}
            for more in ({}, {"branch": [["classify", 3]]}):
                message = await asking.request("kaskade.fake.stage.double", wire.pack(request | more), timeout=BUDGET)
                done = wire.unpack(message.data)
                self.assertEqual({key for key in done if key not in ("outputs", "confidence")}, {"id", "stage", *more})
                self.assertEqual(done.get("branch"), more.get("branch"))
            self.assertEqual(stage.output(), "ready\n")

    async def test_what_the_server_sent_before_it_left_is_answered(self) -> None:
        server = NatsServer(NATS)
        self.addCleanup(server.__exit__, None, None, None)
        asking = await nats.connect(server.url)
        self.addAsyncCleanup(asking.close)
        sent = {"requests": 0, "stop": False}
        replies: asyncio.Queue[Any] = asyncio.Queue()
        await asking.subscribe("kaskade.fake.done.i1.*", cb=replies.put)
        body = wire.pack({"id": 1, "ingress": "i1", "stage": "double", "inputs": tensors.encode_all({"x": [1.0]})})

        async def send() -> None:
            while not sent["stop"]:
                for _ in range(50):
                    sent["requests"] += 1
                    reply = f"kaskade.fake.done.i1.{sent['requests']}"
                    await asking.publish("kaskade.fake.stage.double", body, reply=reply)
                await asyncio.sleep(0)

        for _ in range(5):
            script = str(REPOSITORY / "examples/python_client/stage.py")
            with Process([sys.executable, script, server.url, "fake", "double"]) as stage:
                stage.wait_for("ready")
                sent["stop"] = False
                sending = asyncio.create_task(send())
                while replies.qsize() < 50:
                    await asyncio.sleep(0.01)
                code = await asyncio.to_thread(stage.terminate)
                sent["stop"] = True
                await sending
                self.assertEqual(code, 0, stage.output())
            await barrier(asking)
            # Every request is answered, or the server has said that there is no replica.
            while sent["requests"]:
                await asyncio.wait_for(replies.get(), BUDGET)
                sent["requests"] -= 1


@needs_nats
class StandaloneClientTest(unittest.IsolatedAsyncioTestCase):
    """The client of examples/python_client, which uses nats-py alone."""

    async def asyncSetUp(self) -> None:
        spec = importlib.util.spec_from_file_location("client", REPOSITORY / "examples/python_client/client.py")
        self.client = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.client)
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)
        self.connection = await nats.connect(self.server.url)
        self.addAsyncCleanup(self.connection.close)

    async def test_it_retries_what_the_service_calls_retryable(self) -> None:
        for code in sorted(self.client.RETRYABLE):
            self.assertTrue(errors.BY_CODE[code].retryable)
            seen = []

            async def serve(message: Any, code: str = code, seen: list[Any] = seen) -> None:
                seen.append(message)
                await (fault(message, code) if len(seen) == 1 else message.respond(answer()))

            async with ingress(self.server.url, serve):
                await self.client.infer(self.connection, "fake", [], BUDGET)
            self.assertEqual(len(seen), 2, code)
        # What a service may answer to a request; the others are the client's own, or of plans.
        own = {"KSK0012", "KSK0016", "KSK0022"}
        retryable = {code for code, kind in errors.BY_CODE.items() if kind.retryable}
        self.assertEqual(self.client.RETRYABLE, retryable - own)

    async def test_a_connection_that_breaks_at_the_end_of_the_budget_is_its_error(self) -> None:
        budgets = []

        async def attempt(_connection: Any, _app: str, _body: bytes, _id: str, left: float) -> None:
            budgets.append(left)
            raise self.client.Disconnected

        with unittest.mock.patch.object(self.client, "attempt", attempt), self.assertRaises(self.client.Disconnected):
            await self.client.infer(self.connection, "fake", [], 0.05)
        self.assertGreater(min(budgets), 0.0)


@needs_nats
class SecuredServerTest(unittest.IsolatedAsyncioTestCase):
    """A server with TLS and one user by nkey, whose permissions are those of a custom stage."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )
        self.certificate = certificate
        seeds = {name: self.seed(name) for name in ("stage", "ingress", "stranger")}
        self.keys = {name: path for name, (path, _) in seeds.items()}
        public = {name: public for name, (_, public) in seeds.items()}
        may = {
            "stage": {
                "publish": ["kaskade.fake.done.*.*", "kaskade.fake.beat.r1", "_KASKADE.UNSERVED.*"],
                "subscribe": ["kaskade.fake.stage.double", "kaskade.fake.replica.r1", "kaskade.fake.ingress.*",
                              "kaskade.fake.stage_cancel", f"_INBOX.{public['stage']}.>"],
            },
            "ingress": {"publish": [">"], "subscribe": [">"]},
        }
        users = ", ".join(f"{{ nkey: {public[name]}, permissions: {json.dumps(of)} }}" for name, of in may.items())
        extra = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\nauthorization {{ users: [ {users} ] }}'
        self.server = NatsServer(NATS, extra=extra)
        self.addCleanup(self.server.__exit__, None, None, None)
        self.url = self.server.url.replace("nats://", "tls://")

    def seed(self, name: str) -> tuple[Path, str]:
        """Writes a user's seed; returns its path, and the public key."""
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        path = self.folder / f"{name}.nk"
        path.write_bytes(seed)
        return path, nkeys.from_seed(bytearray(seed)).public_key.decode()

    def broker(self, name: str) -> kaskade.Broker:
        return kaskade.Broker(self.url, nkey=self.keys[name], ca=self.certificate)

    async def test_a_stage_and_a_client_work_with_a_key_over_tls(self) -> None:
        link = await connect(self.broker("ingress"), "ingress")
        self.addAsyncCleanup(link.close)
        done: asyncio.Queue[Any] = asyncio.Queue()
        await link.nc.subscribe("kaskade.fake.done.i1.*", cb=done.put)

        async def serve(message: Any) -> None:
            await message.respond(answer(confidence=0.5))

        await link.nc.subscribe("kaskade.fake.infer", cb=serve)
        await link.barrier()
        async with await double().attach(self.broker("stage"), "r1"):
            body = wire.pack({"id": 1, "ingress": "i1", "stage": "double", "inputs": tensors.encode_all({"x": [1.5]})})
            await link.nc.publish("kaskade.fake.stage.double", body, reply="kaskade.fake.done.i1.1")
            result = wire.unpack((await asyncio.wait_for(done.get(), BUDGET)).data)
        self.assertEqual(tensors.decode(result["outputs"][0])[1].tolist(), [3.0])
        client = await kaskade.AsyncClient.connect("fake", self.broker("ingress"), budget=BUDGET)
        self.addAsyncCleanup(client.close)
        self.assertEqual((await client.infer({"x": [1.0]})).confidence, 0.5)
        refused = [line for line in self.server.process.output().splitlines() if "Violation" in line]
        self.assertEqual(refused, [], "the permissions of a custom stage suffice")

    async def test_an_unknown_key_and_an_unknown_certificate_are_typed_errors(self) -> None:
        with self.assertRaises(errors.BrokerUnavailable):
            await double().attach(self.broker("stranger"), "r1")
        with self.assertRaises(errors.BrokerUnavailable):
            await double().attach(kaskade.Broker(self.url, nkey=self.keys["stage"]), "r1")


class ChunkedReplicaTest(ReplicaTest):
    max_payload = 4096

    async def test_large_messages_travel_in_chunks(self) -> None:
        value = np.random.default_rng(1).normal(size=5000).astype(np.float32)
        body = wire.pack({"id": 1, "ingress": "i1", "stage": "double", "inputs": tensors.encode_all({"x": value})})
        reply = "kaskade.fake.done.i1.1"
        assembler = Assembler()
        async with await double().attach(self.server.url, "r1"):
            for chunk, part in cut(77, body, 3000):
                first = {"reply": reply} if chunk.index == 0 else {}
                await self.ingress.publish("kaskade.fake.replica.r1", part, headers={wire.CHUNK: str(chunk)}, **first)
            whole = None
            while whole is None:
                message = await asyncio.wait_for(self.done.get(), BUDGET)
                whole = assembler.take(Chunk.parse(message.headers[wire.CHUNK]), message.data, reply, 0.0, 1.0)
        outputs = tensors.decode_all(wire.unpack(whole[0])["outputs"])
        np.testing.assert_array_equal(outputs["y"], 2 * value)
