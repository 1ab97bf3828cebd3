"""Measures how many trivial requests per second one process of a Python stage answers.

    NATS_SERVER=... python benchmarks/stage_throughput.py [--seconds 5] [--window 512] [--least 5000]

A nats-server, the stage, and a generator that keeps `--window` requests in flight are processes of their own. A request is one
FP32 tensor of four elements; the stage doubles it, in batches of up to 32.
"""

import argparse
import multiprocessing
import socket
import sys
import time

import numpy as np

import kaskade
from kaskade import tensors, wire
from kaskade.testing import NatsServer, find

APP, STAGE, BATCH = "bench", "double", 32


@kaskade.stage(APP, STAGE, max_batch=BATCH, max_wait=0.005, min_queue=BATCH, queue_capacity=4096, output="y")
def double(x: np.ndarray) -> np.ndarray:
    return 2 * x


class Generator:
    """A NATS client that does as little as possible: the stage is to be the limit."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.buffer = b""
        self.line()
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\n')
        headers = f"NATS/1.0\r\n{wire.BUDGET}: 10000000\r\ntraceparent: 00-{1:032x}-{1:016x}-00\r\n\r\n".encode()
        body = wire.pack({
            "id": 1, "ingress": "i", "attempt": 0, "epoch": 1, "gear": 0, "stage": STAGE, "hops": [],
            "inputs": tensors.encode_all({"x": np.ones(4, np.float32)}),
        })
        head = f"HPUB kaskade.{APP}.stage.{STAGE} kaskade.{APP}.done.i.1 {len(headers)} {len(headers) + len(body)}\r\n"
        self.message = head.encode() + headers + body + b"\r\n"

    def more(self) -> None:
        received = self.socket.recv(1 << 16)
        if not received:
            raise ConnectionError("the server closed the connection")
        self.buffer += received

    def line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            self.more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def subscribe(self, subject: str, sid: int) -> None:
        self.socket.sendall(f"SUB {subject} {sid}\r\nPING\r\n".encode())
        while self.line() != b"PONG":
            pass

    def bodies(self, wanted: int) -> list[tuple[bytes, bytes]]:
        """Returns what has arrived, at least `wanted` messages: subject and body."""
        found: list[tuple[bytes, bytes]] = []
        at = 0
        while True:
            end = self.buffer.find(b"\r\n", at)
            if end >= 0:
                line = self.buffer[at:end]
                if not line.startswith(b"MSG ") and not line.startswith(b"-ERR"):
                    if line == b"PING":
                        self.socket.sendall(b"PONG\r\n")
                    at = end + 2
                    continue
                if line.startswith(b"MSG "):
                    size = int(line.rpartition(b" ")[2])
                    if len(self.buffer) >= end + 2 + size + 2:
                        found.append((line.split(b" ")[1], self.buffer[end + 2 : end + 2 + size]))
                        at = end + 2 + size + 2
                        continue
                else:
                    raise ConnectionError(line.decode())
            if len(found) >= wanted:
                self.buffer = self.buffer[at:]
                return found
            self.buffer, at = self.buffer[at:], 0
            self.more()


def serve(url: str) -> None:
    double.serve(url, replica="double-0")


def measure(seconds: float, window: int) -> float:
    """Measures once; returns requests per second."""
    server = find("NATS_SERVER", "nats-server")
    if not server:
        sys.exit("no nats-server: name one with NATS_SERVER")
    with NatsServer(server) as nats:
        generator = Generator(nats.port)
        generator.subscribe(f"kaskade.{APP}.done.i.*", 1)
        generator.subscribe(f"kaskade.{APP}.beat.*", 2)
        stage = multiprocessing.get_context("spawn").Process(target=serve, args=(nats.url,), daemon=True)
        stage.start()
        # The first heartbeat comes when the stage serves.
        generator.bodies(1)
        done = b".done."
        generator.socket.sendall(generator.message * window)
        answered, last, began = 0, {}, time.monotonic()
        warm = 1.0
        while True:
            now = time.monotonic()
            if warm and now - began > warm:
                answered, began, warm, first = 0, now, 0.0, last
            if not warm and now - began > seconds:
                break
            answers = 0
            for subject, body in generator.bodies(1):
                if done in subject:
                    answers += 1
                    if b"error" in body:
                        raise RuntimeError(wire.unpack(body)["error"])
                else:
                    last = wire.unpack(body).get("runs", {}).get(STAGE, {})
            answered += answers
            generator.socket.sendall(generator.message * answers)
        rate = answered / (time.monotonic() - began)
        runs = {name: last[name] - first.get(name, 0) for name in last}
        print(
            f"{rate:,.0f} requests/s from one process, {window} in flight, {runs['requests'] / runs['batches']:.1f} per batch; "
            f"its heartbeats count {runs['requests'] / seconds:,.0f}/s, function busy {runs['busy_us'] / 1e4 / seconds:.0f} %"
        )
        stage.terminate()
        stage.join(10)
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--least", type=float, default=0.0, help="fail below this many requests per second")
    parser.add_argument("--attempts", type=int, default=1, help="a shared machine may stall once")
    options = parser.parse_args()
    for _ in range(options.attempts):
        if measure(options.seconds, options.window) >= options.least:
            return
    sys.exit(f"fewer than {options.least:,.0f} requests/s")


if __name__ == "__main__":
    main()
