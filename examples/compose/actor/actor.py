"""Serves a stage of the digits app from Python: it joins the stage's queue group and answers beside the models that are there.

    python actor.py nats://nats:4222 APP STAGE

The model is the least that is one: how far an image is from the mean of every class, over the images that the family was
trained on. It is wrong more often than the others, and less sure; what it is not sure of goes on to a larger model.
"""

import asyncio
import math
import pathlib
import secrets
import signal
import struct
import sys

import msgpack
import nats
import nats.errors

DATA = pathlib.Path("/examples/digits/data")
TRAINED_ON = 797
SHARPNESS = 2.0


def means():
    """The mean image of each class."""
    pixels = (DATA / "images.idx3-ubyte").read_bytes()[16:]
    labels = (DATA / "labels.idx1-ubyte").read_bytes()[8:]
    sums, counts = [[0.0] * 64 for _ in range(10)], [0] * 10
    for at in range(TRAINED_ON):
        counts[labels[at]] += 1
        for place in range(64):
            sums[labels[at]][place] += pixels[at * 64 + place] / 16
    return [[total / count for total in row] for row, count in zip(sums, counts)]


def answer(request, classes):
    """Logits, and a confidence in the manner of the app: the squared probability of the likeliest class."""
    image = struct.unpack("<64f", request["inputs"][0]["data"])
    logits = [-SHARPNESS * math.dist(image, mean) ** 2 for mean in classes]
    top = max(logits)
    likeliest = 1 / sum(math.exp(logit - top) for logit in logits)
    tensor = {"name": "logits", "shape": [10], "datatype": "FP32", "data": struct.pack("<10f", *logits)}
    return {"outputs": [tensor], "confidence": likeliest**2}


async def leave(connection, subscription):
    """Ends a subscription; returns once everything that the server has sent to it is answered.

    `drain` of nats-py forgets the subscription when its PING is answered, which may overtake the UNSUB; messages that are
    on their way are then lost.
    """
    await connection._send_unsubscribe(subscription._id)
    await round_trip(connection)
    await subscription._pending_queue.join()
    # nats-py would subscribe again after a reconnect.
    subscription._stop_processing()
    connection._remove_sub(subscription._id)
    # The answers have reached the server.
    await round_trip(connection)


async def round_trip(connection):
    """Returns when the server has processed everything sent before, and all that it sent before has arrived."""
    try:
        # No process subscribes to this subject, and the server says so.
        await connection.request(f"_KASKADE.UNSERVED.{secrets.token_hex(8)}", b"", timeout=5)
    except nats.errors.NoRespondersError:
        pass


async def main(url, app, stage):
    seed, inbox = pathlib.Path("/auth/nkey"), pathlib.Path("/auth/inbox")
    connection = await nats.connect(url, nkeys_seed=str(seed), inbox_prefix=inbox.read_text().strip().encode())
    classes = means()

    async def serve(message):
        # A subscription that ends sends messages without content to its own subject.
        if message.headers and "Kaskade-Padding" in message.headers:
            return
        request = msgpack.unpackb(message.data)
        # Which request, attempt, stage and branch of a pipeline it was: late and doubled answers are told apart by these.
        done = {key: request[key] for key in ("id", "attempt", "stage", "hops", "branch") if key in request}
        try:
            done |= answer(request, classes)
        except Exception as error:  # whatever went wrong, the request gets an answer
            done["error"] = str(error)
        await message.respond(msgpack.packb(done))

    # Queue group `q`: every member of it shares the stage's requests with the others.
    taking = await connection.subscribe(f"kaskade.{app}.stage.{stage}", queue="q", cb=serve)
    await connection.flush()
    print(f"serving stage {stage} of {app}", flush=True)
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await stop.wait()
    await leave(connection, taking)
    await connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
