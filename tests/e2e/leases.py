"""The leases that actors say they have, in their logs."""

from __future__ import annotations

import json

from docker.models.containers import Container


def leases_of(actor: Container) -> list[int]:
    """One for each time that it joined, over restarts of the container, in order."""
    told = [json.loads(line)["fields"] for line in actor.logs().decode().splitlines()]
    return [int(fields["lease"]) for fields in told if "lease" in fields]


def lease_of(actor: Container) -> int:
    """The one that it joined with last."""
    return leases_of(actor)[-1]
