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
    """Gathers since the last `take`. `seen` and `rewarded` are for the stepping thread, all else for any.

    Two ticks of N slots cost little more than two copies: what is copied is counted many ticks at a time.
    """

    def __init__(self, slots: int, leaves: Mapping[str, Leaf], rewards: AgentConfig | None) -> None:
        """leaves: of the observation that are normalised, none if there are none. rewards: the settings by which
        returns are discounted and rewards clipped; None: returns are not gathered."""
        self._lock = threading.Lock()
        self._leaves = {observation_field(path): leaf.columns for path, leaf in leaves.items()}
        self._rewards = rewards
        self._return = np.zeros(slots)
        self._gathered: dict[str, _Gathered] = {}
        if leaves:
            self._gathered[OBSERVATIONS] = _Gathered(slots, size_of(leaves), np.float32)
        if rewards is not None:
            self._gathered[DISCOUNTED_RETURNS] = _Gathered(slots, 1, np.float64)

    def seen(self, seen: Seen, valid: Flags) -> None:
        """What the slots see at a tick, as the network gets it; it counts where the tick is valid."""
        if not self._leaves:
            return
        with self._lock:
            rows = self._gathered[OBSERVATIONS].add(valid)
            for field, columns in self._leaves.items():
                rows[:, columns] = seen[field].reshape(len(rows), -1)

    def rewarded(self, reward: npt.NDArray[np.float32], valid: Flags, ended: Flags) -> None:
        """The rewards of a tick, and where an episode ended with it, for learning at least."""
        config = self._rewards
        if config is None:
            return
        if config.reward_clip is not None:
            reward = reward.clip(-config.reward_clip, config.reward_clip)
        self._return *= config.discount
        self._return += reward
        with self._lock:
            self._gathered[DISCOUNTED_RETURNS].add(valid)[:, 0] = self._return
        self._return[ended] = 0.0

    def take(self) -> dict[str, Moments]:
        """What has been gathered, by name; it begins anew. Nothing of what no number was gathered of."""
        with self._lock:
            taken = {name: gathered.take() for name, gathered in self._gathered.items()}
        return {name: moments for name, moments in taken.items() if moments.count}

    def give_back(self, taken: Mapping[str, Moments]) -> None:
        """What was taken did not arrive: the next `take` has it again."""
        with self._lock:
            for name, moments in taken.items():
                self._gathered[name].give_back(moments)

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


class _Gathered:
    """Rows of numbers: the newest as they are, what came before as their moments."""

    def __init__(self, slots: int, size: int, dtype: type[np.floating[Any]]) -> None:
        row_bytes = slots * size * np.dtype(dtype).itemsize
        ticks = min(max(_BUFFER_BYTES // row_bytes, 1), _MOST_TICKS)
        self._rows = np.empty((ticks, slots, size), dtype)
        self._valid = np.empty((ticks, slots), np.bool_)
        self._ticks = 0
        self._moments = Moments.none(size)

    def add(self, valid: Flags) -> npt.NDArray[Any]:
        """The rows of the next tick [slots, size], to be filled in; those count that are valid."""
        if self._ticks == len(self._rows):
            self._fold()
        tick = self._ticks
        self._ticks = tick + 1
        self._valid[tick] = valid
        rows: npt.NDArray[Any] = self._rows[tick]
        return rows

    def take(self) -> Moments:
        self._fold()
        taken, self._moments = self._moments, Moments.none(len(self._moments.mean))
        return taken

    def give_back(self, moments: Moments) -> None:
        self._moments = self._moments.merged(moments)

    def _fold(self) -> None:
        rows = self._rows[: self._ticks][self._valid[: self._ticks]]
        self._ticks = 0
        finite = np.isfinite(rows).all(axis=1)
        self._moments = self._moments.merged(Moments.of(rows if finite.all() else rows[finite]))


def make_statistics(model: ModelConfig, agent: Agent[Any], spaces: Spaces, slots: int) -> Statistics | None:
    """What is to be gathered by the run's configuration; None: nothing."""
    leaves = normalized_leaves(spaces.observations) if model.normalize_observations else {}
    config = agent.config
    rewards = config if isinstance(config, AgentConfig) and config.normalize_rewards else None
    return Statistics(slots, leaves, rewards) if leaves or rewards else None
