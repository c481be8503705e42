"""Steps the environments and makes items of what happens. A plain object: the service and --serial step it alike."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from headrace.agents.agent import Agent
from headrace.agents.unrolling import Head
from headrace.envs.seeds import policy_generator, slot_seeds
from headrace.envs.slots import Slots
from headrace.envs.transition import Fault
from headrace.errors import MisbehavedError
from headrace.models.policy import Policy, PolicyOutput
from headrace.telemetry.labels import EnvFault
from headrace.telemetry.logs import warn_every
from headrace.unroll import Flags, Seen
from headrace.wire.items import Item
from headrace_actor.statistics import Statistics

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Weights:
    """Parameters, as the policy decoded them, and the packed (epoch, version) they were published as."""

    parameters: Any
    version: int
    published_at: float  # Unix time, seconds
    return_scale: float = 1.0  # see Agent.return_scale


@dataclass
class Observers:
    """Callbacks for the metrics, called from the stepping thread."""

    stepped: Callable[[float, float, int], None] = lambda inference_s, env_s, valid: None
    episode: Callable[[float, int, bool], None] = lambda return_, length, judged: None
    applied: Callable[[Weights, float], None] = lambda weights, seconds: None
    failed: Callable[[EnvFault, int], None] = lambda reason, abandoned: None  # and the unrolls in the making it cost


@dataclass
class Identity:
    """What this actor's seeds come from."""

    run_seed: int
    lease: int
    incarnation: int


@dataclass
class Collector:
    """N environment slots, one policy, and the algorithm that says how they explore and what becomes of their ticks.

    newest: returns the newest weights known, or None before the first; asked at every tick.
    statistics: gathers what normalisation goes by; None where nothing is normalised.
    """

    slots: Slots
    policy: Policy
    agent: Agent[Any]
    identity: Identity
    newest: Callable[[], Weights | None]
    observers: Observers = field(default_factory=Observers)
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        count = self.slots.num_slots
        identity = self.identity
        self._random = policy_generator(identity.run_seed, identity.lease, identity.incarnation)
        self._weights: Weights | None = None
        self._explorer = self.agent.explorer(identity.lease * count + np.arange(count))
        self._unroller = self.agent.unroller(count)
        seeds = slot_seeds(identity.run_seed, identity.lease, identity.incarnation, count)
        self._seen = self._attempt(lambda: self.slots.reset(seeds))
        self._first = np.ones(count, np.bool_)
        self._valid = np.ones(count, np.bool_)
        self._previous_action = self.slots.spaces.actions.zeros(count)
        self._previous_reward = np.zeros(count, np.float32)
        self._state = self.policy.initial_state(count)
        self._return = np.zeros(count, np.float64)  # of the running episodes
        self._length = np.zeros(count, np.int64)

    def collect(self, stopping: Callable[[], bool] = lambda: False) -> list[Item] | None:
        """Steps until items are complete, and returns them, `most_items` at most. None if `stopping` said so meanwhile.

        Needs weights: call it once `newest` has some.
        """
        items: list[Item] = []
        while not items:
            if stopping():
                return None
            self._tick()
            items = self._unroller.finished(self._seen, self._first, self._peek)
        return [item if math.isfinite(item.priority) else _never_drawn(item) for item in items]

    @property
    def most_items(self) -> int:
        return self._unroller.most_items

    def _tick(self) -> None:
        self._apply(self.newest())
        assert self._weights is not None
        head = Head(self._state, self._previous_action, self._previous_reward)
        seen = self._unroller.observe(self._seen, self._first, head)
        started = time.perf_counter()
        output, state = self.policy.step(seen, self._first, self._previous_action, self._previous_reward, self._state)
        action, behaviour = self._explorer.act(output, self._random)
        inferred = time.perf_counter()
        valid = self._valid
        if self.statistics is not None:
            self.statistics.seen(seen)
        self._unroller.act(action, behaviour, valid, self._weights.version)

        transition = self._attempt(lambda: self.slots.step(action))
        stepped = time.perf_counter()
        self._seen = transition.seen
        if transition.broken is not None:
            self._break(transition.broken, transition.faults)
            valid = valid & ~transition.broken
        # At an invalid tick the environment ignored the action and reset: nothing followed from it.
        reward = np.where(valid, transition.reward, np.float32(0))
        terminated = transition.terminated & valid
        truncated = transition.truncated & valid
        ended = terminated | truncated
        if transition.life_lost is not None:  # for learning only: no reset follows, and the episode's statistics go on
            terminated = terminated | (transition.life_lost & valid)
        self._unroller.consequence(reward, terminated, truncated)
        if self.statistics is not None:
            self.statistics.rewarded(reward, valid, terminated | truncated | ~valid)
        self._count(reward, valid, ended)
        self._first, self._valid = ~valid, ~ended
        self._state, self._previous_action, self._previous_reward = state, action, reward
        self.observers.stepped(inferred - started, stepped - inferred, int(np.count_nonzero(valid)))

    def abandon(self, reason: EnvFault) -> None:
        """The environments of this process are at their end, and so is whatever was in the making."""
        everything = np.ones(self.slots.num_slots, np.bool_)
        self.observers.failed(reason, self._unroller.drop(everything))

    def _attempt(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except MisbehavedError as error:
            self.abandon(error.reason)
            raise

    def _break(self, broken: Flags, faults: Sequence[Fault]) -> None:
        """What these slots were at is dropped: their next tick begins an episode."""
        for slot, reason in faults:
            only = np.zeros(len(broken), np.bool_)
            only[slot] = True
            self.observers.failed(reason, self._unroller.drop(only))
        self._unroller.drop(broken)
        self._return[broken] = 0.0
        self._length[broken] = 0

    def _peek(self, seen: Seen) -> PolicyOutput:
        """What the policy says of what is seen next, which stays the next."""
        return self.policy.step(seen, self._first, self._previous_action, self._previous_reward, self._state)[0]

    def _apply(self, weights: Weights | None) -> None:
        """Swaps newer weights in, whole and between two ticks."""
        if weights is None or weights is self._weights:
            return
        if self._weights is not None and weights.version <= self._weights.version:
            return
        started = time.perf_counter()
        self.policy.load(weights.parameters)
        self.agent.return_scale = weights.return_scale
        self._weights = weights
        self.observers.applied(weights, time.perf_counter() - started)

    def _count(self, reward: np.ndarray[tuple[int], np.dtype[np.float32]], valid: Flags, ended: Flags) -> None:
        """Episode statistics, on raw rewards and valid ticks."""
        self._return += reward
        self._length += valid
        if ended.any():
            for slot in np.flatnonzero(ended):
                judged = bool(self._explorer.judged[slot])
                self.observers.episode(float(self._return[slot]), int(self._length[slot]), judged)
            self._return[ended] = 0.0
            self._length[ended] = 0


def _never_drawn(item: Item) -> Item:
    """An item whose priority is not finite, since a number from its environment is not: no update could use it."""
    warn_every(logger, "priority", 10, "an item of priority %g is not to be drawn: is a reward finite?", item.priority)
    return item._replace(priority=0.0)
