"""A nats-server and Kaskade processes for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

TIMEOUT = 60.0
"""Time within which a process must be ready; the machine may be busy, seconds."""


def find(variable: str, program: str) -> str | None:
    """Returns the program that an environment variable names, or that is on the path; `None` if there is none."""
    named = os.environ.get(variable)
    if named:
        return named if Path(named).is_file() else None
    return shutil.which(program)


def free_port() -> int:
    """Returns a port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(what: str, condition: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Waits until a condition holds; raises `TimeoutError`."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {timeout:.0f} s until {what}")
        time.sleep(0.02)


class Process:
    """A process with its output in a file, killed at the end of the `with` block."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, folder: str | Path | None = None
    ) -> None:
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="kaskade-test-")  # noqa: SIM115, closed in `kill`
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=env and dict(env),
            cwd=folder,
        )

    def output(self) -> str:
        """Returns what the process has printed."""
        return Path(self.log.name).read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Waits until the process has printed `text`; raises `RuntimeError` if it ends before."""

        def printed() -> bool:
            if text in self.output():
                return True
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.process.args!r} ended with {self.process.returncode}:\n{self.output()}")
            return False

        wait_until(f"{text!r} is printed", printed)

    def kill(self) -> None:
        """Kills the process (SIGKILL), as a crash does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Asks the process to end (SIGTERM) and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.log.close()


class NatsServer:
    """A nats-server on a free port of the loopback; `restart` keeps port and store."""

    def __init__(
        self, program: str, *, jetstream: bool = False, max_payload: int | None = None, extra: str = ""
    ) -> None:
        """`extra` is further text of the server's configuration."""
        self.program = program
        self.folder = tempfile.TemporaryDirectory(prefix="kaskade-nats-")
        self.port = free_port()
        lines = [f'listen: "127.0.0.1:{self.port}"']
        if max_payload is not None:
            lines.append(f"max_payload: {max_payload}")
        if jetstream:
            lines.append(f'jetstream {{ store_dir: "{self.folder.name}/store" }}')
        lines.append(extra)
        self.config = Path(self.folder.name) / "nats.conf"
        self.config.write_text("\n".join(lines) + "\n")
        self.process: Process | None = None
        self.start()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        self.process = Process([self.program, "--config", str(self.config)])
        self.process.wait_for("Server is ready")

    def kill(self) -> None:
        """Kills the server (SIGKILL)."""
        if self.process is not None:
            self.process.__exit__(None, None, None)
            self.process = None

    def restart(self) -> None:
        """Kills the server and starts it again."""
        self.kill()
        self.start()

    def __enter__(self) -> NatsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.folder.cleanup()
