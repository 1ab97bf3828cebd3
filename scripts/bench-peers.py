"""Compares the serving cost with other systems, interleaved in one run.

    python3 scripts/bench-peers.py --peers DIR \
        --ray RAY_PYTHON --mosec MOSEC_PYTHON [--nats nats://127.0.0.1:4222] [--rounds 3] [--seconds 4]

DIR holds ray_cascade.py and mosec_single.py. RAY_PYTHON and MOSEC_PYTHON are interpreters with `ray[serve]` and `mosec`;
a system without an interpreter is skipped. Every round measures every system once, in turn, so that other load on the
machine affects all of them. Prints medians over the rounds, and their ratios.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections import defaultdict


def start(command, **options):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def line_with(process, word):
    for line in process.stdout:
        if word in line:
            return line.strip()
    raise SystemExit(f"{process.args} ended without printing {word!r}")


def built(package, name):
    """Builds a benchmark and returns the path of its program."""
    cargo = ["cargo", "bench", "-p", package, "--bench", name, "--no-run", "--message-format=json"]
    lines = subprocess.run(cargo, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    artefacts = [artefact for artefact in map(json.loads, lines) if artefact.get("target", {}).get("name") == name]
    return artefacts[-1]["executable"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kaskade", help="the benchmark serving_cost; built if not given")
    parser.add_argument("--gateway", help="the benchmark http_cost; built if not given")
    parser.add_argument("--peers", default=".")
    parser.add_argument("--ray")
    parser.add_argument("--mosec")
    parser.add_argument("--nats", default="embedded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--concurrency", default="64,256")
    arguments = parser.parse_args()
    seconds = str(arguments.seconds)
    arguments.kaskade = arguments.kaskade or built("kaskade-actors", "serving_cost")
    arguments.gateway = arguments.gateway or built("kaskade-gateway", "http_cost")

    figures = defaultdict(list)
    processes = []

    def ours(*words, program=None):
        output = subprocess.run([program or arguments.kaskade, *words], capture_output=True, text=True)
        if output.returncode:
            print("failed:", words, output.stderr.strip()[-300:])
            return None
        return json.loads(output.stdout)

    def record(name, figure):
        if figure:
            figures[name].append(figure)
            print(f"  {name}: {figure}", flush=True)

    def over_http(app, concurrency):
        """The gateway in a process of its own, and in the process of the ingress, as `kaskade serve --http` has it."""
        for name, address in (("http apart", "127.0.0.1:18081"), ("http", "127.0.0.1:18082")):
            figure = ours("load", address, app, concurrency, seconds, program=arguments.gateway)
            record(f"kaskade {name} {app} {concurrency}", figure)

    try:
        serve = start([arguments.kaskade, "serve", arguments.nats])
        processes.append(serve)
        url = line_with(serve, "nats://")
        gateway = start([arguments.gateway, "gateway", url, "127.0.0.1:18081"])
        processes.append(gateway)
        print(line_with(gateway, "ready"))
        whole = start([arguments.gateway, "serve", "127.0.0.1:18082"])
        processes.append(whole)
        print(line_with(whole, "ready"))
        if arguments.ray:
            environment = os.environ | {
                "RAY_worker_niceness": "0",
                "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
                "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
            }
            ray = start([arguments.ray, os.path.join(arguments.peers, "ray_cascade.py")], env=environment)
            processes.append(ray)
            print(line_with(ray, "ready"))
        if arguments.mosec:
            command = [arguments.mosec, os.path.join(arguments.peers, "mosec_single.py"), "--port", "18091"]
            processes.append(start(command, stderr=subprocess.DEVNULL))
            time.sleep(4)

        for round_ in range(arguments.rounds):
            print(f"round {round_ + 1}, load average {os.getloadavg()[0]:.1f}", flush=True)
            for concurrency in arguments.concurrency.split(","):
                record(f"kaskade cascade {concurrency}", ours("nats", url, "cascade", concurrency, seconds))
                over_http("cascade", concurrency)
                if arguments.ray:
                    record(f"ray http {concurrency}", ours("http", "127.0.0.1:18000", "/cas", concurrency, seconds))
                    ray.stdin.write(f"closed {concurrency} {seconds}\n")
                    ray.stdin.flush()
                    result = line_with(ray, "ray handle closed")
                    rate, p50, p99 = re.search(r"thr (\d+)/s p50 ([\d.]+) p99 ([\d.]+)", result).groups()
                    handle = {"per_s": float(rate), "p50_ms": float(p50), "p99_ms": float(p99), "errors": 0}
                    record(f"ray handle {concurrency}", handle)
                record(f"kaskade single {concurrency}", ours("nats", url, "single", concurrency, seconds))
                over_http("single", concurrency)
                if arguments.mosec:
                    record(f"mosec {concurrency}", ours("http", "127.0.0.1:18091", "/inference", concurrency, seconds))
            for size in ("51200", "1000000"):
                record(f"hop {size}", ours("hop", url, size, seconds))
    finally:
        for process in processes:
            process.terminate()

    def median(name, key):
        return statistics.median(figure[key] for figure in figures[name])

    print("\nmedians over the rounds")
    for name in figures:
        keys = [key for key in figures[name][0] if key not in ("name", "concurrency", "n", "bytes")]
        print(f"  {name:28}", "  ".join(f"{key} {median(name, key):g}" for key in keys))
    print("\nratios")
    for concurrency in arguments.concurrency.split(","):
        pairs = (
            ("cascade", "ray handle"),
            ("cascade", "ray http"),
            ("http cascade", "ray http"),
            ("http apart cascade", "ray http"),
            ("single", "mosec"),
            ("http single", "mosec"),
            ("http apart single", "mosec"),
        )
        for own, peer in pairs:
            ours_, theirs = f"kaskade {own} {concurrency}", f"{peer} {concurrency}"
            if figures[ours_] and figures[theirs]:
                print(f"  {ours_} / {theirs}: {median(ours_, 'per_s') / max(median(theirs, 'per_s'), 1e-9):.2f}x")


if __name__ == "__main__":
    main()
