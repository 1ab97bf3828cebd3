"""What a client sends with its requests, and how long it waits for durable ones."""

import asyncio
import json
import sys
import types
import unittest
import unittest.mock
from typing import Any

import kaskade
from kaskade import errors, wire
from kaskade.connection import barrier
from kaskade.testing import NatsServer

from .deployment import NATS, needs_nats
from .test_broker import BUDGET, answer, ingress

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Span:
    """OpenTelemetry's module `trace` with a current span."""

    def __init__(self, valid: bool) -> None:
        context = types.SimpleNamespace(
            is_valid=valid, trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0xB7AD6B7169203331, trace_flags=1
        )
        self.get_current_span = lambda: types.SimpleNamespace(get_span_context=lambda: context)


class TraceContexts(unittest.TestCase):
    def test_the_current_span_is_the_default(self) -> None:
        for module, sent in ((None, {}), (Span(False), {}), (Span(True), {"traceparent": PARENT})):
            with unittest.mock.patch.dict(sys.modules, {"opentelemetry.trace": module}):
                self.assertEqual(wire.trace_headers(None), sent)

    def test_what_is_no_trace_context_is_refused(self) -> None:
        for parent in ("", "00", PARENT.upper(), f"{PARENT}\r\nx: y", 7):
            with self.assertRaisesRegex(errors.Malformed, "traceparent", msg=repr(parent)):
                wire.trace_headers(parent)  # type: ignore[arg-type]


@needs_nats
class Requests(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)

    async def client(self) -> kaskade.AsyncClient:
        client = await kaskade.AsyncClient.connect("fake", self.server.url, budget=BUDGET)
        self.addAsyncCleanup(client.close)
        return client

    async def test_a_request_has_the_trace_context_of_its_caller_and_no_other(self) -> None:
        """A context that is not sampled would keep the ingress from sampling the trace."""
        seen: list[str | None] = []

        async def serve(message: Any) -> None:
            seen.append(message.headers.get("traceparent"))
            durable = message.subject.endswith("submit")
            await message.respond(json.dumps({"stream": "s", "seq": 1}).encode() if durable else answer())

        def blocking() -> None:
            with kaskade.Client("fake", self.server.url, budget=BUDGET) as client:
                client.infer({}, traceparent=PARENT)
                self.assertEqual(len(list(client.stream({}, traceparent=PARENT))), 1)
                client.submit({}, traceparent=PARENT)

        async with ingress(self.server.url, serve) as connection:
            client = await self.client()
            await connection.subscribe(client.app.submit, cb=serve)
            await barrier(connection)
            for parent in (None, PARENT):
                await client.infer({}, traceparent=parent)
                [_ async for _ in client.stream({}, traceparent=parent)]
                await client.submit({}, traceparent=parent)
            await asyncio.to_thread(blocking)
        self.assertEqual(seen, [None] * 3 + [PARENT] * 6)

    async def test_without_a_server_a_durable_request_takes_its_timeout(self) -> None:
        client = await self.client()
        await asyncio.to_thread(self.server.kill)
        while client._link.up.is_set():
            await asyncio.sleep(0.01)
        # The timeout of an acknowledgement is not that of the caller.
        with unittest.mock.patch("kaskade.client.ACK_TIMEOUT", 3600.0):
            with self.assertRaises(errors.NoReply):
                await asyncio.wait_for(client.wait("order-1", timeout=0.2), BUDGET)
            with self.assertRaises(errors.Unavailable):
                await asyncio.wait_for(client.submit_and_wait({}, timeout=0.2), BUDGET)

    async def test_a_wait_outlasts_the_restart_of_the_server_with_the_results(self) -> None:
        async def submit(message: Any) -> None:
            await message.respond(json.dumps({"stream": "s", "seq": 1}).encode())

        async def result(message: Any) -> None:
            await message.respond(answer())

        async with ingress(self.server.url, submit) as connection:
            client = await self.client()
            with self.assertRaises(errors.NotDurable):
                await client.wait("order-1", timeout=BUDGET)
            await connection.subscribe(client.app.submit, cb=submit)
            await barrier(connection)
            await client.submit({}, id="order-1")
            with self.assertRaises(errors.NotDurable):
                await client.wait("order-1", timeout=0.05)
            absent, ask = asyncio.Event(), client._ask

            async def noted(*of: Any) -> Any:
                message = await ask(*of)
                if message is None:
                    absent.set()
                return message

            with unittest.mock.patch.object(client, "_ask", noted):
                waiting = asyncio.create_task(client.wait("order-1", timeout=BUDGET))
                await asyncio.wait_for(absent.wait(), BUDGET)
                await connection.subscribe(client.app.result_query("order-1"), cb=result)
                self.assertEqual((await waiting).stage, "s")


if __name__ == "__main__":
    unittest.main()
