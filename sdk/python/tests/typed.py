"""What a type checker makes of the package; `test.sh` checks this file, and nothing runs it."""

from collections.abc import Generator
from contextlib import closing
from typing import assert_type

import kaskade


async def attached(stage: kaskade.Stage) -> None:
    assert_type(await stage.attach(), kaskade.Replica)


def asked(client: kaskade.Client) -> None:
    client.infer({"text": ["a"]}, parameters={"max_tokens": 3, "temperature": 0.5, "echo": True, "stop": "."})
    assert_type(client.stream({}), Generator[kaskade.Reply, None, None])
    with closing(client.stream({}, parameters={"max_tokens": 3})) as parts:
        next(parts)
