"""The subjects of an app. No other module formats one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import Malformed

GROUP = "q"
"""Queue group of the ingresses and of the replicas of a stage."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_token(what: str, name: str) -> str:
    """Returns `name` if it is one token of a subject; raises `Malformed` otherwise."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise Malformed(f"the {what}'s name is {name!r}; use 1 to 64 letters, digits, `-` and `_`")
    return name


def token_from(text: str) -> str:
    """Makes a token from arbitrary text, such as a host name: other characters become `-`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)[:64] or "-"


def check_request_id(request_id: str) -> str:
    """Returns a request id if it is valid: 1 to 128 visible ASCII characters. Raises `Malformed` otherwise."""
    if not isinstance(request_id, str):
        raise Malformed(f"the request's id is {request_id!r}; it must be a text")
    if not 1 <= len(request_id) <= 128 or not all("!" <= character <= "~" for character in request_id):
        raise Malformed(f"header Kaskade-Request-Id is {request_id[:64]!r}; it must be 1 to 128 visible ASCII characters")
    return request_id


def key(request_id: str) -> str:
    """Returns the token of a request id: other bytes are `=` and two hexadecimal digits."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"=%02x" % byte[0][0], request_id.encode()).decode()


@dataclass(frozen=True)
class App:
    """An app's name and its subjects."""

    name: str

    def __post_init__(self) -> None:
        check_token("app", self.name)

    @property
    def infer(self) -> str:
        """Requests that are answered to their reply subject."""
        return f"kaskade.{self.name}.infer"

    @property
    def submit(self) -> str:
        """Durable requests."""
        return f"kaskade.{self.name}.submit"

    @property
    def cancel(self) -> str:
        """Cancellations from clients."""
        return f"kaskade.{self.name}.cancel"

    @property
    def feedback(self) -> str:
        """The right answers to requests, known later."""
        return f"kaskade.{self.name}.feedback"

    def stage(self, stage: str) -> str:
        """Any replica of a stage."""
        return f"kaskade.{self.name}.stage.{check_token('stage', stage)}"

    def replica(self, replica: str) -> str:
        """One replica."""
        return f"kaskade.{self.name}.replica.{check_token('replica', replica)}"

    def beat(self, actor: str) -> str:
        """Heartbeats of one actor."""
        return f"kaskade.{self.name}.beat.{check_token('actor', actor)}"

    @property
    def ingresses(self) -> str:
        """The states of all ingresses."""
        return f"kaskade.{self.name}.ingress.*"

    @property
    def stage_cancel(self) -> str:
        """Requests of an ingress that are cancelled or expired."""
        return f"kaskade.{self.name}.stage_cancel"

    def result_query(self, request_id: str) -> str:
        """The JetStream subject that returns the result of a durable request."""
        return f"$JS.API.DIRECT.GET.kaskade-{self.name}-results.kaskade.{self.name}.result.{key(request_id)}"
