"""Asks a Kaskade app from Python: nats-py and msgpack, nothing else.

    python client.py nats://127.0.0.1:4222 APP NAME VALUE [VALUE ...]

sends one FP32 tensor called NAME and prints the reply.
"""

import asyncio
import struct
import sys

import msgpack
import nats


def tensor(name, values):
    """A one-dimensional FP32 tensor of the Open Inference Protocol."""
    data = struct.pack(f"<{len(values)}f", *values)
    return {"name": name, "shape": [len(values)], "datatype": "FP32", "data": data}


def values(tensor):
    """The elements of an FP32 tensor."""
    return list(struct.unpack(f"<{len(tensor['data']) // 4}f", tensor["data"]))


async def infer(connection, app, inputs, budget=2.0):
    """The reply as a dictionary; a fault of the service is raised."""
    headers = {"Kaskade-Budget-Us": str(int(budget * 1e6))}
    body = msgpack.packb({"inputs": inputs})
    # A little longer than the budget: the service answers within it, and the answer has to travel.
    message = await connection.request(f"kaskade.{app}.infer", body, timeout=budget + 0.5, headers=headers)
    if message.headers and "Nats-Service-Error" in message.headers:
        raise RuntimeError(f"{message.headers.get('Kaskade-Fault')}: {message.headers['Nats-Service-Error']}")
    return msgpack.unpackb(message.data)


async def main(url, app, name, *numbers):
    connection = await nats.connect(url)
    try:
        reply = await infer(connection, app, [tensor(name, [float(number) for number in numbers])])
        outputs = {output["name"]: values(output) for output in reply["outputs"]}
        print(f"stage={reply['stage']} outputs={outputs}")
    finally:
        await connection.close()


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
