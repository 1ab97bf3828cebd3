"""Asks a Kaskade app from Python: nats-py and msgpack, nothing else.

    python client.py nats://127.0.0.1:4222 APP NAME VALUE [VALUE ...]

sends one tensor called NAME, of FP32 or of texts, and prints the reply.
"""

import asyncio
import random
import struct
import sys
import time
import uuid

import msgpack
import nats
import nats.errors

# Faults after which the same request may succeed: full, unavailable, draining, every replica lost, an internal message that could
# not be read, an endpoint that does not answer.
RETRYABLE = {"KSK0006", "KSK0007", "KSK0010", "KSK0020", "KSK0023", "KSK0024"}
LONGEST_PAUSE = 0.5


def tensor(name, values):
    """A one-dimensional FP32 tensor of the Open Inference Protocol."""
    data = struct.pack(f"<{len(values)}f", *values)
    return {"name": name, "shape": [len(values)], "datatype": "FP32", "data": data}


def texts(name, values):
    """A one-dimensional BYTES tensor: each element has its length in front of it."""
    encoded = [value.encode() for value in values]
    data = b"".join(struct.pack("<I", len(element)) + element for element in encoded)
    return {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": data}


def values(tensor):
    """The elements of a tensor of FP32, FP64, INT64 or BYTES."""
    data = tensor["data"]
    if tensor["datatype"] != "BYTES":
        kind, size = {"FP32": ("f", 4), "FP64": ("d", 8), "INT64": ("q", 8)}[tensor["datatype"]]
        return list(struct.unpack(f"<{len(data) // size}{kind}", data))
    elements = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        elements.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return elements


async def infer(connection, app, inputs, budget=2.0, retry=True):
    """The reply as a dictionary; a fault of the service is raised.

    Core NATS keeps nothing: a request or its reply may be lost with a connection. It is then sent again, with the same id and
    what is left of the budget, and so it is after a fault that permits it. With `retry=False` it is sent once.
    """
    body, request_id = msgpack.packb({"inputs": inputs}), uuid.uuid4().hex
    end, pause, earlier = time.monotonic() + budget, 0.01, None
    while True:
        left = end - time.monotonic()
        if earlier and left <= 0:
            raise earlier
        try:
            return await attempt(connection, app, body, request_id, left)
        except Refused as fault:
            # The budget ended during this attempt: what the one before failed with says more.
            if fault.code == "KSK0005" and earlier:
                raise earlier from None
            earlier = fault
            if not retry or fault.code not in RETRYABLE or time.monotonic() + pause >= end:
                raise
        except nats.errors.NoRespondersError as unserved:
            earlier = unserved
            # Either the name is wrong, or the ingresses have not reconnected yet.
            if not retry or not connection.stats["reconnects"] or time.monotonic() + pause >= end:
                raise
        except Disconnected as lost:
            earlier = lost
            if not retry or time.monotonic() + pause >= end:
                raise
        await asyncio.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, LONGEST_PAUSE)


class Refused(RuntimeError):
    """A fault of the service."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Disconnected(RuntimeError):
    """The connection was lost before the reply, and is up again."""


async def attempt(connection, app, body, request_id, left):
    """Sends the request once."""
    headers = {"Kaskade-Budget-Us": str(int(left * 1e6)), "Kaskade-Request-Id": request_id}
    # A little longer than the budget: the service answers within it, and the answer has to travel.
    asked = asyncio.ensure_future(connection.request(f"kaskade.{app}.infer", body, timeout=left + 0.5, headers=headers))
    before = connection.stats["reconnects"]
    while not asked.done():
        await asyncio.wait([asked], timeout=0.1)
        if not asked.done() and connection.stats["reconnects"] > before:
            asked.cancel()
            raise Disconnected("the connection was lost before the reply")
    message = asked.result()
    if message.headers and "Nats-Service-Error" in message.headers:
        raise Refused(message.headers.get("Kaskade-Fault"), message.headers["Nats-Service-Error"])
    return msgpack.unpackb(message.data)


def read(name, written):
    """Returns a tensor of numbers, or of texts if one of them is no number."""
    try:
        return tensor(name, [float(number) for number in written])
    except ValueError:
        return texts(name, written)


async def main(url, app, name, *written):
    connection = await nats.connect(url)
    try:
        reply = await infer(connection, app, [read(name, written)])
        outputs = {output["name"]: values(output) for output in reply["outputs"]}
        print(f"stage={reply['stage']} outputs={outputs}")
    finally:
        await connection.close()


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
