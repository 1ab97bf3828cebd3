"""Plan files: which replicas Python serves."""

from __future__ import annotations

import json
from pathlib import Path

from .subjects import check_token

WORKER = "python"
"""The worker of replicas that Python serves. No process has this name, so none tries to load their models."""


def place(path: str | Path, variant: str, worker: str = WORKER) -> list[str]:
    """Moves the replicas of a variant in a plan file to a worker that no process has; returns their ids.

    A stage attached under one of these ids then takes the replica's place. Raises `ValueError` if the plan has none.
    """
    check_token("worker", worker)
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    moved = [replica for replica in plan["placement"] if replica["variant"] == variant]
    if not moved:
        names = sorted({replica["variant"] for replica in plan["placement"]})
        raise ValueError(f"{path} places no replica of `{variant}`; it places {', '.join(names)}")
    for replica in moved:
        replica["worker"] = worker
    Path(path).write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
    return [replica["id"] for replica in moved]
