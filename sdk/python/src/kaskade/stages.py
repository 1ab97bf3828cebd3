"""Stages in Python: `@stage` turns a batch function into a replica of a running app."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .batching import Batching, check_count
from .batch import BatchFunction, Outcome, run_batch
from .connection import Broker
from .subjects import App, check_token, token_from
from .tensors import DATATYPES, NUMPY_NAMES, Array

if TYPE_CHECKING:
    from .replica import Replica


@dataclass(frozen=True)
class Input:
    """The datatype and shape that a stage expects of an input. -1 in the shape fits any extent."""

    datatype: str
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            advice = f"write {NUMPY_NAMES[self.datatype]}" if self.datatype in NUMPY_NAMES else f"it is one of {sorted(DATATYPES)}"
            raise ValueError(f"{self.datatype!r} is no datatype; {advice}")
        if self.shape is not None and any(type(extent) is not int or extent < -1 for extent in self.shape):
            raise ValueError(f"the shape of an input is {self.shape!r}; it must have extents, or -1 for any")


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
        check_count("queue_capacity", self.queue_capacity)
        if self.tensors not in ("numpy", "torch"):
            raise ValueError(f"tensors is {self.tensors!r}; it must be numpy or torch")
        needed, optional = self._arguments()
        unknown = [name for name in self.inputs if needed is not None and name not in needed + optional]
        if unknown:
            raise ValueError(f"the function of stage `{self.name}` has no argument `{unknown[0]}`, which `inputs` names")

    def _arguments(self) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Returns the names of the inputs that the function needs, `None` for any, and of those that it takes beside them."""
        function = self.function
        for kind in (function, getattr(function, "__call__", None)):
            if inspect.iscoroutinefunction(kind) or inspect.isasyncgenfunction(kind) or inspect.isgeneratorfunction(kind):
                raise TypeError(f"the function of stage `{self.name}` is asynchronous or a generator; it must return the outputs")
        return (None, ()) if self.per_request else _arguments(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def batch_function(self) -> BatchFunction:
        """The function with what is needed to call it with a batch."""
        needed, optional = self._arguments()
        return BatchFunction(
            function=self.function,
            arguments=needed,
            optional=optional,
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

    def serve(self, broker: Broker | str = "", replica: str = "", grace: float = 10.0, http: str = "") -> None:
        """Serves the stage until SIGTERM or Ctrl-C, then leaves: what it accepted is answered, at most `grace` s.

        A second signal ends the grace. `http`, as `0.0.0.0:8080`, is the address of probes and metrics: `/live`, `/ready`,
        `/metrics`. Raises `OSError` if it cannot be used, `BrokerUnavailable`, `Internal` if the replica fails, `Expired` if requests were
        not answered (the function may then still run, on a daemon thread), and `RuntimeError` on another thread than the main
        one or on Windows: use `attach` there.
        """
        from .replica import serve

        broker = Broker(broker) if isinstance(broker, str) else broker
        serve(self, broker, replica or self.default_replica(), grace, http)

    def with_(self, **changes: Any) -> Stage:
        """Returns the stage with other settings, for example another app."""
        return replace(self, **changes)

    def default_replica(self) -> str:
        """Returns an id that is unique per process: the stage, the host and the process."""
        return token_from(f"{self.name}-{socket.gethostname()}-{os.getpid()}"[-64:])


def _arguments(function: Callable[..., Any]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Returns the names of the arguments without and with a default; `None` if the function takes any (`**inputs`)."""
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"argument `{parameter.name}` is positional-only; inputs are passed by name")
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None, ()
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"the function has `*{parameter.name}`; inputs are passed by name: name each, or write `**inputs`")
    needed = tuple(one.name for one in parameters if one.default is inspect.Parameter.empty)
    return needed, tuple(one.name for one in parameters if one.name not in needed)


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

    `name` must be the name of a stage in the app's plan, in plans of `kaskade plan cascade` that of the variant. A stage that no
    plan names attaches and gets no requests: the SDK does not read the plan.

    The function takes one argument per input, of that name: the inputs of all requests of the batch, stacked to shape
    `[batch, ...]`. An argument with a default is an input that a request may leave out; requests with and without it are run
    in separate calls. It returns a map of outputs with the batch as first dimension, or one array, which becomes the
    output `output`. `logits`, `start_logits`, `end_logits` and `probabilities`, which ingresses read, become float32 whatever
    type of number they have; other outputs keep their type. An output `confidence` of shape `[batch]` is the confidence of the answers; without one, the
    plan's estimator computes it from the outputs. Requests whose shapes differ are run in separate calls.

    With `per_request` the function takes a list of maps of inputs and returns a list of maps of outputs, or of
    `KaskadeError`. With `tensors="torch"` the function gets torch tensors; torch tensors may be returned in any case.

    `max_batch`, `max_wait` (seconds) and `min_queue` are the triggers of a batch; `queue_capacity` is the number of
    requests that wait before others are refused with `Overloaded`. `inputs` states datatypes and shapes to check.

    Raises `TypeError` for a function that cannot be called with inputs by name or is asynchronous, `ValueError` for a
    setting that is out of range.
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
