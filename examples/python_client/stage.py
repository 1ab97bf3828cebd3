"""Serves a stage of a Kaskade app from Python: it joins the stage's queue group and answers.

    python stage.py nats://127.0.0.1:4222 APP STAGE

It doubles the first input. Whether that is sure enough to be the reply is for the plan to say: the ingress applies the
stage's exit to the confidence given here.
"""

import asyncio
import signal
import sys

import msgpack
import nats

from client import tensor, values


def answer(request):
    """What the model makes of one request; replace this."""
    doubled = [2 * value for value in values(request["inputs"][0])]
    return {"outputs": [tensor("doubled", doubled)], "confidence": 0.9}


async def main(url, app, stage):
    connection = await nats.connect(url)

    async def serve(message):
        request = msgpack.unpackb(message.data)
        # Which request, attempt and stage it was: late and doubled answers are told apart by these.
        done = {key: request.get(key) for key in ("id", "attempt", "stage", "hops")}
        try:
            done |= answer(request)
        except Exception as error:  # whatever went wrong, the request gets an answer
            done["error"] = str(error)
        await message.respond(msgpack.packb(done))

    # Queue group `q`: every member of it shares the stage's requests with the others.
    await connection.subscribe(f"kaskade.{app}.stage.{stage}", queue="q", cb=serve)
    await connection.flush()
    print("ready", flush=True)
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await stop.wait()
    await connection.drain()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
