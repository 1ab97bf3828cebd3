//! A Python client, unaware of Kaskade, on both engines.

use std::process::Command;

use crate::Engines;

const PROGRAM: &str = r"
import asyncio, sys
import nats
from nats.errors import MaxPayloadError, NoRespondersError

# Its flush overtakes what it flushes; after a round trip of its own, all that a client asked for has been done.
async def settle(connection):
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish(inbox)
    await subscription.next_msg(timeout=10)

async def main():
    one = await nats.connect(sys.argv[1])
    two = await nats.connect(sys.argv[1])

    async def double(message):
        await message.respond(message.data * 2)
    await two.subscribe('double', queue='workers', cb=double)
    await settle(two)
    for size in (0, 3, 50_000, 500_000):
        reply = await one.request('double', b'x' * size, timeout=10)
        assert reply.data == b'x' * (2 * size), size

    seen = []
    done = asyncio.Event()
    async def collect(message):
        seen.append((message.subject, message.data, message.headers))
        if len(seen) == 100:
            done.set()
    await two.subscribe('all.>', cb=collect)
    await settle(two)
    for number in range(100):
        await one.publish(f'all.{number}', str(number).encode(), headers={'number': str(number)})
    await one.flush()
    await asyncio.wait_for(done.wait(), 10)
    assert seen == [(f'all.{n}', str(n).encode(), {'number': str(n)}) for n in range(100)]

    try:
        await one.request('unserved', b'', timeout=10)
        raise SystemExit('a request without responders was answered')
    except NoRespondersError:
        pass
    try:
        await one.publish('double', b'x' * (one.max_payload + 1))
        raise SystemExit('an oversize message was published')
    except MaxPayloadError:
        pass

    few = await one.subscribe('few')
    await few.unsubscribe(limit=2)
    for number in range(5):
        await one.publish('few', str(number).encode())
    assert [(await few.next_msg(timeout=10)).data for _ in range(2)] == [b'0', b'1']

    await two.drain()
    await one.close()
    print('fine')

asyncio.run(main())
";

#[test]
fn nats_py_works_unchanged() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let output = Command::new(kaskade_testkit::python())
            .args(["-c", PROGRAM, &url])
            .output()
            .unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(stdout.trim(), "fine", "{name}: {stderr}");
    }
}
