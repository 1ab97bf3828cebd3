"""Runs the commands of examples/python_stage/README.md."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import kaskade
from kaskade.testing import Process, free_port

from .deployment import KASKADE, REPOSITORY, image

EXAMPLE = REPOSITORY / "examples/python_stage"
DIGITS = REPOSITORY / "examples/digits"


def walk(test: unittest.TestCase, script: str, variant: str, train: bool = False) -> None:
    """Profiles, plans, places and serves a script of the example, and asks the cascade for digits."""
    assert KASKADE
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "app.toml").write_text((EXAMPLE / "app.toml").read_text().replace("../digits", str(DIGITS)))

        def run(*command: str) -> None:
            done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300)
            test.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")

        stage = [sys.executable, str(EXAMPLE / script)]
        if train:
            run(*stage, "train")
        run(*stage, "profile", str(DIGITS / "profile.json"), "profile.json")
        run(KASKADE, "validate", "profile.json")
        run(KASKADE, "plan", "cascade", "--profile", "profile.json", "--out", "plan.json")
        run(KASKADE, "plan", "cascade", "--profile", "profile.json", "--max-loss", "5%", "--out", "proven.json")
        certificate = json.loads((here / "proven.json").read_text())["certificate"]
        test.assertEqual(certificate["guarantee"], {"kind": "max_loss", "loss": 0.05, "against": variant})
        run(*stage, "place", "proven.json")
        run(KASKADE, "validate", "proven.json")
        run(*stage, "place", "plan.json")
        run(KASKADE, "validate", "plan.json")
        listen = f"127.0.0.1:{free_port()}"
        serve = [KASKADE, "serve", "--app", str(here / "app.toml"), "--worker", "local", "--listen", listen]
        with Process(serve) as served:
            served.wait_for("serving `digits`")
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            with Process([*stage, "serve", f"nats://{listen}"], environment, here) as replica:
                replica.wait_for("ready")
                labels = np.frombuffer((DIGITS / "data/labels.idx1-ubyte").read_bytes(), np.uint8, offset=8)
                with kaskade.Client("digits", f"nats://{listen}", budget=30.0) as client:
                    # The test images: no model has seen them.
                    replies = []
                    with Process([*stage, "serve", f"nats://{listen}", f"{variant}-1"], environment, here) as another:
                        another.wait_for(f"ready: {variant}-1")
                        replies += [client.infer(image(index)) for index in range(1297, 1397)]
                        # Requests that a killed stage had are sent to the other.
                        another.kill()
                        replies += [client.infer(image(index)) for index in range(1397, 1497)]
                right = [reply["logits"].argmax() == label for reply, label in zip(replies, labels[1297:1497], strict=True)]
                # The planner may leave the small model out; the Python stage has to answer.
                variants = {reply.variant for reply in replies}
                test.assertTrue({variant} <= variants <= {"digits-tiny", variant}, variants)
                test.assertFalse(any(reply.degraded for reply in replies))
                test.assertGreater(np.mean(right), 0.95)
                test.assertEqual(replica.terminate(), 0, replica.output())
