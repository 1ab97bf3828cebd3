"""Typed errors: one exception per code of Kaskade.

`docs/reference/errors.md` explains every code. `retryable` says whether the same request, sent again after a moment,
may succeed.
"""

from __future__ import annotations

from typing import ClassVar


class KaskadeError(Exception):
    """An error with a stable code. Catch this class to catch all of them."""

    code: ClassVar[str] = "KSK0017"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Malformed(KaskadeError):
    """The message cannot be decoded."""

    code, status = "KSK0001", 400


class TooLarge(KaskadeError):
    """The message is too large."""

    code, status = "KSK0002", 413


class InvalidInput(KaskadeError):
    """The inputs do not match the model's signature."""

    code, status = "KSK0003", 422


class UnknownApp(KaskadeError):
    """No process serves that app or stage."""

    code, status = "KSK0004", 404


class Expired(KaskadeError):
    """The time budget ran out."""

    code, status = "KSK0005", 504


class Overloaded(KaskadeError):
    """No capacity for another request."""

    code, status, retryable = "KSK0006", 429, True


class Unavailable(KaskadeError):
    """No replica can run this stage now."""

    code, status, retryable = "KSK0007", 503, True


class ModelFailed(KaskadeError):
    """The model failed on this request."""

    code, status = "KSK0008", 500


class BadOutput(KaskadeError):
    """The model's output is invalid."""

    code, status = "KSK0009", 500


class Draining(KaskadeError):
    """This process is shutting down."""

    code, status, retryable = "KSK0010", 503, True


class NotCalibrated(KaskadeError):
    """A stage exits by confidence, but its variant has no calibration."""

    code, status = "KSK0011", 503


class BrokerUnavailable(KaskadeError):
    """No NATS server answers at that address."""

    code, status, retryable = "KSK0012", 503, True


class BrokerRefused(BrokerUnavailable):
    """The server refuses the credentials, its certificate is not accepted, or the address or a file is wrong.

    It has the code of `BrokerUnavailable`, but a retry does not help.
    """

    retryable = False


class BrokerTooOld(KaskadeError):
    """The NATS server is older than 2.10."""

    code, status = "KSK0013", 503


class NeedsJetStream(KaskadeError):
    """The operation requires JetStream, which this broker does not have."""

    code, status = "KSK0014", 503


class PlanRefused(KaskadeError):
    """The plan is invalid."""

    code, status = "KSK0015", 422


class StaleEpoch(KaskadeError):
    """Another writer stored a newer epoch first."""

    code, status, retryable = "KSK0016", 503, True


class Internal(KaskadeError):
    """Internal error."""

    code, status = "KSK0017", 500


class Dropped(KaskadeError):
    """The request was dropped early because it would have been late."""

    code, status = "KSK0018", 504


class Cancelled(KaskadeError):
    """The client cancelled the request."""

    code, status = "KSK0019", 499


class ReplicasLost(KaskadeError):
    """Every replica that had the request was lost."""

    code, status, retryable = "KSK0020", 503, True


class NotDurable(KaskadeError):
    """This app accepts no durable requests."""

    code, status = "KSK0021", 501


class NoReply(KaskadeError):
    """The client received no reply in time."""

    code, status, retryable = "KSK0022", 504, True


class Unreadable(KaskadeError):
    """A message between two parts of the service could not be read."""

    code, status, retryable = "KSK0023", 503, True


class EndpointUnavailable(KaskadeError):
    """The endpoint behind a remote variant does not answer."""

    code, status, retryable = "KSK0024", 503, True


class EndpointRefused(KaskadeError):
    """The endpoint behind a remote variant refused the request."""

    code, status = "KSK0025", 503


class TooLong(KaskadeError):
    """The request is longer than the model's context."""

    code, status = "KSK0026", 400


class NotPermitted(KaskadeError):
    """The broker does not permit the client to send this, or to receive the reply."""

    code, status = "KSK0027", 403


BY_CODE: dict[str, type[KaskadeError]] = {kind.code: kind for kind in KaskadeError.__subclasses__()}
"""The exception of every code."""


def describe(error: BaseException) -> str:
    """Returns the type and the text of any exception."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001, whatever the exception's own `__str__` raises
        return type(error).__name__


def from_code(code: str | None, message: str) -> KaskadeError:
    """Returns the exception of a code; `Internal`, which then names the code, if this version does not know it."""
    if code is None:
        return Internal(message)
    kind = BY_CODE.get(code)
    return kind(message) if kind else Internal(f"{code}: {message}")
