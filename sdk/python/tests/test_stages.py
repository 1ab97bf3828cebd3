"""What a stage refuses when it is made or served, before it takes requests."""

import asyncio
import functools
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nats
import numpy as np

import kaskade
from kaskade import Batching, Input, errors
from kaskade.batch import Answer
from kaskade.probes import Probes
from kaskade.testing import NatsServer, Process

from .deployment import NATS, double, free_port, needs_nats

BUDGET = 20.0


class Functions(unittest.TestCase):
    def test_an_argument_with_a_default_is_an_optional_input(self) -> None:
        @kaskade.stage("fake", "masked", inputs={"mask": Input("FP32", (2,))})
        def masked(image: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
            return image if mask is None else image * mask

        image, mask = np.float32([1, 2]), np.float32([0, 1])
        wrong = {"image": image, "mask": np.float32([1])}
        outcomes = masked.run_batch([{"image": image}, {"image": image, "mask": mask}, {"mask": mask}, wrong, {"image": image, "x": 1}])
        for outcome, expected in zip(outcomes[:2], ([1, 2], [0, 2]), strict=True):
            assert isinstance(outcome, Answer), outcome
            self.assertEqual(outcome.outputs["logits"].tolist(), expected)
        for outcome, text in zip(outcomes[2:], ("`image` is missing", "`mask` has shape", "`x` is unknown.*`image`, `mask`"), strict=True):
            self.assertIsInstance(outcome, errors.InvalidInput)
            self.assertRegex(str(outcome), text)

    def test_functions_that_no_request_could_call_are_refused(self) -> None:
        async def asynchronous(image: Any) -> Any:
            return image

        def generator(image: Any) -> Any:
            yield image

        class Model:
            async def __call__(self, image: Any) -> Any:
                return image

        def several(*images: Any) -> Any:
            return images

        def positional(image: Any, /) -> Any:
            return image

        wrong = [asynchronous, generator, Model(), functools.partial(asynchronous), several, positional]
        for function in wrong:
            with self.assertRaises(TypeError, msg=repr(function)):
                kaskade.stage("fake", "wrong")(function)
        for function in (asynchronous, generator):
            with self.assertRaises(TypeError):
                kaskade.stage("fake", "wrong", per_request=True)(function)
        kaskade.stage("fake", "any")(lambda *_, **inputs: inputs)

    def test_an_input_that_the_function_does_not_take_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "`y`"):
            double(inputs={"y": Input("FP32")})


class Settings(unittest.TestCase):
    def test_options_out_of_range_are_refused(self) -> None:
        for wrong in (
            {"max_batch": 1.5}, {"max_batch": 0}, {"max_batch": True}, {"min_queue": 2.0}, {"max_wait": float("nan")},
            {"max_wait": float("inf")}, {"max_wait": -1.0}, {"queue_capacity": -5}, {"queue_capacity": 0}, {"queue_capacity": 1.5},
        ):
            with self.assertRaisesRegex(ValueError, next(iter(wrong)), msg=str(wrong)):
                double(**wrong)
        Batching(1, 0, 1)

    def test_a_datatype_that_is_none_is_refused_with_the_right_one(self) -> None:
        for name, right in [("float32", "FP32"), ("int64", "INT64"), ("bool", "BOOL"), ("bfloat16", "BF16"), ("str", "BYTES"), ("FP8", "FP16")]:
            with self.assertRaisesRegex(ValueError, right, msg=name):
                Input(name)
        for shape in ((1.0,), (-2,), ("8",)):
            with self.assertRaisesRegex(ValueError, "shape", msg=str(shape)):
                Input("FP32", shape)  # type: ignore[arg-type]
        Input("FP32", (-1, 8))


@needs_nats
class Serving(unittest.IsolatedAsyncioTestCase):
    async def test_on_another_thread_it_is_refused_before_it_attaches(self) -> None:
        with NatsServer(NATS) as server:
            with self.assertRaisesRegex(RuntimeError, "main thread.*attach"):
                await asyncio.to_thread(double().serve, server.url, "r1")
            connection = await nats.connect(server.url)
            with self.assertRaises(nats.errors.NoRespondersError):
                await connection.request("kaskade.fake.stage.double", b"", timeout=BUDGET)
            await connection.close()

    async def test_a_signal_while_it_connects_ends_it(self) -> None:
        script = "import sys, kaskade\n@kaskade.stage('fake', 'double')\ndef double(x): return x\ndouble.serve(sys.argv[1], 'r1')\n"
        connected = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        with Process([sys.executable, "-c", script, url]) as process:
            await asyncio.wait_for(connected.wait(), BUDGET)
            self.assertEqual(await asyncio.to_thread(process.terminate), 0, process.output())
        listener.close()

    async def test_a_replica_whose_output_is_closed_leaves(self) -> None:
        with NatsServer(NATS) as server, tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "stage.py")
            script.write_text(
                "import os, sys, kaskade\n@kaskade.stage('fake', 'double')\ndef double(x): return x\n"
                "os.close(1)\ndouble.serve(sys.argv[1], 'r1')\n"
            )
            connection = await nats.connect(server.url)
            beats: asyncio.Queue[Any] = asyncio.Queue()
            await connection.subscribe("kaskade.fake.beat.r1", cb=beats.put)
            await connection.flush()
            with Process([sys.executable, str(script), server.url]) as process:
                self.assertEqual(await asyncio.to_thread(process.process.wait, BUDGET), 1)
            last = None
            while beats.qsize():
                last = kaskade.wire.unpack((await beats.get()).data)
            assert last is not None
            self.assertEqual((last["leaving"], last["replicas"]), (True, []))
            await connection.close()


@needs_nats
class Probed(unittest.IsolatedAsyncioTestCase):
    async def get(self, probes: Probes, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{probes.port}{path}", timeout=BUDGET) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(get)

    async def test_probes_follow_the_replica(self) -> None:
        probes = Probes("127.0.0.1:0")
        self.addCleanup(probes.close)
        self.assertEqual(await self.get(probes, "/live"), (200, "ok\n"))
        self.assertEqual((await self.get(probes, "/ready"))[0], 503)
        self.assertEqual((await self.get(probes, "/other"))[0], 404)
        with NatsServer(NATS) as server:
            replica = probes.replica = await double().attach(server.url, "r1")
            self.assertEqual(await self.get(probes, "/ready?verbose"), (200, "ok\n"))
            connection = await nats.connect(server.url)
            body = kaskade.wire.pack({"id": 1, "ingress": "i", "inputs": kaskade.tensors.encode_all({"x": [1.0]})})
            await connection.request("kaskade.fake.stage.double", body, timeout=BUDGET)
            await connection.close()
            _, metrics = await self.get(probes, "/metrics")
            self.assertIn('kaskade_variant_requests_total{app="fake",variant="double"} 1\n', metrics)
            self.assertIn('kaskade_queued_requests{app="fake",variant="double"} 0\n', metrics)
            await asyncio.to_thread(server.kill)
            while replica.connected:
                await asyncio.sleep(0.01)
            self.assertRegex((await self.get(probes, "/ready"))[1], "broker")
            self.assertEqual((await self.get(probes, "/live"))[0], 200)
            replica.beaten -= 60.0
            self.assertRegex(probes.answer("/live")[1], "does not respond")
            await asyncio.to_thread(server.start)
            while not replica.connected:
                await asyncio.sleep(0.01)
            await replica.leave()
            self.assertEqual(await self.get(probes, "/ready"), (503, "draining\n"))
            replica.failed.set()
            self.assertEqual((await self.get(probes, "/live"))[0], 503)

    async def test_serve_has_probes_while_it_serves(self) -> None:
        script = "import sys, kaskade\n@kaskade.stage('fake', 'double')\ndef double(x): return x\ndouble.serve(*sys.argv[1:3], http=sys.argv[3])\n"
        address = f"127.0.0.1:{free_port()}"
        with NatsServer(NATS) as server, Process([sys.executable, "-c", script, server.url, "r1", address]) as process:
            await asyncio.to_thread(process.wait_for, "ready")
            with urllib.request.urlopen(f"http://{address}/ready", timeout=BUDGET) as answer:
                self.assertEqual(answer.status, 200)
            self.assertEqual(await asyncio.to_thread(process.terminate), 0, process.output())

    def test_an_address_of_another_form_is_refused(self) -> None:
        for address in ("8080", "http://0.0.0.0:8080/", ":8080", "127.0.0.1:http"):
            with self.assertRaisesRegex(ValueError, "HOST:PORT", msg=address):
                Probes(address)


if __name__ == "__main__":
    unittest.main()
