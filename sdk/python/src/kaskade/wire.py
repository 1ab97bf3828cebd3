"""Messages and headers, as `docs/reference/wire.md` describes them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgpack
import numpy as np

from . import tensors
from .chunks import LARGEST_MESSAGE
from .errors import KaskadeError, Malformed, ModelFailed, from_code
from .tensors import Array

REQUEST_ID = "Kaskade-Request-Id"
BUDGET = "Kaskade-Budget-Us"
CHUNK = "Kaskade-Chunk"
PUSH = "Kaskade-Push"
PADDING = "Kaskade-Padding"
FAULT = "Kaskade-Fault"
TRACEPARENT = "traceparent"
SERVICE_ERROR = "Nats-Service-Error"
SERVICE_ERROR_CODE = "Nats-Service-Error-Code"
MESSAGE_ID = "Nats-Msg-Id"

HEADROOM = 1024
"""Bytes of the broker's `max_payload` reserved for headers."""
MAX_BUDGET = 3600.0
"""Longest budget, seconds."""
DEFAULT_STAGE_BUDGET = 30.0
"""Budget of a stage request without the header, seconds."""
MAX_VALUES = 1 << 20
"""Largest number of elements of an array or a map in a message."""

Headers = Mapping[str, str]

Parameter: TypeAlias = str | int | float | bool
"""A value of a request's parameter."""

_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_DIGITS = re.compile(r"[0-9]{1,10}")


def unpack(body: bytes) -> dict[str, Any]:
    """Decodes a MessagePack map with texts as keys; raises `Malformed`."""
    if len(body) > LARGEST_MESSAGE:
        raise Malformed(f"the message has {len(body)} bytes; at most {LARGEST_MESSAGE} are decoded")
    try:
        message = msgpack.unpackb(body, max_array_len=MAX_VALUES, max_map_len=MAX_VALUES)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise Malformed(f"the message is not valid MessagePack: {str(error) or type(error).__name__}") from None
    if not isinstance(message, dict):
        raise Malformed("the message is not a map")
    return message


def pack(message: Mapping[str, Any]) -> bytes:
    """Encodes a message; raises `Malformed` for what MessagePack cannot hold, such as integers of more than 64 bits."""
    try:
        packed: bytes = msgpack.packb(message)
    except (OverflowError, UnicodeEncodeError) as error:
        raise Malformed(f"the message cannot be encoded: {error}") from None
    return packed


def budget_header(budget: float) -> str:
    """Returns the value of `Kaskade-Budget-Us`; raises `Malformed` for more than an hour."""
    if isinstance(budget, str) or not 0 <= budget <= MAX_BUDGET:
        raise Malformed(f"the budget is {budget!r}; it must be between 0 and {MAX_BUDGET:.0f} s")
    return str(int(budget * 1e6))


def read_budget(headers: Headers | None) -> float:
    """Returns the remaining time of a stage request, seconds; 30 s if the header is missing or invalid."""
    text = headers.get(BUDGET) if headers else None
    if text is None or not _DIGITS.fullmatch(text):
        return DEFAULT_STAGE_BUDGET
    return min(int(text) / 1e6, MAX_BUDGET)


def trace_headers(traceparent: str | None) -> dict[str, str]:
    """Returns the header of a trace context: of `traceparent`, else of OpenTelemetry's current span.

    Without either there is none, and a trace begins at the ingress. Raises `Malformed` if `traceparent` is none.
    """
    if traceparent is None:
        traceparent = _current_span()
    elif not isinstance(traceparent, str) or not _TRACEPARENT.fullmatch(traceparent):
        raise Malformed(f"the traceparent is {traceparent!r}; it must be of the form 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")
    return {} if traceparent is None else {TRACEPARENT: traceparent}


def _current_span() -> str | None:
    # A program with a span has imported the package.
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return None
    context = opentelemetry.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def read_fault(headers: Headers | None) -> KaskadeError | None:
    """Returns the error in the headers of a reply; `None` for a good reply."""
    if not headers or SERVICE_ERROR_CODE not in headers:
        return None
    text = headers.get(SERVICE_ERROR, "")
    code = headers.get(FAULT)
    return from_code(code, text) if code else from_code(headers[SERVICE_ERROR_CODE], text)


def fault_of(value: Any) -> KaskadeError:
    """Returns the error of a field `error`: a text, or a map of `code` and `message`."""
    if isinstance(value, dict):
        message = str(value.get("message", ""))
        code = value.get("code")
        return from_code(str(code), message) if code else ModelFailed(message)
    return ModelFailed(str(value))


@dataclass(frozen=True)
class Cost:
    """Money, in the currency of the app's prices, and its source: `priced`, `measured` or `modelled`."""

    amount: float
    source: str = "priced"

    @classmethod
    def stated(cls, outputs: Mapping[str, Any]) -> Cost | None:
        """Returns the cost that the outputs `cost` and `cost_source` of a stage state; `None` if they state none."""
        try:
            amount = float(np.asarray(outputs["cost"]).reshape(-1)[0])
            source = np.asarray(outputs.get("cost_source", "priced")).reshape(-1)[0]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        name = source.decode(errors="replace") if isinstance(source, bytes) else str(source)
        known = name in ("priced", "measured", "modelled") and math.isfinite(amount) and amount >= 0
        return cls(amount, name) if known else None


@dataclass(frozen=True)
class Hop:
    """One stage that the request passed. Its cost is `None` if it is unknown."""

    stage: str
    wait_us: int = 0
    run_us: int = 0
    batch: int = 0
    cost: Cost | None = None


@dataclass(frozen=True)
class Branch:
    """The outcome of one branch of a pipeline: `outputs`, or an `error`."""

    branch: str
    stage: str = ""
    variant: str = ""
    confidence: float | None = None
    outputs: dict[str, Array] = field(default_factory=dict)
    error: KaskadeError | None = None


@dataclass(frozen=True)
class Reply:
    """An answer. `outputs` are arrays by name; those of datatype `BYTES` hold bytes."""

    outputs: dict[str, Array]
    id: str | None = None
    stage: str = ""
    variant: str = ""
    confidence: float | None = None
    hops: tuple[Hop, ...] = ()
    degraded: bool = False
    part: int | None = None
    """Number of the first token of a streamed part; `None` for the complete answer."""
    branches: tuple[Branch, ...] = ()

    def __getitem__(self, output: str) -> Array:
        return self.outputs[output]

    def text(self, output: str = "text") -> str:
        """Returns a `BYTES` output of one element as text."""
        return b"".join(self.outputs[output].ravel()).decode(errors="replace")


def decode_reply(body: bytes) -> Reply:
    """Decodes an `InferReply`; raises the error that the body holds in its place."""
    message = unpack(body)
    if "error" in message and "outputs" not in message:
        raise fault_of(message["error"])
    branches = message.get("branches") or ()
    if not isinstance(branches, (list, tuple)):
        raise Malformed("branches are a list")
    return Reply(
        outputs=tensors.decode_all(message.get("outputs", [])),
        id=message.get("id"),
        stage=str(message.get("stage", "")),
        variant=str(message.get("variant", "")),
        confidence=message.get("confidence"),
        hops=_hops(message.get("hops")),
        degraded=bool(message.get("degraded", False)),
        part=message.get("part"),
        branches=tuple(_branch(branch) for branch in branches),
    )


def _branch(branch: Any) -> Branch:
    if not isinstance(branch, dict):
        raise Malformed("a branch is a map")
    error = branch.get("error")
    return Branch(
        branch=str(branch.get("branch", "")),
        stage=str(branch.get("stage", "")),
        variant=str(branch.get("variant", "")),
        confidence=branch.get("confidence"),
        outputs=tensors.decode_all(branch.get("outputs") or []),
        error=None if error is None else fault_of(error),
    )


def _hops(hops: Any) -> tuple[Hop, ...]:
    if not isinstance(hops, list):
        return ()
    return tuple(
        Hop(
            str(hop.get("stage", "")), hop.get("wait_us", 0), hop.get("run_us", 0), hop.get("batch", 0), _cost(hop.get("cost"))
        )
        for hop in hops
        if isinstance(hop, dict)
    )


def _cost(cost: Any) -> Cost | None:
    if not isinstance(cost, dict) or not isinstance(cost.get("amount"), (int, float)):
        return None
    return Cost(float(cost["amount"]), str(cost.get("source", "")))


def encode_infer(inputs: Mapping[str, Any], request_id: str | None, parameters: Mapping[str, Any] | None) -> bytes:
    """Encodes an `InferRequest`; raises `Malformed`."""
    message: dict[str, Any] = {"inputs": tensors.encode_all(inputs)}
    if request_id is not None:
        message["id"] = request_id
    if parameters:
        message["parameters"] = {str(name): _scalar(name, value) for name, value in parameters.items()}
    return pack(message)


def _scalar(name: Any, value: Any) -> Parameter:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, int, float, bool)):
        return value
    raise Malformed(f"the parameter `{name}` is {type(value).__name__}; it must be a text, a number or a boolean")


def encode_feedback(request_id: str, label: Any) -> bytes:
    """Encodes a `Feedback` as JSON; raises `Malformed` for a label that is neither the number of a class nor a text."""
    if isinstance(label, np.generic):
        label = label.item()
    is_class = isinstance(label, int) and not isinstance(label, bool) and label >= 0
    if not is_class and not isinstance(label, str):
        raise Malformed(f"the label is {label!r}; it must be the number of a class or a text")
    if isinstance(label, str) and not tensors.is_text(label):
        raise Malformed(f"the label is {label!r}, which UTF-8 cannot hold")
    return json.dumps({"id": request_id, "label": label}).encode()


@dataclass(frozen=True)
class StageRequest:
    """One request for a stage. `inputs` have no batch dimension."""

    id: int
    ingress: str
    inputs: dict[str, Array]
    attempt: int = 0
    branch: Any = None
    epoch: int = 0
    gear: int = 0
    stage: str = ""
    hops: tuple[Any, ...] = ()


def decode_stage_request(body: bytes) -> StageRequest:
    """Decodes a `StageRequest`; raises `Malformed`."""
    message = unpack(body)
    try:
        request_id, ingress = message["id"], message["ingress"]
        inputs = message["inputs"]
    except KeyError as missing:
        raise Malformed(f"the request has no field {missing}") from None
    hops = message.get("hops") or ()
    if type(request_id) is not int or not isinstance(ingress, str) or not isinstance(hops, (list, tuple)):
        raise Malformed("the request's id, ingress or hops have the wrong type")
    return StageRequest(
        id=request_id,
        ingress=ingress,
        inputs=tensors.decode_all(inputs),
        attempt=message.get("attempt", 0),
        branch=message.get("branch"),
        epoch=message.get("epoch", 0),
        gear=message.get("gear", 0),
        stage=str(message.get("stage", "")),
        hops=tuple(hops),
    )


MAX_CANCELLED = 4096
"""Most requests in one `StageCancel`."""


def decode_stage_cancel(body: bytes) -> tuple[str, frozenset[int]]:
    """Decodes a `StageCancel`, the ingress and the numbers of its requests; raises `Malformed`."""
    message = unpack(body)
    ingress, ids = message.get("ingress"), message.get("ids")
    if not isinstance(ingress, str) or not isinstance(ids, (list, tuple)) or len(ids) > MAX_CANCELLED:
        raise Malformed("the message has no ingress, or no list of at most 4096 requests")
    if not all(type(number) is int for number in ids):
        raise Malformed("a request's id is not a number")
    return ingress, frozenset(ids)


def encode_done(
    request: StageRequest | None,
    replica: str,
    outcome: tuple[list[dict[str, Any]], float | None] | KaskadeError,
    hop: Hop | None = None,
) -> bytes:
    """Encodes a `StageReply`: the encoded outputs and the confidence of a request, or its error.

    Without a request, which could not be decoded, the reply subject names it.
    """
    message: dict[str, Any] = {"replica": replica}
    if request is not None:
        message["id"] = request.id
        message["attempt"] = request.attempt
        message["stage"] = request.stage
        if request.branch is not None:
            message["branch"] = request.branch
        hops = list(request.hops)
        if hop is not None:
            told: dict[str, Any] = {"stage": hop.stage, "wait_us": hop.wait_us, "run_us": hop.run_us, "batch": hop.batch}
            if hop.cost is not None:
                told["cost"] = {"amount": hop.cost.amount, "source": hop.cost.source}
            hops.append(told)
        message["hops"] = hops
    if isinstance(outcome, KaskadeError):
        # A model's error may have any text, such as a file name that is no UTF-8.
        text = str(outcome.message).encode(errors="backslashreplace").decode()
        message["error"] = {"code": outcome.code, "message": text}
    else:
        outputs, confidence = outcome
        message["outputs"] = outputs
        if confidence is not None:
            message["confidence"] = confidence
    return pack(message)
