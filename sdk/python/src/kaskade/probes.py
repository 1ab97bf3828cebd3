"""Probes and metrics of a stage over HTTP, on the paths of every process of Kaskade: `/live`, `/ready`, `/metrics`."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .replica import Replica

RESPONSE_TIMEOUT = 10.0
"""Time without a heartbeat after which the event loop counts as hung, seconds."""


class Probes:
    """An HTTP server on a thread of its own. Before `replica` is set the process is live, and not ready."""

    def __init__(self, address: str) -> None:
        """Listens at `HOST:PORT`; raises `ValueError` for another form, `OSError` if the address cannot be used."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"the address of the probes is {address!r}; it must be HOST:PORT, such as 0.0.0.0:8080")
        self.replica: Replica | None = None
        probes = self

        class Handler(BaseHTTPRequestHandler):
            timeout = RESPONSE_TIMEOUT

            def do_GET(self) -> None:
                status, text = probes.answer(self.path.partition("?")[0])
                body = text.encode()
                self.send_response(status)
                self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes are not logged."""

        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="kaskade-probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, which the system chooses for port 0."""
        return self._server.server_port

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, str]:
        """Returns the status and the text of a path."""
        replica = self.replica
        if path == "/metrics":
            return 200, "" if replica is None else _metrics(replica)
        if path not in ("/live", "/ready"):
            return 404, "the paths are /live, /ready and /metrics\n"
        why = _why_not_live(replica) or (_why_not_ready(replica) if path == "/ready" else None)
        return (503, f"{why}\n") if why else (200, "ok\n")


def _why_not_live(replica: Replica | None) -> str | None:
    if replica is None:
        return None
    if replica.failed.is_set():
        return f"replica `{replica.id}` failed"
    if time.monotonic() - replica.beaten > RESPONSE_TIMEOUT:
        return f"the event loop of replica `{replica.id}` does not respond"
    return None


def _why_not_ready(replica: Replica | None) -> str | None:
    if replica is None:
        return "connecting to the broker"
    if replica.leaving:
        return "draining"
    return None if replica.connected else "the connection to the broker is lost"


def _metrics(replica: Replica) -> str:
    labels = f'{{app="{replica.stage.app}",variant="{replica.stage.variant}"}}'
    values = {
        ("kaskade_variant_requests_total", "counter"): replica.requests,
        ("kaskade_variant_batches_total", "counter"): replica.batches,
        ("kaskade_variant_busy_seconds_total", "counter"): replica.busy,
        ("kaskade_queued_requests", "gauge"): replica.queued,
    }
    return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for (name, kind), value in values.items())
