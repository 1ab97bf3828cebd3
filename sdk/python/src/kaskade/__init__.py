"""Kaskade in Python: ask an app, serve a stage of it, profile that stage.

| module | holds |
|---|---|
| `client`, `sync` | `AsyncClient` and `Client`: infer, stream, cancel, durable requests |
| `inbox` | the replies to a client's requests |
| `retry` | when a client sends a request again |
| `stages`, `batch`, `batching`, `replica`, `runner`, `leaving`, `probes` | `@stage`: a batch function as a replica of a running app |
| `profiling`, `confidence`, `plans` | measurements of a batch function as a profile for `kaskade plan`, and its place in a plan |
| `tensors`, `wire`, `chunks`, `subjects` | the wire protocol |
| `errors` | one exception per error code |
| `testing` | a nats-server and Kaskade processes for tests |
"""

from . import errors
from .batching import Batching
from .client import Accepted, AsyncClient
from .confidence import Estimator
from .connection import Broker
from .errors import KaskadeError
from .plans import place
from .profiling import Power, Profile, VariantProfile, profile
from .replica import Replica
from .retry import RetryPolicy
from .stages import Input, Stage, stage
from .sync import Client
from .tensors import Typed
from .wire import Branch, Cost, Hop, Reply

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "AsyncClient",
    "Batching",
    "Branch",
    "Broker",
    "Client",
    "Cost",
    "Estimator",
    "Hop",
    "Input",
    "KaskadeError",
    "Power",
    "Profile",
    "Replica",
    "Reply",
    "RetryPolicy",
    "Stage",
    "Typed",
    "VariantProfile",
    "errors",
    "place",
    "profile",
    "stage",
]
