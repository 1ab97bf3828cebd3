"""How long a leaving replica takes requests: a pure decision over the states of ingresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEAST = 0.3
"""Shortest wait: three heartbeats, so that every process has heard of the leave, seconds."""
MOST = 1.0
"""Longest wait for an ingress that goes on sending, seconds."""


@dataclass
class Senders:
    """The ingresses that still choose a leaving replica, as far as their newest states show."""

    replica: str
    sending: set[str] = field(default_factory=set)

    def hear(self, state: dict[str, Any]) -> None:
        """Records an `IngressState`. A state without the name of its ingress is ignored."""
        ingress = state.get("ingress")
        if not isinstance(ingress, str):
            return
        if state.get("gone") or self.replica in (state.get("unavailable") or ()):
            self.sending.discard(ingress)
        else:
            self.sending.add(ingress)

    def wait(self, waited: float) -> float:
        """Returns how much longer to take requests after `waited` seconds; 0 if not at all."""
        return max((MOST if self.sending else LEAST) - waited, 0.0)
