"""Connections that cannot be made end in time, with an error that says why and keeps passwords to itself."""

import asyncio
import gc
import importlib.util
import os
import socket
import subprocess
import tempfile
import threading
import unittest
import unittest.mock
import warnings
from pathlib import Path

import kaskade
from kaskade import errors
from kaskade.connection import without_credentials
from kaskade.testing import NatsServer, wait_until

from .deployment import NATS, free_port, needs_nats

BUDGET = 20.0


class Passwords(unittest.IsolatedAsyncioTestCase):
    async def test_no_error_and_no_repr_has_the_password(self) -> None:
        one = f"nats://alice:topsecret@127.0.0.1:{free_port()}"
        several = f"{one}, alice:topsecret@127.0.0.1:{free_port()}"
        for url in (one, several, "nats://alice:topsecret@127.0.0.1:port", "nats://alice:top/topsecret@127.0.0.1:4222"):
            broker = kaskade.Broker(url)
            with self.assertRaises(errors.BrokerUnavailable) as caught:
                await kaskade.AsyncClient.connect("fake", broker)
            self.assertIn("127.0.0.1:", str(caught.exception))
            for shown in (str(caught.exception), repr(broker), str(broker)):
                self.assertNotIn("topsecret", shown)
                self.assertNotIn("alice", shown)

    def test_a_url_without_credentials_stays(self) -> None:
        for url, shown in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"), ("host", "host"), ("tls://token@host:1", "tls://host:1"),
            ("a:b@host", "host"), ("nats://a:b@c@host", "nats://host"), ("a:b://c@host", "host"),
        ]:
            self.assertEqual(without_credentials(url), shown)

    def test_the_advice_for_nkeys_names_no_other_project(self) -> None:
        """The name `kaskade` on PyPI belongs to another project."""
        package = kaskade.__path__[0]
        for source in Path(package).glob("**/*.py"):
            self.assertNotRegex(source.read_text(), "pip install .?kaskade", str(source))


class Addresses(unittest.IsolatedAsyncioTestCase):
    async def test_a_wrong_address_is_refused_before_the_connection_and_not_retryable(self) -> None:
        """A program that retries `BrokerUnavailable` without a look at `retryable` repeated a typing error for ever."""
        for url, reason in [
            ("http://127.0.0.1:8080", "scheme"), ("nats://127.0.0.1:4222,https://b:1", "https://b:1.* scheme"), ("nats//x", "path"),
            ("nats:/127.0.0.1:4222", "path"), ("nats://:4222", "host"), ("nats://", "host"), ("nats://a:4222,", "host"),
            ("nats://host:port", "port"), ("nats://host:99999", "port"), ("nats://[::1:4222", ""), ("nats://a:1,ws://b:2", "mix"),
        ]:
            with self.assertRaisesRegex(errors.BrokerRefused, f"{reason}.*nats://host:4222", msg=url) as caught:
                await kaskade.AsyncClient.connect("fake", url)
            self.assertFalse(caught.exception.retryable)
        with self.assertRaises(errors.BrokerRefused):
            await asyncio.to_thread(kaskade.Client, "fake", "http://127.0.0.1:8080")

    async def test_valid_addresses_are_tried(self) -> None:
        port = free_port()
        for url in (f"127.0.0.1:{port}", f"NATS://127.0.0.1:{port}/", f"nats://[::1]:{port}", f"tls://a:b@127.0.0.1:{port},localhost:{port}"):
            with self.assertRaisesRegex(errors.BrokerUnavailable, "no server answers", msg=url) as caught:
                await kaskade.AsyncClient.connect("fake", url, connect_timeout=2.0)
            self.assertTrue(caught.exception.retryable)


    @unittest.skipIf(importlib.util.find_spec("aiohttp"), "aiohttp is installed")
    async def test_websockets_without_their_package_name_it(self) -> None:
        with self.assertRaisesRegex(errors.BrokerRefused, "pip install aiohttp"):
            await kaskade.AsyncClient.connect("fake", f"ws://127.0.0.1:{free_port()}", connect_timeout=5.0)


class Timeouts(unittest.IsolatedAsyncioTestCase):
    async def test_an_address_that_never_answers_takes_the_timeout(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
            with self.assertRaisesRegex(errors.BrokerUnavailable, "no answer within 0.5 s|no servers available"):
                await asyncio.wait_for(kaskade.AsyncClient.connect("fake", url, connect_timeout=0.5), BUDGET)
            with self.assertRaises(errors.BrokerUnavailable):
                await asyncio.wait_for(asyncio.to_thread(kaskade.Client, "fake", url, connect_timeout=0.5), BUDGET)

    async def test_a_timeout_that_is_none_is_refused(self) -> None:
        for timeout in (0.0, -1.0, float("nan")):
            with self.assertRaises(ValueError):
                await kaskade.AsyncClient.connect("fake", connect_timeout=timeout)


@needs_nats
class Refusals(unittest.IsolatedAsyncioTestCase):
    async def test_wrong_credentials_are_named_and_not_retryable(self) -> None:
        with NatsServer(NATS, extra="authorization { user: alice, password: topsecret }") as server:
            for url in (server.url, server.url.replace("//", "//alice:wrong@")):
                with self.assertRaisesRegex(errors.BrokerUnavailable, "refuses .*credentials") as caught:
                    await kaskade.AsyncClient.connect("fake", url)
                self.assertIsInstance(caught.exception, errors.BrokerRefused)
                self.assertFalse(caught.exception.retryable)
            client = await kaskade.AsyncClient.connect("fake", server.url.replace("//", "//alice:topsecret@"))
            await client.close()

    async def test_a_server_that_is_away_is_retryable(self) -> None:
        with self.assertRaisesRegex(errors.BrokerUnavailable, "no server answers") as caught:
            await kaskade.AsyncClient.connect("fake", f"nats://127.0.0.1:{free_port()}")
        self.assertTrue(caught.exception.retryable)
        self.assertIs(errors.BY_CODE["KSK0012"], errors.BrokerUnavailable)


@needs_nats
class Certificates(unittest.IsolatedAsyncioTestCase):
    async def test_a_server_that_verifies_certificates_accepts_that_of_the_client(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        files = [str(folder / name) for name in ("certificate.pem", "key.pem")]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command += ["-out", files[0], "-keyout", files[1], "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
        tls = f'tls {{ cert_file: "{files[0]}", key_file: "{files[1]}", ca_file: "{files[0]}", verify: true }}'
        with NatsServer(NATS, extra=tls) as server:
            url = server.url.replace("nats://", "tls://")
            with self.assertRaises(errors.BrokerUnavailable):
                await kaskade.AsyncClient.connect("fake", kaskade.Broker(url, ca=files[0]))
            for broker, environment in [
                (kaskade.Broker(url, ca=files[0], certificate=files[0], key=files[1]), {}),
                (kaskade.Broker(url), {"NATS_CA": files[0], "NATS_CERT": files[0], "NATS_KEY": files[1]}),
            ]:
                with unittest.mock.patch.dict(os.environ, environment):
                    await (await kaskade.AsyncClient.connect("fake", broker)).close()
        with self.assertRaisesRegex(errors.BrokerRefused, "nonexistent.pem"):
            kaskade.Broker(certificate="/nonexistent.pem").options()

    async def test_given_credentials_count_before_those_of_the_environment(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            with unittest.mock.patch.dict(os.environ, {"NATS_CREDS": file.name}):
                self.assertEqual(kaskade.Broker().options(), {"user_credentials": file.name})
            with unittest.mock.patch.dict(os.environ, {"NATS_NKEY": "/nonexistent"}):
                self.assertEqual(kaskade.Broker(credentials=file.name).options(), {"user_credentials": file.name})
        with self.assertRaisesRegex(errors.BrokerRefused, "/nonexistent"):
            await kaskade.AsyncClient.connect("fake", kaskade.Broker(credentials="/nonexistent"))


@needs_nats
class Dropped(unittest.TestCase):
    def test_a_client_that_is_dropped_ends_its_thread_and_its_connection(self) -> None:
        server = NatsServer(NATS)
        self.addCleanup(server.__exit__, None, None, None)
        before = set(threading.enumerate())
        client = kaskade.Client("fake", server.url)
        connection = client._client._link.nc
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del client
            gc.collect()
        self.assertEqual([warning.category for warning in warned], [ResourceWarning])
        wait_until("the thread has ended", lambda: set(threading.enumerate()) <= before)
        self.assertTrue(connection.is_closed)


if __name__ == "__main__":
    unittest.main()
