"""What callers get wrong ends in a typed error at once, and nothing hangs."""

import asyncio
import json
import multiprocessing
import tempfile
import unittest
from typing import Any

import nats
import numpy as np

import kaskade
from kaskade import Typed, errors, subjects, tensors, wire
from kaskade.errors import Malformed
from kaskade.testing import NatsServer

from .deployment import NATS, needs_nats
from .test_broker import answer, ingress


class Values(unittest.TestCase):
    def test_values_that_are_no_arrays_name_their_tensor(self) -> None:
        for value in [[[1], [1, 2]], None, {"a": 1}, object(), [1, "a"], 2**70, Typed(["a"], "FP32"), Typed("a", "INT64")]:
            with self.assertRaisesRegex(Malformed, "tensor `x`", msg=repr(value)):
                tensors.encode("x", value)
        with self.assertRaisesRegex(Malformed, "5"):
            tensors.encode(5, [1])  # type: ignore[arg-type]
        for inputs in (None, [1.0], "text", np.zeros(2)):
            with self.assertRaisesRegex(Malformed, "by name", msg=repr(inputs)):
                wire.encode_infer(inputs, None, None)  # type: ignore[arg-type]

    def test_elements_that_do_not_fit_are_refused_instead_of_changed(self) -> None:
        for value, datatype in [
            ([300], "UINT8"), ([-1], "UINT32"), ([2**40], "INT32"), ([1.5], "INT64"), ([float("nan")], "INT8"), ([2], "BOOL"),
            (np.array([2**63], np.uint64), "INT64"),
        ]:
            with self.assertRaisesRegex(Malformed, f"does not fit {datatype}", msg=repr(value)):
                tensors.encode("x", Typed(value, datatype))
        for value, datatype, data in [([255], "UINT8", b"\xff"), ([2.0], "INT8", b"\x02"), ([1], "BOOL", b"\1"), ([True], "INT8", b"\1")]:
            self.assertEqual(tensors.encode("x", Typed(value, datatype))["data"], data)

    def test_lists_whose_elements_do_not_fit_are_refused(self) -> None:
        for data, datatype in [
            ([1.5], "INT32"), ([2], "BOOL"), (["x"], "BOOL"), (["7"], "INT32"), (["7"], "FP32"), ([None], "FP32"), ([300], "UINT8"),
            ([float("nan")], "INT8"), ([2**63], "INT64"), ([[1], [1.5]], "INT8"),
        ]:
            shape = [len(data)]
            with self.assertRaisesRegex(Malformed, f"tensor `x`: its data is no array of {datatype}", msg=repr(data)):
                tensors.decode({"name": "x", "shape": shape, "datatype": datatype, "data": data})
        for data, datatype, values in [
            ([1, 2.0], "INT32", [1, 2]), ([True, 0], "BOOL", [True, False]), ([], "INT64", []), ([2**64 - 1, 1], "UINT64", [2**64 - 1, 1]),
            ([1, 0.5], "BF16", [1.0, 0.5]), ([2**53 + 1, -1], "INT64", [2**53 + 1, -1]),
        ]:
            _, array = tensors.decode({"name": "x", "shape": [len(data)], "datatype": datatype, "data": data})
            self.assertEqual(array.tolist(), values)

    def test_messages_of_the_wrong_form_are_typed_errors(self) -> None:
        """A stage request of such a shape got no answer."""
        for shape in ([0, 2**64 - 1], [0, 2**63], [2**40, 0, 2**40]):
            for datatype in ("FP32", "BF16", "BYTES"):
                tensor = {"name": "x", "shape": shape, "datatype": datatype, "data": b""}
                with self.assertRaisesRegex(Malformed, "tensor `x`"):
                    wire.decode_stage_request(wire.pack({"id": 1, "ingress": "i", "inputs": [tensor]}))
        for datatype in (["FP32"], {}, None):
            with self.assertRaisesRegex(Malformed, "datatype"):
                tensors.decode({"name": "x", "shape": [0], "datatype": datatype, "data": b""})
        with self.assertRaisesRegex(Malformed, "branches"):
            wire.decode_reply(wire.pack({"outputs": [], "branches": 5}))

    def test_what_messagepack_cannot_hold_is_refused(self) -> None:
        for inputs, parameters in [
            ({"\ud800": [1.0]}, {}), ({}, {"seed": 2**70}), ({}, {"seed": "\udc80"}), ({}, {"\udc80": 1}), ({"x": ["\ud800"]}, {}),
        ]:
            with self.assertRaises(Malformed, msg=repr((inputs, parameters))):
                wire.encode_infer(inputs, "a", parameters)
        with self.assertRaises(Malformed):
            wire.encode_feedback("a", "\ud800")

    def test_ids_budgets_parameters_and_labels_are_checked(self) -> None:
        for request_id in (7, None, "", "a b"):
            with self.assertRaises(Malformed, msg=repr(request_id)):
                subjects.check_request_id(request_id)  # type: ignore[arg-type]
        for budget in (-1, float("nan"), 3601, "2s"):
            with self.assertRaises(Malformed, msg=repr(budget)):
                wire.budget_header(budget)  # type: ignore[arg-type]
        body = wire.unpack(wire.encode_infer({}, "a", {"k": np.int64(3), "t": True, "s": "x"}))
        self.assertEqual(body["parameters"], {"k": 3, "t": True, "s": "x"})
        with self.assertRaisesRegex(Malformed, "`k`"):
            wire.encode_infer({}, "a", {"k": [1]})
        self.assertEqual(wire.encode_feedback("a", np.int64(7)), b'{"id": "a", "label": 7}')
        self.assertEqual(wire.encode_feedback("a", "yes"), b'{"id": "a", "label": "yes"}')
        for label in (None, -1, 1.0, True, [1]):
            with self.assertRaises(Malformed, msg=repr(label)):
                wire.encode_feedback("a", label)


def ask_in_another_process(client: kaskade.Client, said: Any) -> None:
    try:
        client.infer({})
    except errors.KaskadeError as error:
        said.put(error.code)


@needs_nats
class Lives(unittest.TestCase):
    def setUp(self) -> None:
        self.server = NatsServer(NATS)
        self.addCleanup(self.server.__exit__, None, None, None)

    def test_a_closed_client_says_so(self) -> None:
        client = kaskade.Client("fake", self.server.url)
        client.close()
        client.close()
        with self.assertRaisesRegex(errors.Unavailable, "closed"):
            client.infer({})
        with self.assertRaisesRegex(errors.Unavailable, "closed"):
            next(client.stream({}))

    def test_a_client_of_another_process_says_so(self) -> None:
        # As of servers that load an application before they fork.
        with kaskade.Client("fake", self.server.url) as client:
            fork = multiprocessing.get_context("fork")
            said = fork.Queue()
            process = fork.Process(target=ask_in_another_process, args=(client, said))
            process.start()
            try:
                self.assertEqual(said.get(timeout=30), errors.Unavailable.code)
            finally:
                process.kill()
                process.join()
                said.close()



class Credentials(unittest.IsolatedAsyncioTestCase):
    async def test_files_that_are_no_credentials_are_named(self) -> None:
        with tempfile.NamedTemporaryFile() as empty:
            for broker, named in [
                (kaskade.Broker(nkey="/nonexistent/seed"), "/nonexistent/seed"),
                (kaskade.Broker(nkey=empty.name), empty.name),
                (kaskade.Broker(ca="/nonexistent/ca"), "cannot be read"),
                (kaskade.Broker(ca=empty.name), "cannot be read"),
            ]:
                with self.assertRaisesRegex(errors.BrokerUnavailable, named):
                    await kaskade.AsyncClient.connect("fake", broker)


@needs_nats
class Collected(unittest.IsolatedAsyncioTestCase):
    async def test_a_stream_that_is_collected_on_the_clients_thread_blocks_nothing(self) -> None:
        async def serve(message: Any) -> None:
            await message.respond(answer(part=0 if "parameters" in wire.unpack(message.data) else None))

        def ask(url: str) -> None:
            with kaskade.Client("fake", url, budget=20.0) as client:
                held = [client.stream({})]
                self.assertEqual(next(held[0]).part, 0)

                async def collect() -> None:
                    held.clear()

                # As the collector of cycles may do, which runs on any thread.
                asyncio.run_coroutine_threadsafe(collect(), client._loop).result(timeout=10)
                self.assertIsNone(client.infer({}).part)

        with NatsServer(NATS) as server:
            async with ingress(server.url, serve):
                await asyncio.to_thread(ask, server.url)


@needs_nats
class Labels(unittest.IsolatedAsyncioTestCase):
    async def test_a_label_that_cannot_be_compared_is_an_error(self) -> None:
        async def refuse(message: Any) -> None:
            await message.respond(json.dumps({"id": "a", "right": False, "refused": "`sea` is no class"}).encode())

        with NatsServer(NATS) as server:
            connection = await nats.connect(server.url)
            await connection.subscribe("kaskade.fake.feedback", cb=refuse)
            await connection.flush()
            client = await kaskade.AsyncClient.connect("fake", server.url)
            with self.assertRaisesRegex(errors.InvalidInput, "sea"):
                await client.feedback("a", "sea", timeout=10.0)
            await client.close()
            await connection.close()


if __name__ == "__main__":
    unittest.main()
