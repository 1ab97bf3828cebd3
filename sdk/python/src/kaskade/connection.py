"""Connections to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client as Nats

from .errors import BrokerRefused, BrokerTooOld, BrokerUnavailable

log = logging.getLogger("kaskade")

DEFAULT_URL = "nats://127.0.0.1:4222"
SCHEMES = ("nats", "tls", "ws", "wss")
"""Schemes of the addresses of NATS servers."""
OLDEST_SERVER = (2, 10)
CONNECT_TIMEOUT = 20.0
"""Default of the longest time until a connection is made, all servers and attempts together, seconds."""
ATTEMPT_TIMEOUT = 5.0
"""Longest time of one attempt to connect to one server, seconds."""
CLOSE_TIMEOUT = 2.0
"""Longest time that closing a connection which is not yet made takes, seconds."""
PENDING_BYTES = 64 << 20
"""Bytes buffered while the connection is down."""

Callback = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Broker:
    """The address of a broker, and the credentials."""

    url: str = ""
    """URL of the server, or several separated by commas; default: `NATS_URL`, else the loopback."""
    nkey: str | Path | None = None
    """File with the nkey seed, as `kaskade auth init` writes it; default: `NATS_NKEY`. Needs the package `nkeys`."""
    credentials: str | Path | None = None
    """A `.creds` file with a JWT and a seed; default: `NATS_CREDS`. Needs the package `nkeys`."""
    ca: str | Path | None = None
    """Certificates to trust for `tls://`; default: `NATS_CA`, else the system's."""
    inbox_prefix: str = ""
    """Prefix of reply subjects; default: `_INBOX`, with the public key of an nkey."""
    certificate: str | Path | None = None
    """Certificate of this client, for servers that verify it; default: `NATS_CERT`."""
    key: str | Path | None = None
    """Key of that certificate; default: `NATS_KEY`."""

    def __repr__(self) -> str:
        shown = vars(self) | {"url": ",".join(without_credentials(url) for url in self.url.split(","))}
        return f"Broker({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def servers(self) -> list[str]:
        """Returns the URLs."""
        return [url.strip() for url in (self.url or os.environ.get("NATS_URL") or DEFAULT_URL).split(",")]

    def addresses(self) -> str:
        """Returns the URLs without credentials, for messages."""
        return ", ".join(without_credentials(url) for url in self.servers())

    def options(self) -> dict[str, Any]:
        """Returns the options of `nats.connect` for these credentials."""
        options: dict[str, Any] = {}
        # What is given counts before what the environment has.
        nkey = self.nkey or (None if self.credentials else os.environ.get("NATS_NKEY"))
        credentials = self.credentials or (None if nkey else os.environ.get("NATS_CREDS"))
        prefix = self.inbox_prefix
        if nkey:
            options["nkeys_seed"] = str(nkey)
            prefix = prefix or f"_INBOX.{_public_key(Path(nkey))}"
        if credentials:
            Path(credentials).read_bytes()
            options["user_credentials"] = str(credentials)
        if tls := self._tls():
            options["tls"] = tls
        if prefix:
            options["inbox_prefix"] = prefix.encode()
        return options


    def _tls(self) -> ssl.SSLContext | None:
        ca = self.ca or os.environ.get("NATS_CA") or None
        certificate = self.certificate or os.environ.get("NATS_CERT")
        key = self.key or os.environ.get("NATS_KEY") or None
        if not ca and not certificate:
            return None
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise BrokerRefused(f"the certificates to trust cannot be read from {ca}: {error}") from error
        if certificate:
            try:
                context.load_cert_chain(certificate, key)
            except OSError as error:
                raise BrokerRefused(f"the certificate cannot be read from {certificate} and {key or 'the same file'}: {error}") from error
        return context


def without_credentials(url: str) -> str:
    """Returns a URL without user, password or token."""
    return re.sub(r"^([^/:@]*://)?.*@", r"\1", url, flags=re.DOTALL)


def check_addresses(broker: Broker) -> None:
    """Raises `BrokerRefused` if an address of a broker cannot be one of a NATS server."""
    wrong = [(url, reason) for url in broker.servers() if (reason := _wrong_with(url))]
    if wrong:
        url, reason = wrong[0]
        raise BrokerRefused(f"`{without_credentials(url)}` is not a valid NATS address: {reason}; use the form nats://host:4222")
    if len({url.lower().startswith(("ws://", "wss://")) for url in broker.servers()}) > 1:
        raise BrokerRefused(f"{broker.addresses()} mix WebSocket and TCP; use the form nats://host:4222 for all, or ws://host:port for all")


def _wrong_with(url: str) -> str:
    """Returns what is wrong with an address, without any part of it, which may be a password; empty if nothing is."""
    has_scheme = re.match(r"[^/:@]*://", url)
    try:
        parts = urlsplit(url if has_scheme else f"nats://{url}")
        _ = parts.port
    except ValueError:
        return "the host or the port is invalid"
    if parts.scheme not in SCHEMES:
        return f"the scheme must be one of {', '.join(SCHEMES)}"
    if not parts.hostname:
        return "it has no host"
    if parts.scheme in ("nats", "tls") and parts.path not in ("", "/"):
        return "a path follows the host"
    return ""


def _public_key(seed: Path) -> str:
    try:
        import nkeys
    except ImportError as error:
        raise BrokerRefused("an nkey needs the package `nkeys`: pip install nkeys") from error
    try:
        public: bytes = nkeys.from_seed(seed.read_bytes().strip()).public_key
    except nkeys.NkeysError as error:
        raise BrokerRefused(f"{seed} holds no seed of an nkey: {error}") from error
    return public.decode()


class Link:
    """A connection that reconnects for as long as it is open, with events for its loss and its return."""

    def __init__(self, nc: Any) -> None:
        self.nc = nc
        self.up = asyncio.Event()
        self.up.set()
        self.losses = 0
        self.on_lost: list[Callable[[], None]] = []
        self.on_returned: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[str], None]] = []
        """Called with the server's text about a subject that the user may not publish or subscribe to."""

    @property
    def payload_limit(self) -> int:
        """The largest body that fits one message, bytes."""
        return int(self.nc.max_payload) - 1024

    async def barrier(self, timeout: float = 5.0) -> None:
        """Returns when the server has processed everything sent before; raises `nats.errors.Error`.

        nats-py's `flush` does not promise this: its PING overtakes commands that are still buffered.
        """
        await barrier(self.nc, timeout)

    async def unsubscribe(self, subscription: Any) -> None:
        """Ends a subscription after all messages that the server has sent to it have been handled.

        nats-py's `drain` forgets the subscription when its PING is answered, which overtakes the UNSUB.
        """
        try:
            await self.nc._send_unsubscribe(subscription._id)
            await self.barrier()
            await subscription._pending_queue.join()
        finally:
            # nats-py subscribes again after a reconnect to what it has not forgotten.
            subscription._stop_processing()
            self.nc._remove_sub(subscription._id)

    async def close(self) -> None:
        """Sends what is buffered and closes the connection."""
        try:
            if self.up.is_set():
                await self.barrier(2.0)
        except (nats.errors.Error, OSError, asyncio.TimeoutError):
            pass
        if not self.up.is_set():
            # nats-py would write it to the lost connection, fail, and leave its tasks behind.
            self.nc._pending, self.nc._pending_data_size = [], 0
        await self.nc.close()


async def barrier(nc: Any, timeout: float = 5.0) -> None:
    """Returns when the server has processed everything sent on a connection before."""
    try:
        # No process subscribes to these subjects; the server says so after what was sent before.
        await nc.request(f"_KASKADE.UNSERVED.{secrets.token_hex(8)}", b"", timeout=timeout)
    except nats.errors.NoRespondersError:
        pass


async def connect(broker: Broker, name: str, timeout: float = CONNECT_TIMEOUT) -> Link:
    """Connects to a broker within `timeout` seconds.

    Raises `BrokerUnavailable` if no server answers; `BrokerRefused` if the credentials or a certificate are wrong, or, before
    any connection, if an address has another scheme than `SCHEMES` or no valid host and port; `BrokerTooOld` before version 2.10.
    """
    if not timeout > 0:
        raise ValueError(f"the timeout of a connection is {timeout!r}; it must be more than 0 s")
    check_addresses(broker)
    try:
        options = broker.options()
    except (OSError, ValueError) as error:
        raise BrokerRefused(f"a file of the credentials cannot be read: {error}") from error
    nc: Any = Nats()
    link = Link(nc)

    async def lost() -> None:
        link.up.clear()
        link.losses += 1
        for callback in link.on_lost:
            callback()

    async def returned() -> None:
        link.up.set()
        for callback in link.on_returned:
            callback()

    untrusted: asyncio.Future[ssl.SSLError] = asyncio.get_running_loop().create_future()
    refusal: Exception | None = None

    async def failed(error: Exception) -> None:
        nonlocal refusal
        log.debug("the connection to the broker: %s", error or type(error).__name__)
        if isinstance(error, ssl.SSLError) and not untrusted.done():
            untrusted.set_result(error)
        if _is_refusal(error) or isinstance(error, ImportError):
            refusal = error
        if "permissions violation" in str(error):
            log.warning("the broker refuses what this user may not do: %s", error)
            for callback in link.on_refused:
                callback(str(error))

    connecting = asyncio.ensure_future(
        nc.connect(
            servers=broker.servers(),
            name=name,
            disconnected_cb=lost,
            reconnected_cb=returned,
            error_cb=failed,
            # The first connection is tried a few times, a lost one until it is closed.
            max_reconnect_attempts=3,
            reconnect_time_wait=0.1,
            connect_timeout=min(ATTEMPT_TIMEOUT, timeout),
            pending_size=PENDING_BYTES,
            **options,
        )
    )
    try:
        # After a certificate that is not trusted, nats-py waits for ever for the connection to close.
        await asyncio.wait([connecting, untrusted], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if untrusted.done() and not connecting.done():
            raise untrusted.result()
        if not connecting.done():
            await _give_up(nc, connecting)
            raise asyncio.TimeoutError(f"no answer within {timeout:g} s")
        await connecting
    except asyncio.CancelledError:
        await _give_up(nc, connecting)
        raise
    except (nats.errors.Error, OSError, asyncio.TimeoutError, ValueError) as error:
        raise _why(broker, refusal or error) from error
    finally:
        connecting.cancel()
        untrusted.cancel()
    nc.options["max_reconnect_attempts"] = -1
    nc.options["connect_timeout"] = ATTEMPT_TIMEOUT
    version = nc.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        await nc.close()
        raise BrokerTooOld(f"the server has version {version}; at least 2.10 is needed")
    return link


async def _give_up(nc: Any, connecting: asyncio.Future[None]) -> None:
    """Ends a connection that is not yet made."""
    for _ in range(20):
        # Python 3.11's `wait_for` forgets a cancellation in the moment in which it succeeds.
        connecting.cancel()
        if (await asyncio.wait([connecting], timeout=0.1))[0]:
            break
    with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
        await asyncio.wait_for(nc.close(), CLOSE_TIMEOUT)


def _why(broker: Broker, error: Exception) -> BrokerUnavailable:
    """Returns the error of a connection that could not be made."""
    addresses = broker.addresses()
    if isinstance(error, ssl.SSLError):
        advice = "name the certificate of the authority that signed the server's (`ca`), and a host that it is made for"
        return BrokerRefused(f"TLS with the server at {addresses} fails: {error}; {advice}")
    if isinstance(error, ValueError):
        # The text of the error may quote a password.
        return BrokerRefused(f"{addresses} is no valid NATS address; use the form nats://host:4222")
    if isinstance(error, ImportError):
        return BrokerRefused(f"{addresses} needs another package: {error}")
    if _is_refusal(error):
        return BrokerRefused(f"the server at {addresses} refuses the connection: {error}; check the credentials")
    return BrokerUnavailable(f"no server answers at {addresses}: {str(error) or type(error).__name__}")


def _is_refusal(error: Exception) -> bool:
    """Returns whether the server refuses the credentials, by its text."""
    return any(word in str(error).lower() for word in ("authorization", "authentication"))
