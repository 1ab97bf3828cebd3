"""Chunks, batching, retries, wire messages, errors: without a broker."""

import asyncio
import random
import re
import time
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nats.aio.client import Client as Nats

from kaskade import Broker, RetryPolicy, errors, stage, subjects, wire
from kaskade.batching import Batching, BatchQueue
from kaskade.client import AsyncClient
from kaskade.chunks import Assembler, AssemblyError, Chunk, cut
from kaskade.connection import connect
from kaskade.leaving import Senders
from kaskade.retry import Allowance, Latency, Loss

REPOSITORY = Path(__file__).resolve().parents[3]


class Errors(unittest.TestCase):
    def test_codes_are_those_of_the_documentation(self) -> None:
        page = (REPOSITORY / "docs/reference/errors.md").read_text()
        entry = r"^## (KSK\d+) (\w+)\n\n.*?HTTP status (\d+)\. Retry: (yes|no|after a reconnect)\."
        listed = {code: (name, int(status), retry == "yes") for code, name, status, retry in re.findall(entry, page, re.M)}
        self.assertGreater(len(listed), 20)
        for code, entry in listed.items():
            kind = errors.BY_CODE[code]
            self.assertEqual((kind.__name__, kind.status, kind.retryable), entry)

    def test_unknown_codes_keep_their_name(self) -> None:
        self.assertIsInstance(errors.from_code("KSK0006", "full"), errors.Overloaded)
        unknown = errors.from_code("KSK9999", "new")
        self.assertEqual((type(unknown), str(unknown)), (errors.Internal, "KSK0017: KSK9999: new"))


class Resends(unittest.IsolatedAsyncioTestCase):
    async def test_the_latency_is_that_of_the_attempt_that_was_answered(self) -> None:
        """The latency was measured since the last attempt was sent, so that a service that became slower got every request
        twice."""
        link = Slow()
        client = AsyncClient(link, "app", budget=60.0)
        client._latency = Latency(shortest=0.001)
        client._latency.answered(0.0)
        await client.infer({})
        self.assertEqual((len(link.sent), len(link.cancelled)), (2, 1))
        self.assertGreaterEqual(client._latency._longest, link.sent[1] - link.sent[0])


class Connections(unittest.IsolatedAsyncioTestCase):
    async def test_a_connection_that_is_given_up_is_closed(self) -> None:
        """The socket was left open."""
        accepted: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
        made: list[Any] = []
        ends = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.put_nowait(reader)
            await ends.wait()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        def make() -> Any:
            made.append(Nats())
            return made[-1]

        with unittest.mock.patch("kaskade.connection.Nats", make):
            connecting = asyncio.ensure_future(connect(Broker(f"nats://127.0.0.1:{port}"), "test"))
            reader = await accepted.get()
            connecting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await connecting
        self.assertTrue(made[0].is_closed)
        self.assertEqual(await asyncio.wait_for(reader.read(), 30.0), b"")
        ends.set()
        server.close()
        await server.wait_closed()

    async def test_a_replica_that_is_given_up_while_it_attaches_is_closed(self) -> None:
        @stage("app", "s")
        def function(x: Any) -> Any:
            return x

        link = Slow()
        link.on_returned: list[Any] = []
        link.asked, link.closed = asyncio.Event(), False

        async def barrier() -> None:
            link.asked.set()
            await asyncio.Event().wait()

        async def close() -> None:
            link.closed = True

        async def connected(*_: Any) -> Any:
            return link

        link.barrier, link.close, link.subscribe = barrier, close, unittest.mock.AsyncMock()
        with unittest.mock.patch("kaskade.replica.connect", connected):
            attaching = asyncio.ensure_future(function.attach("nats://127.0.0.1:1", "r"))
            await link.asked.wait()
            attaching.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await attaching
        self.assertTrue(link.closed)


class Late(unittest.IsolatedAsyncioTestCase):
    async def test_a_reply_that_has_arrived_counts_however_late_it_is_read(self) -> None:
        """While something else kept the loop busy beyond the budget, the reply was dropped for `NoReply`."""
        link = Slow(answered=1)
        client = AsyncClient(link, "app", budget=60.0)
        clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

        def busy(_: str) -> None:
            clock.now += 100.0

        link.on_sent = busy
        with unittest.mock.patch("kaskade.client.time", clock):
            self.assertEqual((await client.infer({})).stage, "s")

    async def test_a_label_that_cannot_be_sent_is_not_one_that_nobody_remembers(self) -> None:
        link = Slow()
        client = AsyncClient(link, "app")
        link.up.clear()
        with self.assertRaises(errors.Unavailable):
            await client.feedback("a", 1, timeout=0.0)
        self.assertEqual(link.sent, [])

    async def test_a_reply_to_a_label_that_cannot_be_read_is_a_typed_error(self) -> None:
        for body in (b"", b"[]", b"{}", b"\xff"):
            link = Slow(answered=1, body=body)
            with self.assertRaises(errors.Internal, msg=repr(body)):
                await AsyncClient(link, "app").feedback("a", 1, timeout=60.0)


class Slow:
    """A link to an app that answers the first attempt once the second has arrived, or that of another number."""

    payload_limit = 1 << 20

    def __init__(self, answered: int = 2, body: bytes | None = None) -> None:
        self.answered = answered
        self.body = body
        self.on_sent: Any = lambda _: None
        self.nc = self
        self.up = asyncio.Event()
        self.up.set()
        self.on_lost: list[Any] = []
        self.on_refused: list[Any] = []
        self.sent: list[float] = []
        self.replies: list[str] = []
        self.cancelled: list[str] = []
        """Ids of the requests that were cancelled."""

    def new_inbox(self) -> str:
        return "_INBOX.slow"

    async def subscribe(self, _: str, cb: Any) -> None:
        self.received = cb

    async def publish(self, subject: str, body: bytes, reply: str, headers: dict[str, str]) -> None:
        if not reply:
            self.cancelled.append(headers[wire.REQUEST_ID])
            return
        self.sent.append(time.monotonic())
        self.replies.append(reply)
        if len(self.sent) == self.answered:
            data = self.body
            if data is None:
                data = wire.pack({"outputs": [], "stage": "s", "variant": "v", "hops": []})
            message = SimpleNamespace(subject=self.replies[0], data=data, headers=None)
            await self.received(message)
        self.on_sent(reply)


class Chunks(unittest.TestCase):
    def test_any_message_comes_back_and_nothing_is_held(self) -> None:
        draw = random.Random(3)
        assembler = Assembler()
        for _ in range(300):
            messages = [draw.randbytes(draw.randint(1, 200)) for _ in range(3)]
            pieces = [list(cut(number, message, draw.randint(1, 50))) for number, message in enumerate(messages)]
            whole = {}
            # Chunks of different messages interleave; those of one keep their order.
            while any(pieces):
                chunk, part = draw.choice([piece for piece in pieces if piece]).pop(0)
                parsed = Chunk.parse(str(chunk))
                reply = f"reply-{chunk.message}" if chunk.index == 0 else ""
                done = assembler.take(parsed, part, reply, 0.0, 1.0)
                if done is not None:
                    whole[chunk.message] = done
            self.assertEqual(whole, {number: (message, f"reply-{number}") for number, message in enumerate(messages)})
            self.assertEqual(assembler.held, 0)

    def test_a_lost_chunk_is_noticed(self) -> None:
        assembler = Assembler()
        pieces = list(cut(1, bytes(30), 10))
        assembler.take(*pieces[0], "reply", 0.0, 1.0)
        with self.assertRaises(AssemblyError) as failed:
            assembler.take(*pieces[2], "", 0.0, 1.0)
        self.assertIsInstance(failed.exception.error, errors.Unavailable)
        self.assertEqual((failed.exception.reply, assembler.held), ("reply", 0))

    def test_memory_is_bounded_and_expired_messages_make_room(self) -> None:
        assembler = Assembler(largest=1000, most=1500)
        with self.assertRaises(AssemblyError) as failed:
            assembler.take(Chunk(1, 0, 3), bytes(600), "", 0.0, 1.0)
        self.assertIsInstance(failed.exception.error, errors.TooLarge)
        self.assertIsNone(assembler.take(Chunk(2, 0, 2), bytes(900), "", 0.0, 1.0))
        with self.assertRaises(AssemblyError) as failed:
            assembler.take(Chunk(3, 0, 2), bytes(900), "", 0.5, 1.0)
        self.assertIsInstance(failed.exception.error, errors.Overloaded)
        self.assertIsNone(assembler.take(Chunk(4, 0, 2), bytes(900), "", 1.0, 2.0))

    def test_invalid_positions_are_refused(self) -> None:
        for text in ("", "1/0/1", "00000000000000AB/0/1", "00000000000000ab/1/1", "00000000000000ab/+0/1", "00000000000000ab/0/1/2"):
            with self.assertRaises(errors.Malformed, msg=text):
                Chunk.parse(text)


class Batches(unittest.TestCase):
    def test_a_batch_is_due_when_it_is_full_or_its_oldest_has_waited(self) -> None:
        queue: BatchQueue[int] = BatchQueue(Batching(max_batch=3, max_wait=1.0, min_queue=3), 10)
        self.assertIsNone(queue.poll(0.0).wait_until)
        queue.push(1, 0.0, 9.0)
        queue.push(2, 0.5, 9.0)
        self.assertEqual((queue.poll(0.5).batch, queue.poll(0.5).wait_until), ([], 1.0))
        self.assertEqual([waiting.item for waiting in queue.poll(1.0).batch], [1, 2])
        for item in range(5):
            queue.push(item, 2.0, 9.0)
        self.assertEqual([waiting.item for waiting in queue.poll(2.0).batch], [0, 1, 2])
        self.assertEqual(queue.poll(2.0).batch, [])
        self.assertEqual([waiting.item for waiting in queue.poll(2.0, draining=True).batch], [3, 4])

    def test_requests_are_run_expired_or_refused_once_whatever_happens(self) -> None:
        draw = random.Random(5)
        for _ in range(200):
            batching = Batching(draw.randint(1, 5), draw.random(), draw.randint(1, 5))
            queue: BatchQueue[int] = BatchQueue(batching, draw.randint(1, 8))
            now, seen, pushed = 0.0, [], []
            for item in range(60):
                now += draw.random() * 0.3
                if queue.push(item, now, now + draw.random() * 2):
                    pushed.append(item)
                self.assertLessEqual(len(queue), queue.capacity)
                if draw.random() < 0.4:
                    step = queue.poll(now)
                    self.assertLessEqual(len(step.batch), batching.max_batch)
                    self.assertTrue(all(waiting.deadline > now for waiting in step.batch))
                    seen += [waiting.item for waiting in step.expired + step.batch]
                    if step.wait_until is not None:
                        self.assertGreater(step.wait_until, now)
            while len(queue):
                step = queue.poll(now, draining=True)
                seen += [waiting.item for waiting in step.expired + step.batch]
            self.assertEqual(sorted(seen), pushed)


class Retries(unittest.TestCase):
    policy = RetryPolicy(attempts=5, first_pause=0.1, longest_pause=0.4)

    def pause(self, failure: errors.KaskadeError | Loss, attempt: int = 1, left: float = 9.0,
              served: bool = True, draw: float = 0.5) -> float | None:
        return self.policy.pause(failure, attempt, left, served, draw)

    def test_only_what_may_succeed_is_retried(self) -> None:
        for kind in errors.BY_CODE.values():
            retried = self.pause(kind("")) is not None
            expected = (kind.retryable and kind is not errors.NoReply) or kind is errors.UnknownApp
            self.assertEqual(retried, expected, kind)
        self.assertEqual(self.pause(Loss.CONNECTION), 0.0)

    def test_pauses_grow_and_stay_within_their_bounds(self) -> None:
        full = errors.Overloaded("")
        self.assertEqual([self.pause(full, attempt, draw=1.0) for attempt in range(1, 6)], [0.1, 0.2, 0.4, 0.4, None])
        self.assertEqual(self.pause(full, draw=0.0), 0.05)
        self.assertIsNone(self.pause(full, left=0.05), "the pause would end after the budget")
        self.assertIsNone(self.pause(Loss.CONNECTION, left=0.0))

    def test_refused_requests_are_sent_again_as_far_as_answers_and_time_allow(self) -> None:
        allowance = Allowance()
        # Ten seconds of overload with a thousand refusals per second.
        taken = sum(allowance.take(number / 1_000) for number in range(10_000))
        self.assertLessEqual(taken, 200 + 10 * 20)
        self.assertGreater(taken, 390)
        for _ in range(8):
            allowance.answered()
        self.assertGreaterEqual(sum(allowance.take(10.0) for _ in range(10)), 2)

    def test_silence_is_measured_by_the_latency_of_the_app(self) -> None:
        latency = Latency()
        self.assertIsNone(latency.silence(0, 60.0), "the first request may be slow")
        latency.answered(0.005)
        self.assertEqual([latency.silence(0, 60.0), latency.silence(2, 60.0)], [0.25, 1.0])
        latency.answered(2.0)
        self.assertEqual(latency.silence(0, 60.0), 8.0)
        self.assertEqual(latency.silence(0, 10.0), 5.0, "half of the budget is for another attempt")
        self.assertEqual(latency.silence(0, 3.0), 2.5, "a request that takes most of its budget is not sent twice")
        for _ in range(1_000):
            latency.answered(0.005)
        self.assertEqual(latency.silence(0, 60.0), 0.25)

    def test_an_app_that_never_answered_is_unknown_at_once(self) -> None:
        missing = errors.UnknownApp("")
        self.assertIsNone(self.pause(missing, served=False))
        self.assertIsNotNone(self.pause(missing, attempt=4), "one that has answered is started again")


class Leaving(unittest.TestCase):
    def test_a_replica_takes_requests_until_no_ingress_sends_any(self) -> None:
        senders = Senders("r1")
        self.assertEqual([senders.wait(0.0), senders.wait(0.3)], [0.3, 0.0], "no ingress is heard")
        senders.hear({"ingress": "a"})
        senders.hear({"ingress": "b", "unavailable": ["r0"]})
        self.assertEqual([senders.wait(0.25), senders.wait(1.5)], [0.75, 0.0])
        senders.hear({"ingress": "a", "unavailable": ["r1"]})
        self.assertGreater(senders.wait(0.3), 0.0)
        senders.hear({"ingress": "b", "gone": True})
        self.assertEqual(senders.wait(0.3), 0.0)
        senders.hear({"unavailable": None})
        self.assertEqual(senders.sending, set())


class Wire(unittest.TestCase):
    def test_a_stage_request_and_its_result(self) -> None:
        body = wire.pack({"id": 7, "ingress": "i1", "attempt": 2, "branch": "a.1", "stage": "s", "future": 1,
                          "hops": [{"stage": "before"}], "inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": bytes(8)}]})
        request = wire.decode_stage_request(body)
        self.assertEqual((request.id, request.inputs["x"].tolist()), (7, [0]))
        done = wire.unpack(wire.encode_done(request, "r", ([], 0.5), wire.Hop("s", 1, 2, 3)))
        self.assertEqual((done["id"], done["attempt"], done["branch"], done["confidence"]), (7, 2, "a.1", 0.5))
        self.assertEqual([hop["stage"] for hop in done["hops"]], ["before", "s"])
        self.assertNotIn("cost", done["hops"][1], "unknown is not zero")
        priced = wire.Hop("s", cost=wire.Cost(0.25, "measured"))
        done = wire.unpack(wire.encode_done(request, "r", ([], 0.5), priced))
        self.assertEqual(done["hops"][1]["cost"], {"amount": 0.25, "source": "measured"})
        failed = wire.unpack(wire.encode_done(request, "r", errors.BadOutput("NaN")))
        self.assertEqual(failed["error"], {"code": "KSK0009", "message": "NaN"})

    def test_a_stage_states_its_cost_in_outputs(self) -> None:
        stated = wire.Cost.stated
        self.assertEqual(stated({"cost": np.array([0.5])}), wire.Cost(0.5, "priced"))
        self.assertEqual(stated({"cost": 0.5, "cost_source": np.array(["modelled"])}), wire.Cost(0.5, "modelled"))
        for outputs in ({}, {"cost": float("nan")}, {"cost": -1.0}, {"cost": []}, {"cost": 1.0, "cost_source": "guessed"}):
            self.assertIsNone(stated(outputs), outputs)

    def test_random_bytes_are_malformed_and_nothing_else(self) -> None:
        draw = random.Random(13)
        sound = wire.pack({"id": 7, "ingress": "i", "inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": bytes(8)}]})
        for _ in range(5000):
            body = bytearray(sound)
            for _ in range(draw.randint(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            for decode in (wire.decode_stage_request, wire.decode_reply):
                try:
                    decode(bytes(body[: draw.randint(0, len(body))]))
                except errors.KaskadeError:
                    pass
        for body in (b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\x93"):
            with self.assertRaises(errors.Malformed):
                wire.unpack(body)

    def test_replies_hold_outputs_branches_or_an_error(self) -> None:
        text = wire.tensors.encode("text", "warm")
        reply = wire.decode_reply(wire.pack({
            "outputs": [text], "stage": "s", "variant": "v", "confidence": 0.5, "hops": [{"stage": "s", "batch": 4}], "part": 3,
            "branches": [{"branch": "a.0", "outputs": [text]}, {"branch": "a.1", "error": {"code": "KSK0006", "message": "full"}}],
        }))
        self.assertEqual((reply.text(), reply.hops[0].batch, reply.part), ("warm", 4, 3))
        self.assertIsInstance(reply.branches[1].error, errors.Overloaded)
        with self.assertRaises(errors.Draining):
            wire.decode_reply(wire.pack({"error": {"code": "KSK0010", "message": ""}}))

    def test_names_and_ids_are_checked(self) -> None:
        for name in ("", "a.b", "a b", "*", ">", "x" * 65, "é"):
            with self.assertRaises(errors.Malformed):
                subjects.App(name)
        for request_id in ("", "a b", "a\r\nb", "é", "x" * 129):
            with self.assertRaises(errors.Malformed):
                subjects.check_request_id(request_id)
        self.assertEqual(subjects.key("order-4711_a"), "order-4711_a")
        self.assertEqual(subjects.key("a.b/é"), "a=2eb=2f=c3=a9")
        self.assertEqual(wire.budget_header(1.5), "1500000")
        with self.assertRaises(errors.Malformed):
            wire.budget_header(3601)
        self.assertEqual(wire.read_budget({wire.BUDGET: "250000"}), 0.25)
        self.assertEqual(wire.read_budget({wire.BUDGET: "-1"}), 30.0)


class Confidence(unittest.TestCase):
    def test_scores_agree_with_their_definitions(self) -> None:
        from kaskade import Estimator
        from kaskade.confidence import calibration_error, confidence, fit_temperature, softmax

        logits = np.array([[0.0, np.log(3.0)], [2.0, 2.0]])
        np.testing.assert_allclose(confidence(logits, Estimator()), [0.5625, 0.25])
        np.testing.assert_allclose(confidence(logits, Estimator("margin")), [0.5, 0.0], atol=1e-12)
        np.testing.assert_allclose(confidence(np.array([[9.0, 9.0, 0.0]]), Estimator("top_k", 2)), [0.25])
        for bad in ([[np.nan, 1.0]], [[1.0]], [[np.inf, 0.0]]):
            with self.assertRaises(ValueError):
                confidence(np.array(bad), Estimator())
        draw = np.random.default_rng(1)
        true = draw.normal(size=(4000, 5)) * 2
        labels = np.array([draw.choice(5, p=row) for row in softmax(true)])
        self.assertAlmostEqual(fit_temperature(true * 3, labels), 3.0, delta=0.2)
        self.assertAlmostEqual(calibration_error(np.array([0.9, 0.9]), np.array([True, False])), 0.4)

    def test_margin_and_entropy_are_those_of_the_planner(self) -> None:
        from kaskade.confidence import class_spread, softmax

        margins, entropies = class_spread(np.array([[0.0, 0.0, -2000.0], [3.0, 1.0, 0.0]]), 2.0)
        shares = softmax(np.array([[3.0, 1.0, 0.0]]), 2.0)[0]
        np.testing.assert_allclose(margins, [0.0, shares[0] - shares[1]], atol=1e-12)
        np.testing.assert_allclose(entropies, [np.log(2) / np.log(3), -(shares * np.log(shares)).sum() / np.log(3)])

    def test_the_selection_part_is_the_planners(self) -> None:
        from kaskade.selection import selection_part, shuffled

        # The same places are in `certify::tests::the_split_is_always_the_same`.
        self.assertEqual(shuffled(12), [11, 2, 7, 4, 0, 1, 9, 3, 10, 6, 8, 5])
        self.assertEqual(sum(index * place for index, place in enumerate(shuffled(3000))), 6812777191)
        self.assertEqual([len(selection_part(samples)) for samples in (0, 1, 2, 500)], [0, 1, 1, 200])
