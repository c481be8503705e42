"""`headrace bench replay`: the systems that it measures, each a server, its feeders and one drawer, all processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.bench.processes import Child, Children
from headrace.bench.replay_load import Load
from headrace.bench.report import DamagedError

Figures = dict[str, Any]


@dataclass(frozen=True)
class Count:
    """What a system has done so far."""

    inserted: int
    """Items."""
    drawn: int
    sent: int
    """Bytes of the feeders' connections, to the server."""
    received: int
    """Bytes of the drawer's connections, from the server."""
    cpu_s: float
    """Of all its processes."""
    fed_at: float
    drawn_at: float


@dataclass
class System:
    """One system with its load, running. Nothing is drawn, and so soon nothing is inserted, unless it is told to go."""

    name: str
    server: Child
    feeders: list[Child]
    drawer: Child

    def check(self, children: Children) -> None:
        """Waits for its first batch. DamagedError if it is not of items that were fed."""
        if not self.drawer.answer(meanwhile=children.check)["intact"]:
            raise DamagedError(f"{self.name}: the items that were drawn are not those that were fed")

    def go(self) -> None:
        self._ask(self.drawer, go=True)

    def pause(self) -> None:
        self._ask(self.drawer)

    def count(self) -> Count:
        """It goes on meanwhile."""
        drawn = self._ask(self.drawer, go=True)
        fed = [self._ask(feeder) for feeder in self.feeders]
        return Count(
            inserted=sum(facts["items"] for facts in fed),
            drawn=drawn["items"],
            sent=sum(facts["sent"] for facts in fed),
            received=drawn["received"],
            cpu_s=self.server.cpu_s() + sum(facts["cpu_s"] for facts in (drawn, *fed)),
            fed_at=fed[0]["at"],
            drawn_at=drawn["at"],
        )

    @staticmethod
    def _ask(child: Child, **order: Any) -> dict[str, Any]:
        child.order(**order)
        return child.answer()


@dataclass
class Measured:
    """What a system did, slice by slice."""

    slices: list[tuple[Count, Count]] = field(default_factory=list)
    """At the start of each, and at its end."""

    @property
    def samples_per_s(self) -> float:
        return self._sum("drawn") / self._sum("drawn_at")

    @property
    def samples_per_s_by_slice(self) -> list[float]:
        return [(after.drawn - before.drawn) / (after.drawn_at - before.drawn_at) for before, after in self.slices]

    def figures(self, load: Load) -> Figures:
        inserted, drawn, cpu_s = self._sum("inserted"), self._sum("drawn"), self._sum("cpu_s")
        return {
            "inserts_per_s": inserted / self._sum("fed_at"),
            "samples_per_s": self.samples_per_s,
            "batches_per_s": self.samples_per_s / load.batch_size,
            "bytes_in_per_item": self._sum("sent") / max(inserted, 1),
            "bytes_out_per_item": self._sum("received") / max(drawn, 1),
            "cpu_us_per_sample": 1e6 * cpu_s / max(drawn, 1),
            "cores": cpu_s / self._sum("drawn_at"),
        }

    def _sum(self, name: str) -> float:
        return float(sum(getattr(after, name) - getattr(before, name) for before, after in self.slices))
