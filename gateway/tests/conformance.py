"""Conformance tools against a served chat and a served classifier: llm-comply, trustedrouter-provider-check, schemathesis.

Failures that are choices are listed here with their reasons, and in docs/reference/http.md; any other fails.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from served import Chat, Served

# Tests of llm-comply that ask for what is not served.
CHOICES = {
    "tool-calling": "a model of 100,000 parameters ends no text that it may write freely",
    "chat-tool-calling": "a model of 100,000 parameters ends no text that it may write freely",
    "image-input": "messages are texts",
    "chat-image-input": "messages are texts",
    "compact-response": "responses are not stored",
    "compact-missing-model": "responses are not stored",
    "reasoning-summary": "no model gives its reasoning apart",
    "error-handling": "a request without `model` asks the gateway's only app",
    "chat-error-handling": "a request without `model` asks the gateway's only app",
}

# Checks of trustedrouter-provider-check that ask for what a tiny model cannot say.
OF_THE_MODEL = {"chat.pong": "a model of 100,000 parameters does not follow instructions"}

# Checks of schemathesis that are left out.
EXCLUDED = {
    # A schema cannot say that a model takes inputs of these names, or texts of a length.
    "positive_data_acceptance": "whether data fits is the model's decision",
    # Fields that are not read may hold anything: load tools send fields of other servers.
    "negative_data_rejection": "unknown fields and values of fields that are not read are ignored",
}


class Conformance(unittest.TestCase):
    """A chat, by llm-comply and trustedrouter-provider-check."""

    @classmethod
    def setUpClass(cls):
        if not os.environ.get("KASKADE_COMPLY"):
            raise unittest.SkipTest("llm-comply and trustedrouter-provider-check are not installed")
        cls.served = Chat()
        cls.base = f"http://{cls.served.address}/v1"

    @classmethod
    def tearDownClass(cls):
        cls.served.stop()

    def comply(self, form):
        command = [os.environ["KASKADE_COMPLY"], "--base-url", self.base, "--api-key", "none", "--model", "chat", "--format", form, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        report = json.loads(done.stdout)
        results = report["results"] if isinstance(report, dict) else report
        self.assertGreater(len(results), 5)
        failed = {row["id"]: row.get("errors") for row in results if row["status"] not in ("passed", "skipped", "pass", "skip")}
        unexpected = {name: why for name, why in failed.items() if name not in CHOICES}
        self.assertEqual(unexpected, {})

    def test_chat(self):
        self.comply("openai-chat")

    def test_responses(self):
        self.comply("open-responses")

    def test_provider(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.json"
            command = [os.environ["KASKADE_PROVIDER_CHECK"], "--base-url", self.base, "--api-key", "none", "--model", "chat", "--tier", "4", "--json", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            report = json.loads(out.read_text())
        failed = [check for check in checks_of(report) if check.get("status") in ("fail", "failed") and check.get("id") not in OF_THE_MODEL]
        self.assertEqual(failed, [], done.stdout[-2000:])


def checks_of(report):
    """The checks of a report, wherever it has them."""
    if isinstance(report, dict):
        if "status" in report and ("name" in report or "id" in report or "check" in report):
            yield report
        report = list(report.values())
    if isinstance(report, list):
        for part in report:
            yield from checks_of(part)


class Fuzzed(unittest.TestCase):
    """The OpenAPI document, by schemathesis: no answer is a failure of the server, and each is as the document says."""

    @classmethod
    def setUpClass(cls):
        if not os.environ.get("KASKADE_SCHEMATHESIS"):
            raise unittest.SkipTest("schemathesis is not installed")
        cls.served = Served("examples/digits/app.toml")

    @classmethod
    def tearDownClass(cls):
        cls.served.stop()

    def test_answers_are_as_the_document_says(self):
        command = [
            os.environ["KASKADE_SCHEMATHESIS"], "run", f"http://{self.served.address}/openapi.json",
            "--phases", "examples,coverage,fuzzing", "--max-examples", "25", 
            "--exclude-checks", ",".join(EXCLUDED), "--suppress-health-check", "all", "--header", "x-kaskade-budget-ms: 5000",
            "--no-color",
        ]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
