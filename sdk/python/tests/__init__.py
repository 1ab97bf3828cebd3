"""Tests of the SDK: `python -m unittest discover -s tests -t .`

Those against real processes find them by NATS_SERVER and KASKADE_BIN, and are skipped without.
"""

import logging

# The tests break connections on purpose.
for name in ("asyncio", "nats", "kaskade"):
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
