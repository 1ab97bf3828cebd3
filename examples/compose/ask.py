"""Asks the digits app in its containers, as the client that NATS knows by its key.

    pip install 'nats-py[nkeys]' msgpack
    python ask.py client.nk client.inbox [NUMBER] [nats://127.0.0.1:4222]

sends the test image of that number and prints the class, who answered, and how sure it was.
"""

import asyncio
import pathlib
import struct
import sys

import msgpack
import nats

DIGITS = pathlib.Path(__file__).resolve().parent.parent / "digits" / "data"
# The first image that no model of the family was trained or calibrated on.
FIRST_TEST_IMAGE = 1297


def image(number):
    """A handwritten digit: 64 numbers from 0 to 1, and what it is."""
    pixels = (DIGITS / "images.idx3-ubyte").read_bytes()[16:]
    labels = (DIGITS / "labels.idx1-ubyte").read_bytes()[8:]
    at = FIRST_TEST_IMAGE + number
    return [pixel / 16 for pixel in pixels[at * 64 : at * 64 + 64]], labels[at]


async def main(seed, inbox, number=0, url="nats://127.0.0.1:4222"):
    prefix = pathlib.Path(inbox).read_text().strip().encode()
    connection = await nats.connect(url, nkeys_seed=seed, inbox_prefix=prefix)
    pixels, label = image(int(number))
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": struct.pack("<64f", *pixels)}
    # The budget is what the service has; the answer has to travel, too.
    headers = {"Kaskade-Budget-Us": "2000000"}
    body = msgpack.packb({"inputs": [tensor]})
    try:
        message = await connection.request("kaskade.digits.infer", body, timeout=2.5, headers=headers)
    finally:
        await connection.close()
    if message.headers and "Nats-Service-Error" in message.headers:
        sys.exit(f"{message.headers.get('Kaskade-Fault')}: {message.headers['Nats-Service-Error']}")
    reply = msgpack.unpackb(message.data)
    logits = struct.unpack("<10f", reply["outputs"][0]["data"])
    found = max(range(10), key=logits.__getitem__)
    confidence = reply.get("confidence")
    print(f"class {found}, it is {label}; {reply['variant']} answered in stage {reply['stage']}, confidence {confidence}")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
