"""Stages in Python: `@stage` turns a batch function into a replica of a running app."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .batching import Batching
from .batch import BatchFunction, Outcome, run_batch
from .connection import Broker
from .subjects import App, check_token, token_from
from .tensors import Array

if TYPE_CHECKING:
    from .replica import Replica


@dataclass(frozen=True)
class Input:
    """The datatype and shape that a stage expects of an input. -1 in the shape fits any extent."""

    datatype: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """A stage: a batch function and how it is served. `stage` makes one; calling it calls the function."""

    function: Callable[..., Any]
    app: str
    name: str
    variant: str
    batching: Batching = field(default_factory=Batching)
    queue_capacity: int = 1024
    inputs: Mapping[str, Input] = field(default_factory=dict)
    output: str = "logits"
    tensors: str = "numpy"
    per_request: bool = False

    def __post_init__(self) -> None:
        App(self.app)
        check_token("stage", self.name)
        check_token("variant", self.variant)
        if self.tensors not in ("numpy", "torch"):
            raise ValueError(f"tensors is {self.tensors!r}; it must be numpy or torch")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def batch_function(self) -> BatchFunction:
        """The function with what is needed to call it with a batch."""
        return BatchFunction(
            function=self.function,
            arguments=None if self.per_request else _arguments(self.function),
            expected={name: (spec.datatype, spec.shape) for name, spec in self.inputs.items()},
            output=self.output,
            torch=self.tensors == "torch",
            per_request=self.per_request,
        )

    def run_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Runs the function on requests and checks what it returns, as a replica does. Lists and texts become arrays."""
        return run_batch(self.batch_function, requests)

    async def attach(self, broker: Broker | str = "", replica: str = "") -> Replica:
        """Attaches the stage to the running app and returns the `Replica`, which `leave` detaches.

        `replica` is its id; a plan that places a replica of this id lets ingresses address it. Raises `BrokerUnavailable`.
        """
        from .replica import Replica

        broker = Broker(broker) if isinstance(broker, str) else broker
        return await Replica.attach(self, broker, replica or self.default_replica())

    def serve(self, broker: Broker | str = "", replica: str = "", grace: float = 10.0) -> None:
        """Serves the stage until SIGTERM or Ctrl-C, then leaves: what it accepted is answered, at most `grace` s.

        A second signal ends the grace. Raises `BrokerUnavailable`, `Internal` if the replica fails, and `Expired` if
        requests were not answered; the function may then still run, on a daemon thread.
        """
        from .replica import serve

        broker = Broker(broker) if isinstance(broker, str) else broker
        serve(self, broker, replica or self.default_replica(), grace)

    def with_(self, **changes: Any) -> Stage:
        """Returns the stage with other settings, for example another app."""
        return replace(self, **changes)

    def default_replica(self) -> str:
        """Returns an id that is unique per process: the stage, the host and the process."""
        return token_from(f"{self.name}-{socket.gethostname()}-{os.getpid()}"[-64:])


def _arguments(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Returns the names of the inputs that a function takes; `None` if it takes all of them (`**inputs`)."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)


def stage(
    app: str,
    name: str,
    *,
    variant: str = "",
    max_batch: int = 32,
    max_wait: float = 0.002,
    min_queue: int = 1,
    queue_capacity: int = 1024,
    inputs: Mapping[str, Input] | None = None,
    output: str = "logits",
    tensors: str = "numpy",
    per_request: bool = False,
) -> Callable[[Callable[..., Any]], Stage]:
    """Makes a stage of a batch function.

    The function takes one argument per input, of that name: the inputs of all requests of the batch, stacked to shape
    `[batch, ...]`. It returns a map of outputs with the batch as first dimension, or one array, which becomes the
    output `output`. An output `confidence` of shape `[batch]` is the confidence of the answers; without one, the
    plan's estimator computes it from the outputs. Requests whose shapes differ are run in separate calls.

    With `per_request` the function takes a list of maps of inputs and returns a list of maps of outputs, or of
    `KaskadeError`. With `tensors="torch"` the function gets torch tensors; torch tensors may be returned in any case.

    `max_batch`, `max_wait` (seconds) and `min_queue` are the triggers of a batch; `queue_capacity` is the number of
    requests that wait before others are refused with `Overloaded`. `inputs` states datatypes and shapes to check.
    """

    def decorate(function: Callable[..., Any]) -> Stage:
        return Stage(
            function=function,
            app=app,
            name=name,
            variant=variant or name,
            batching=Batching(max_batch, max_wait, min_queue),
            queue_capacity=queue_capacity,
            inputs=dict(inputs or {}),
            output=output,
            tensors=tensors,
            per_request=per_request,
        )

    return decorate


__all__ = ["Array", "Input", "Stage", "stage"]
