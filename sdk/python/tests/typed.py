"""What a type checker makes of the package; `test.sh` checks this file, and nothing runs it."""

from typing import assert_type

import kaskade


async def attached(stage: kaskade.Stage) -> None:
    assert_type(await stage.attach(), kaskade.Replica)
