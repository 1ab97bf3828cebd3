"""Loads a gateway with NVIDIA's aiperf (KASKADE_AIPERF) and checks that every request was answered."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from served import CHAT, Chat

REQUESTS = 60
ENDPOINTS = [("chat", True), ("chat", False), ("completions", True), ("completions", False), ("responses", True), ("responses", False)]


def load(server, kind, streaming):
    """Runs the tool; returns what it reports of an endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(os.environ["KASKADE_AIPERF"], "profile", "-m", "chat", "--url", f"http://{server.address}"),
            *("--endpoint-type", kind, "--tokenizer", str(server.folder / "pico"), "--concurrency", "8"),
            *("--request-count", str(REQUESTS), "--isl", "40", "--osl", "16", "--extra-inputs", "ignore_eos:true"),
            *("--ui", "none", "--artifact-dir", folder),
            *(["--streaming"] if streaming else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        report = Path(folder) / "profile_export_aiperf.json"
        if not report.exists():
            raise SystemExit(f"aiperf reports nothing for {kind}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return json.loads(report.read_text())


def main():
    # An answer that ends at once, at its first space, would be reported as an error.
    server = Chat(CHAT.replace('stop = [" "]\n', ""))
    try:
        for kind, streaming in ENDPOINTS:
            found = load(server, kind, streaming)
            answered, errors = found["request_count"]["avg"], found["error_summary"]
            assert answered == REQUESTS and not errors, (kind, streaming, answered, errors)
            if streaming:
                assert found["time_to_first_token"]["avg"] > 0, kind
    finally:
        server.stop()
    print(f"aiperf: {len(ENDPOINTS)} endpoints, {REQUESTS} requests each, all answered")


main()
