"""File descriptors: as many as a process may have, and how many of them the connections to one port may take."""

from __future__ import annotations

import resource

MAX_CONNECTIONS = 4096  # to one port; an actor takes one of replay's and one of the learner's
_ENOUGH = 1 << 16


def raise_limit() -> None:
    """Takes what the administrator allows: a usual session begins with 1024, which a thousand peers use up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def most_connections() -> int:
    """Most connections to one port. No service has more than three, so that a quarter of all is left for the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft // 4))
