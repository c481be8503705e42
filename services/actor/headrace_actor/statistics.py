"""What an actor gathers for running normalisation: moments of what its slots saw and of their discounted returns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.agents.agent import Agent
from headrace.config_sections import AgentConfig, ModelConfig
from headrace.envs.spaces import Spaces
from headrace.moments import Moments
from headrace.normalization import DISCOUNTED_RETURNS, OBSERVATIONS, STATISTICS, Leaf, normalized_leaves, size_of
from headrace.rpc.v1 import learner_pb2
from headrace.unroll import Flags, Seen, observation_field

_BUFFER_BYTES = 1 << 20
_MOST_TICKS = 64


class Statistics:
    """Gathers since the last `take`. `seen` and then `rewarded` are for the stepping thread at each tick, all else for
    any thread.

    A tick costs little more than copies of what there is of it: it is counted with many others at a time.
    """

    def __init__(self, slots: int, leaves: Mapping[str, Leaf], rewards: AgentConfig | None) -> None:
        """leaves: of the observation that are normalised, none if there are none. rewards: the settings by which
        returns are discounted and rewards clipped; None: returns are not gathered."""
        size = size_of(leaves)
        ticks = min(max(_BUFFER_BYTES // (4 * slots * max(size, 1)), 1), _MOST_TICKS)
        self._lock = threading.Lock()
        self._columns = {observation_field(path): leaf.columns for path, leaf in leaves.items()}
        self._rewards = rewards
        self._carried = np.zeros(slots)  # of the discounted returns into the next tick
        # Tick by tick, of which the first `_counted` are in the moments and the first `_ticks` are complete:
        self._observations = np.empty((ticks, slots, size), np.float32)
        self._returns = np.empty((ticks, slots))
        self._valid = np.empty((ticks, slots), np.bool_)
        self._ticks = self._counted = 0
        self._moments: dict[str, Moments] = {}
        if leaves:
            self._moments[OBSERVATIONS] = Moments.none(size)
        if rewards is not None:
            self._moments[DISCOUNTED_RETURNS] = Moments.none(1)

    def seen(self, seen: Seen) -> None:
        """What the slots see at a tick, as the network gets it."""
        rows = self._observations[self._ticks]
        for field, columns in self._columns.items():
            rows[:, columns] = seen[field].reshape(len(rows), -1)

    def rewarded(self, reward: npt.NDArray[np.float32], valid: Flags, ended: Flags) -> None:
        """What followed, and where an episode ended with it, for learning at least. The tick counts where it is valid.

        reward: 0 where it is not.
        """
        tick, config = self._ticks, self._rewards
        if config is not None:
            if config.reward_clip is not None:
                reward = reward.clip(-config.reward_clip, config.reward_clip)
            returns = np.add(self._carried, reward, out=self._returns[tick])
            np.multiply(returns, config.discount, out=self._carried)
            np.copyto(self._carried, 0.0, where=ended)
        self._valid[tick] = valid
        with self._lock:
            self._ticks = tick + 1
            if self._ticks == len(self._valid):
                self._count()
                self._ticks = self._counted = 0

    def take(self) -> dict[str, Moments]:
        """What has been gathered, by name, where there is anything; it begins anew."""
        with self._lock:
            self._count()
            taken = self._moments
            self._moments = {name: Moments.none(len(moments.mean)) for name, moments in taken.items()}
        return {name: moments for name, moments in taken.items() if moments.count}

    def give_back(self, taken: Mapping[str, Moments]) -> None:
        """What was taken did not arrive: the next `take` has it again."""
        with self._lock:
            for name, moments in taken.items():
                self._moments[name] = self._moments[name].merged(moments)

    def fill(self, request: learner_pb2.ReportRequest) -> None:
        """Takes, and puts it into a report."""
        for name, moments in self.take().items():
            mean, m2 = moments.to_bytes()
            getattr(request, name).CopyFrom(learner_pb2.Moments(count=moments.count, mean=mean, m2=m2))

    def recover(self, request: learner_pb2.ReportRequest) -> None:
        """Gives back what was put into a report that nobody booked."""
        for name in STATISTICS:
            if request.HasField(name):
                told = getattr(request, name)
                size = len(told.mean) // 8
                self.give_back({name: Moments.from_bytes(told.count, told.mean, told.m2, size)})

    def _count(self) -> None:
        """Brings the moments up to the last complete tick."""
        ticks = slice(self._counted, self._ticks)
        self._counted = self._ticks
        valid = self._valid[ticks]
        gathered: dict[str, npt.NDArray[Any]] = {
            OBSERVATIONS: self._observations[ticks],
            DISCOUNTED_RETURNS: self._returns[ticks, :, None],
        }
        for name, before in self._moments.items():
            rows = gathered[name]
            rows = rows.reshape(-1, rows.shape[-1]) if valid.all() else rows[valid]
            with np.errstate(invalid="ignore"):
                moments = Moments.of(rows)
            if not np.isfinite(moments.m2).all():  # an environment's float64 may be too large for float32
                moments = Moments.of(rows[np.isfinite(rows).all(axis=1)])
            self._moments[name] = before.merged(moments)


def make_statistics(model: ModelConfig, agent: Agent[Any], spaces: Spaces, slots: int) -> Statistics | None:
    """What is to be gathered by the run's configuration; None: nothing."""
    leaves = normalized_leaves(spaces.observations) if model.normalize_observations else {}
    config = agent.config
    rewards = config if isinstance(config, AgentConfig) and config.normalize_rewards else None
    return Statistics(slots, leaves, rewards) if leaves or rewards else None
