"""Serves a stage of a Kaskade app from Python: it joins the stage's queue group and answers.

    python stage.py nats://127.0.0.1:4222 APP STAGE

It doubles the first input. Whether that is sure enough to be the reply is for the plan to say: the ingress applies the
stage's exit to the confidence given here.
"""

import asyncio
import secrets
import signal
import sys

import msgpack
import nats
import nats.errors

from client import tensor, values


def answer(request):
    """What the model makes of one request; replace this."""
    doubled = [2 * value for value in values(request["inputs"][0])]
    return {"outputs": [tensor("doubled", doubled)], "confidence": 0.9}


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
    connection = await nats.connect(url)

    async def serve(message):
        # A subscription that ends sends messages without content to its own subject.
        if message.headers and "Kaskade-Padding" in message.headers:
            return
        request = msgpack.unpackb(message.data)
        # Which request, attempt, stage and branch of a pipeline it was: late and doubled answers are told apart by these.
        done = {key: request[key] for key in ("id", "attempt", "stage", "hops", "branch") if key in request}
        try:
            done |= answer(request)
        except Exception as error:  # whatever went wrong, the request gets an answer
            done["error"] = str(error)
        await message.respond(msgpack.packb(done))

    # Queue group `q`: every member of it shares the stage's requests with the others.
    taking = await connection.subscribe(f"kaskade.{app}.stage.{stage}", queue="q", cb=serve)
    await connection.flush()
    print("ready", flush=True)
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
