"""What the tests against real processes share."""

import json
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import kaskade
from kaskade.testing import NatsServer, Process, find, free_port

REPOSITORY = Path(__file__).resolve().parents[3]
DIGITS = REPOSITORY / "examples/digits"
NATS = find("NATS_SERVER", "nats-server")
KASKADE = find("KASKADE_BIN", "kaskade")

needs_nats = unittest.skipUnless(NATS, "no nats-server: name one with NATS_SERVER")
needs_kaskade = unittest.skipUnless(NATS and KASKADE, "no nats-server or kaskade: name them with NATS_SERVER and KASKADE_BIN")


def image(index: int = 0) -> dict[str, np.ndarray]:
    """One request for the digit models."""
    pixels = np.frombuffer((DIGITS / "data/images.idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(-1, 1, 8, 8)
    return {"image": pixels[index % len(pixels)].astype(np.float32) / 16}


def cascade(replicas: list[str]) -> dict[str, object]:
    """A plan in which `digits-tiny` defers every request to the Python stage `large`."""
    batching = {"min_queue": 1, "max_batch": 32, "max_wait_us": 1000}
    calibration = {"estimator": {"kind": "max_squared"}, "temperature": 1.0}
    bands = [{"from": 0.0, "to": {"stage": {"stage": "large"}}}, {"from": 1.0, "to": "reply"}]
    placed = [{"id": "tiny-0", "variant": "digits-tiny", "worker": "local", "device": "cpu"}]
    placed += [{"id": replica, "variant": "large", "worker": "python", "device": "cpu"} for replica in replicas]
    return {
        "version": 1, "app": "digits", "made_by": "test",
        "variants": [{"name": "digits-tiny", "calibration": calibration}, {"name": "large", "calibration": calibration}],
        "placement": placed,
        "gears": [{"name": "one", "load": {"from_qps": 0.0}, "wiring": {"entry": {"stage": "tiny"}, "stages": [
            {"name": "tiny", "variant": "digits-tiny", "exit": {"kind": "bands", "bands": bands}, "batching": batching},
            {"name": "large", "variant": "large", "exit": {"kind": "reply"}, "batching": batching},
        ]}}],
    }


@contextmanager
def app(replicas: list[str], extra: str = "") -> Iterator[tuple[NatsServer, Process]]:
    """The app `digits` with a cascade of `digits-tiny` and the Python stage `large`, on a nats-server with JetStream."""
    assert NATS and KASKADE
    weights = DIGITS / "weights/digits-tiny"
    text = f"""
name = "digits"
plan = {{ file = "plan.json" }}
workers = [{{ name = "local" }}, {{ name = "python" }}]
variants = [{{ name = "digits-tiny", dir = "{weights}" }}, {{ name = "large", dir = "{weights}" }}]
{extra}
"""
    with tempfile.TemporaryDirectory() as folder, NatsServer(NATS, jetstream=True) as nats:
        Path(folder, "app.toml").write_text(text)
        Path(folder, "plan.json").write_text(json.dumps(cascade(replicas)))
        command = [KASKADE, "serve", "--app", f"{folder}/app.toml", "--worker", "local", "--nats", nats.url]
        with Process(command) as served:
            served.wait_for("serving `digits`")
            yield nats, served


def stage_process(url: str, replica: str, seconds: float = 0.0) -> Process:
    """A process that serves the stage `large` and prints `batch` when it begins one, which takes `seconds`."""
    script = Path(__file__).with_name("stage_process.py")
    process = Process([sys.executable, str(script), url, replica, str(seconds)], {**os.environ, "PYTHONUNBUFFERED": "1"})
    process.wait_for("ready")
    return process


def double(app: str = "fake", **settings: object) -> kaskade.Stage:
    """A stage that doubles its input `x`."""

    @kaskade.stage(app, "double", output="y", **settings)
    def double(x: np.ndarray) -> np.ndarray:
        return 2 * x

    return double


__all__ = ["KASKADE", "NATS", "NatsServer", "Process", "REPOSITORY", "app", "double", "free_port", "image", "needs_kaskade", "needs_nats", "stage_process"]
