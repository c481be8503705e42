"""The actors of a run: leases, what they reported, and the episodes they finished."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.config import StopConfig
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import EnvFault
from headrace_learner.ledgers import ActorLedger

_INCARNATIONS_PER_EPOCH = 1 << 16
MAX_REMEMBERED = 4096  # actors that left or were lost, so that one that comes back is not counted twice
CUT_OFF_S = 1.0  # an actor that lives subscribes again, or reports, sooner than this


@dataclass(frozen=True)
class EnvFaults:
    """How often environments broke, by reason, and the unrolls in the making it cost."""

    failures: Counter[str] = field(default_factory=Counter)
    abandoned: Counter[str] = field(default_factory=Counter)


@dataclass
class Member:
    """An actor process that holds a lease."""

    lease: int
    incarnation: int
    heard_at: float
    sequence: int = 0
    env_steps: int = 0
    ledger: ActorLedger = field(default_factory=ActorLedger)
    faults: EnvFaults = EnvFaults()
    described: bool = False  # its environment is the run's
    cut_off_at: float | None = None  # when its stream of weights ended; None: it has one, or had none yet


class Roster:
    """Who takes part. Thread-safe; never waits.

    A lease is the lowest free index, kept by reporting. It is advice: an actor whose lease expired is welcome back.
    Whoever joins may have the lease of an actor whose stream of weights ended and that was not heard of since: so those
    that replace killed actors at once take over their leases.
    """

    def __init__(
        self,
        epoch: int,
        lease_s: float,
        stop: StopConfig,
        metrics: LearnerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epoch = epoch
        self._lease_s = lease_s
        self._stop = stop
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._members: dict[bytes, Member] = {}
        self._incarnations: Counter[int] = Counter()
        self._departed = ActorLedger()
        self._departed_ids: deque[bytes] = deque(maxlen=MAX_REMEMBERED)
        self._departed_steps = 0
        self._streams: Counter[bytes] = Counter()  # of weights, by actor
        self._lost: OrderedDict[bytes, Member] = OrderedDict()  # lease expired; they may come back
        self._returns: deque[float] = deque(maxlen=stop.episodes)
        self.episodes = 0
        self.faults = EnvFaults()  # of all actors of this epoch
        self.solved_at: float | None = None  # clock at which the goal was reached first

    def join(self, actor: bytes, wanted: int | None) -> Member:
        """A lease for `actor`: the one it has, the one it had before (if free), or the lowest free one."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            member = self._members.get(actor)
            if member is None:
                taken = {other.lease for other in self._members.values() if not _is_gone(other, now)}
                lease = wanted if wanted is not None and wanted not in taken else None
                if lease is None:
                    lease = next(index for index in range(len(taken) + 1) if index not in taken)
                for holder in [a for a, other in self._members.items() if other.lease == lease]:
                    self._lose(holder)
                self._incarnations[lease] += 1
                incarnation = self._epoch * _INCARNATIONS_PER_EPOCH + self._incarnations[lease]
                member = self._lost.pop(actor, None) or Member(lease, incarnation, now)
                member.lease, member.cut_off_at = lease, None
                self._members[actor] = member
            member.heard_at = now
            self._metrics.actors.set(len(self._members))
            return member

    def subscribed(self, actor: bytes) -> None:
        """A stream of weights to the actor has begun."""
        with self._lock:
            self._streams[actor] += 1
            if (member := self._members.get(actor)) is not None:
                member.cut_off_at = None

    def unsubscribed(self, actor: bytes) -> None:
        """A stream of weights to the actor has ended: the process may have, too."""
        with self._lock:
            self._streams[actor] -= 1
            if self._streams[actor] > 0:
                return
            del self._streams[actor]
            if (member := self._members.get(actor)) is not None:
                member.cut_off_at = self._clock()

    def described(self, actor: bytes) -> None:
        """The actor's environment is the run's: from now on its statistics count."""
        with self._lock:
            if (member := self._members.get(actor)) is not None:
                member.described = True

    def report(
        self,
        actor: bytes,
        sequence: int,
        ledger: ActorLedger,
        env_steps: int,
        returns: Sequence[float],
        *,
        leaving: bool,
        faults: EnvFaults = EnvFaults(),
        statistics: Callable[[], object] | None = None,
    ) -> bool:
        """Books a report. False: this actor has no lease (any more) and should join again.

        statistics: called to take those of the report, if there are any, where it is booked, and not a second time.
        """
        with self._lock:
            member = self._members.get(actor)
            if member is None:
                return actor in self._departed_ids
            now = self._clock()
            member.heard_at = now
            if sequence > member.sequence:
                member.sequence = sequence
                self._metrics.env_steps.inc(max(0, env_steps - member.env_steps))
                member.env_steps = env_steps
                member.ledger = ledger
                self._broke(member, faults)
                self._finished(returns, now)
                if statistics is not None and member.described:
                    statistics()
                elif statistics is not None:
                    self._metrics.statistics_refused.inc()
            if leaving:
                del self._members[actor]
                self._departed_ids.append(actor)
                self._depart(member.env_steps, member.ledger)
                self._metrics.actors.set(len(self._members))
            return True

    def expire(self) -> None:
        """Takes the lease of actors that did not report in time. Call it now and then."""
        with self._lock:
            self._expire(self._clock())

    @property
    def actors(self) -> int:
        return len(self._members)

    @property
    def mean_return(self) -> float | None:
        """Mean raw return of the last episodes; None before the first."""
        with self._lock:
            return sum(self._returns) / len(self._returns) if self._returns else None

    @property
    def averaged_episodes(self) -> int:
        """How many episodes `mean_return` averages; at most stop.episodes."""
        return len(self._returns)

    @property
    def env_steps(self) -> int:
        """Valid ticks that the actors of this epoch reported."""
        with self._lock:
            here = (*self._members.values(), *self._lost.values())
            return self._departed_steps + sum(member.env_steps for member in here)

    def ledger(self, *, drained: bool = False) -> ActorLedger:
        """Sum over all actors of this epoch. What a lost one still held is unknown.

        drained: all actors have been stopped, so one that did not say goodbye is lost as well.
        """
        with self._lock:
            total = ActorLedger()
            total.add(self._departed)
            lost = [*self._lost.values(), *(self._members.values() if drained else ())]
            for member in lost:
                total.add(_lost(member.ledger))
            for member in () if drained else self._members.values():
                total.add(member.ledger)
            return total

    def returns(self) -> list[float]:
        """The returns that `mean_return` averages, for a checkpoint."""
        with self._lock:
            return list(self._returns)

    def restore(self, returns: Sequence[float], episodes: int) -> None:
        """Takes over what a checkpoint held."""
        with self._lock:
            self._returns.extend(returns)
            self.episodes = episodes
            self._show_mean()

    def _finished(self, returns: Sequence[float], now: float) -> None:
        self.episodes += len(returns)
        self._metrics.episodes.inc(len(returns))
        goal = self._stop.return_
        for return_ in returns:
            if self.solved_at is not None:
                break  # the mean that reached the goal stays: what actors finish while they are stopped is not in it
            self._returns.append(return_)
            if goal is None or len(self._returns) < self._stop.episodes:
                continue
            if sum(self._returns) / len(self._returns) >= goal:
                self.solved_at = now
        self._show_mean()

    def _show_mean(self) -> None:
        self._metrics.episodes_averaged.set(len(self._returns))
        if self._returns:
            self._metrics.episode_return_mean.set(sum(self._returns) / len(self._returns))

    def _broke(self, member: Member, faults: EnvFaults) -> None:
        """Books what is new. Reasons that are none of EnvFault come from no actor of ours."""
        for reason in EnvFault:
            for told, before, total, metric in (
                (faults.failures, member.faults.failures, self.faults.failures, self._metrics.env_failures),
                (faults.abandoned, member.faults.abandoned, self.faults.abandoned, self._metrics.unrolls_abandoned),
            ):
                new = max(0, told[reason] - before[reason])
                total[reason] += new
                metric.labels(reason).inc(new)
        member.faults = faults

    def _expire(self, now: float) -> None:
        for actor in [a for a, member in self._members.items() if now - member.heard_at > self._lease_s]:
            self._lose(actor)
        self._metrics.actors.set(len(self._members))

    def _lose(self, actor: bytes) -> None:
        self._lost[actor] = self._members.pop(actor)
        self._metrics.leases_expired.inc()
        if len(self._lost) > MAX_REMEMBERED:
            _, member = self._lost.popitem(last=False)
            self._depart(member.env_steps, _lost(member.ledger))

    def _depart(self, env_steps: int, ledger: ActorLedger) -> None:
        self._departed_steps += env_steps
        self._departed.add(ledger)


def _is_gone(member: Member, now: float) -> bool:
    """Cut off for a while, and not heard of since."""
    cut_off_at = member.cut_off_at
    return cut_off_at is not None and member.heard_at <= cut_off_at < now - CUT_OFF_S


def _lost(ledger: ActorLedger) -> ActorLedger:
    """A lost actor's last report: what became of what it held is unknown."""
    return replace(ledger, held=0, unknown=ledger.held)
