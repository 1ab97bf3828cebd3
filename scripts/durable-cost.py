#!/usr/bin/env python3
"""Measures the cost of durable requests on this machine: `python3 scripts/durable-cost.py [nats-server]`.

For each `sync_interval` it starts a nats-server, and a planner, an ingress and two workers of examples/compose as processes.
It then runs `kaskade bench` with and without `--durable` in turn, with one client and with 64, and prints medians and their
ratios as a Markdown table. Build first: `cargo build --release --workspace`. The server is the given one, one on the PATH,
or the one downloaded by the tests.
"""

import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
KASKADE = os.path.join(ROOT, "target/release/kaskade")
APP = "examples/compose/app.toml"
URL = "nats://127.0.0.1:14222"
ROUNDS = 5


def server() -> str:
    fetched = glob.glob(os.path.join(ROOT, "target/testkit/*/nats-server"))
    found = [*sys.argv[1:], shutil.which("nats-server"), *fetched]
    return next(path for path in found if path)


def bench(clients: int, durable: bool) -> tuple[float, float]:
    """Returns replies per second, and the median latency in milliseconds."""
    command = [KASKADE, "bench", "--app", APP, "--nats", URL, "--concurrency", str(clients), "--duration", "4s", "--budget", "10s", "--json"]
    output = subprocess.run(command + ["--durable"] * durable, cwd=ROOT, check=True, capture_output=True)
    report = json.loads(output.stdout)
    assert report["answered"] == report["sent"], report
    return report["throughput_per_s"], report["latency_ms"]["p50"]


def measure(sync: str, folder: str) -> None:
    config = os.path.join(folder, "nats.conf")
    with open(config, "w") as file:
        file.write(f'port: 14222\njetstream {{ store_dir: "{folder}/store", sync_interval: {sync} }}\n')
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([server(), "-c", config], **quiet)]
    try:
        time.sleep(1)
        for role in ["--role=planner", "--role=ingress", "--worker=a", "--worker=b"]:
            roles = [role] if role.startswith("--role") else ["--role=worker", role]
            processes.append(subprocess.Popen([KASKADE, "serve", "--app", APP, "--nats", URL, *roles], cwd=ROOT, **quiet))
        time.sleep(4)
        for clients in [1, 64]:
            core, durable = [], []
            for _ in range(ROUNDS):
                core.append(bench(clients, False))
                durable.append(bench(clients, True))
            (core_rate, core_latency), (durable_rate, durable_latency) = (
                [statistics.median(figures) for figures in zip(*runs)] for runs in (core, durable)
            )
            print(f"| {sync} | {clients} | {core_rate:.0f} | {durable_rate:.0f} | {durable_rate / core_rate:.2f}x | {core_latency:.2f} ms | {durable_latency:.2f} ms |", flush=True)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


print("| sync_interval | clients | core, requests/s | durable | durable / core | core, median latency | durable, median latency |")
print("|---|---|---|---|---|---|---|")
for interval in ["always", "2m"]:
    with tempfile.TemporaryDirectory() as scratch:
        measure(interval, scratch)
