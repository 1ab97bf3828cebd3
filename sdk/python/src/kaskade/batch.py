"""Calls a batch function: checks inputs, stacks them, isolates failing requests, checks outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .errors import BadOutput, KaskadeError, ModelFailed, InvalidInput, describe
from .tensors import Array, as_array, datatype_of

Inputs: TypeAlias = Mapping[str, Array]
"""The inputs of one request by name, without a batch dimension."""


_NUMBERS = "fiub"
"""Kinds of numpy's types whose values are numbers."""

_FP32_OUTPUTS = frozenset({"logits", "start_logits", "end_logits", "probabilities"})
"""Outputs that ingresses read as FP32 only: for the confidence, the answer's class or span, and audits."""


@dataclass(frozen=True)
class Answer:
    """The outputs of one request, and its confidence if the function gave one."""

    outputs: dict[str, Array]
    confidence: float | None = None


Outcome: TypeAlias = "Answer | KaskadeError"


@dataclass(frozen=True)
class BatchFunction:
    """A function over a batch."""

    function: Callable[..., Any]
    arguments: tuple[str, ...] | None = None
    """Names of the inputs that it needs; `None`: it takes a list of requests, or any names."""
    optional: tuple[str, ...] = ()
    """Names of further inputs that it takes: arguments with a default."""
    expected: Mapping[str, tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)
    """Datatypes and shapes to check, by input; -1 fits any extent."""
    output: str = "logits"
    """Name of the output if the function returns one array."""
    torch: bool = False
    """Whether the function takes torch tensors."""
    per_request: bool = False
    """Whether the function takes a list of requests and returns a list of answers."""


def run_batch(function: BatchFunction, requests: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """Runs a batch; returns one outcome per request, in order. Never raises an `Exception`.

    Inputs that are no arrays (lists, numbers, texts, torch tensors) become arrays; Python floats become float32. A
    request with wrong inputs ends with `InvalidInput` and is not run. If the function raises, the batch is halved until
    the request that causes it stands alone. Outputs that ingresses read as FP32, such as `logits`, become float32.
    """
    outcomes: list[Outcome | None] = []
    prepared: list[Inputs] = []
    for inputs in requests:
        arrays = _input_arrays(inputs)
        prepared.append({} if isinstance(arrays, InvalidInput) else arrays)
        outcomes.append(arrays if isinstance(arrays, InvalidInput) else _check_inputs(function, arrays))
    groups: dict[Any, list[int]] = {}
    for index, inputs in enumerate(prepared):
        if outcomes[index] is None:
            groups.setdefault(_signature(function, inputs), []).append(index)
    for members in groups.values():
        for index, outcome in zip(members, _isolate(function, [prepared[index] for index in members]), strict=True):
            outcomes[index] = outcome
    return [outcome if outcome is not None else ModelFailed("the request was not run") for outcome in outcomes]


def _input_arrays(inputs: Mapping[str, Any]) -> Inputs | InvalidInput:
    """Returns the inputs as arrays, or an error if one is a value that no tensor can hold."""
    if not isinstance(inputs, Mapping):
        return InvalidInput(f"a request is {type(inputs).__name__}; it must be a map of inputs by name")
    arrays = {}
    for name, value in inputs.items():
        if not isinstance(name, str):
            return InvalidInput(f"an input has the name {name!r}; it must be a text")
        try:
            arrays[name] = as_array(value)
            datatype_of(arrays[name])
        except KaskadeError as error:
            return InvalidInput(f"input `{name}`: {error.message}")
        except Exception as error:  # noqa: BLE001, whatever the value's own conversion raises
            return InvalidInput(f"input `{name}` is no array: {describe(error)}")
    return arrays


def _signature(function: BatchFunction, inputs: Inputs) -> Any:
    if function.per_request:
        return None
    return tuple((name, array.shape, array.dtype.str) for name, array in sorted(inputs.items()))


def _check_inputs(function: BatchFunction, inputs: Inputs) -> KaskadeError | None:
    if function.arguments is not None:
        missing = [name for name in function.arguments if name not in inputs]
        if missing:
            return InvalidInput(f"input `{missing[0]}` is missing; the request has {_names(inputs)}")
        taken = function.arguments + function.optional
        unknown = [name for name in inputs if name not in taken]
        if unknown:
            return InvalidInput(f"input `{unknown[0]}` is unknown; the stage takes {_names(taken)}")
    for name, (datatype, shape) in function.expected.items():
        array = inputs.get(name)
        if array is None:
            if name in function.optional:
                continue
            return InvalidInput(f"input `{name}` is missing; the request has {_names(inputs)}")
        if datatype_of(array) != datatype:
            return InvalidInput(f"input `{name}` is {datatype_of(array)}; the stage takes {datatype}")
        if shape is not None and not _fits(array.shape, shape):
            return InvalidInput(f"input `{name}` has shape {list(array.shape)}; the stage takes {list(shape)}")
    for name, array in inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return InvalidInput(f"input `{name}` holds NaN or an infinity")
    return None


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no input"


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        wanted in (-1, extent) for extent, wanted in zip(shape, expected, strict=True)
    )


def _isolate(function: BatchFunction, requests: list[Inputs]) -> list[Outcome]:
    try:
        return _call(function, requests)
    except KaskadeError as error:
        failure = error
    except Exception as error:  # noqa: BLE001, the request gets an answer whatever went wrong
        failure = ModelFailed(f"the model raised {describe(error)}")
    if len(requests) == 1:
        return [failure]
    half = len(requests) // 2
    return _isolate(function, requests[:half]) + _isolate(function, requests[half:])


def _call(function: BatchFunction, requests: list[Inputs]) -> list[Outcome]:
    if function.per_request:
        returned = function.function([_arguments(function, inputs) for inputs in requests])
        if returned is None:
            return _all(requests, f"the function returned None; it must return a list of {len(requests)} answers")
        if not isinstance(returned, (list, tuple)) or len(returned) != len(requests):
            return _all(requests, f"the model must return a list of {len(requests)} answers")
        return [_answer(answer) for answer in returned]
    names = requests[0].keys()
    stacked = {name: np.stack([inputs[name] for inputs in requests]) for name in names}
    returned = function.function(**_arguments(function, stacked))
    if returned is None:
        return _all(requests, "the function returned None; it must return an array or a map of outputs")
    outputs = _arrays(returned if isinstance(returned, Mapping) else {function.output: returned})
    if isinstance(outputs, BadOutput):
        return [outputs] * len(requests)
    return _split(outputs, len(requests))


def _arrays(returned: Mapping[Any, Any]) -> dict[str, Array] | BadOutput:
    """Returns the outputs as arrays, or an error if the function returned what no tensor can hold.

    Numbers of an output that ingresses read as FP32 become float32; one beyond its range becomes an infinity, which the
    check of the outputs refuses for that request alone.
    """
    arrays = {}
    for name, value in returned.items():
        if value is None:
            return BadOutput(f"output `{name}` is None; it must be an array")
        try:
            array = as_array(value)
            if name in _FP32_OUTPUTS and array.dtype.kind in _NUMBERS:
                with np.errstate(over="ignore"):
                    array = array.astype(np.float32, copy=False)
            arrays[str(name)] = array
        except KaskadeError as error:
            return BadOutput(f"output `{name}`: {error.message}")
        except Exception as error:  # noqa: BLE001, whatever the value's own conversion raises
            return BadOutput(f"output `{name}` is no array: {describe(error)}")
    return arrays


def _arguments(function: BatchFunction, inputs: Inputs) -> dict[str, Any]:
    if not function.torch:
        return dict(inputs)
    import torch

    # Tensors share the arrays' memory, which torch wants writable.
    return {
        name: array if array.dtype.kind == "O" else torch.from_numpy(array if array.flags.writeable else array.copy())
        for name, array in inputs.items()
    }


def _all(requests: Sequence[Inputs], message: str) -> list[Outcome]:
    return [BadOutput(message) for _ in requests]


def _answer(answer: Any) -> Outcome:
    if isinstance(answer, KaskadeError):
        return answer
    if not isinstance(answer, Mapping):
        return BadOutput(f"an answer is {type(answer).__name__}; it must be a map of outputs")
    outputs = _arrays(answer)
    if isinstance(outputs, BadOutput):
        return outputs
    given = outputs.pop("confidence", None)
    error = _check_outputs(outputs, 0, None)
    if error is not None:
        return error
    if given is None:
        return Answer(outputs)
    if given.size != 1 or given.dtype.kind not in _NUMBERS:
        return BadOutput(f"the confidence is {given.dtype} of shape {list(given.shape)}; it must be one number")
    return _with_confidence(outputs, float(given.ravel()[0]))


def _split(outputs: dict[str, Array], batch: int) -> list[Outcome]:
    """Returns the rows of outputs whose first dimension is the batch."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != batch:
            message = f"output `{name}` has shape {list(array.shape)}; its first dimension must be the batch, {batch}"
            return [BadOutput(message) for _ in range(batch)]
    given = outputs.pop("confidence", None)
    if given is not None and (given.size != batch or given.dtype.kind not in _NUMBERS):
        message = f"output `confidence` is {given.dtype} of shape {list(given.shape)}; it must have one number per request"
        return [BadOutput(message) for _ in range(batch)]
    # One pass over the whole array; rows are searched only if there is something to find.
    unsound = {
        name: ~np.isfinite(array).reshape(batch, -1).all(axis=1)
        for name, array in outputs.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    }
    outcomes: list[Outcome] = []
    for row in range(batch):
        # A text alone is an array, too.
        values = {name: array[row] if array.ndim > 1 else array[row : row + 1].reshape(()) for name, array in outputs.items()}
        error = _check_outputs(values, row, unsound)
        if error is not None:
            outcomes.append(error)
        elif given is None:
            outcomes.append(Answer(values))
        else:
            outcomes.append(_with_confidence(values, float(given.reshape(batch)[row])))
    return outcomes


def _check_outputs(outputs: dict[str, Array], row: int, unsound: dict[str, Any] | None) -> BadOutput | None:
    if not outputs:
        return BadOutput("the model returned no output")
    for name, array in outputs.items():
        if array.size == 0:
            return BadOutput(f"output `{name}` is empty")
        if unsound is None:
            bad = array.dtype.kind == "f" and not np.isfinite(array).all()
        else:
            bad = name in unsound and bool(unsound[name][row])
        if bad:
            beyond = ", or a number beyond the range of FP32" if name in _FP32_OUTPUTS else ""
            return BadOutput(f"output `{name}` holds NaN or an infinity{beyond}")
    return None


def _with_confidence(outputs: dict[str, Array], confidence: float) -> Outcome:
    if not 0.0 <= confidence <= 1.0:
        return BadOutput(f"the confidence is {confidence}; it must be in [0, 1]")
    return Answer(outputs, confidence)
