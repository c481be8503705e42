"""Ape-X DQN (Horgan et al. 2018, arXiv 1803.00933): R2D2's feed-forward sibling, without memory and rescaling.

The actor side folds n steps into one: an item is an unroll of one tick whose reward is the n-step sum, and whose tail
is the observation n ticks later, or the episode's last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from headrace import unroll
from headrace.agents.agent import Actions, Agent, Loss
from headrace.agents.batch import UnrollBatch, inputs_of
from headrace.agents.r2d2 import (
    Q_MAX,
    Q_TAKEN,
    EpsilonGreedyExplorer,
    QConfig,
    QParts,
    best_action,
    diagnose,
    double_q,
    n_step_targets,
    q_values,
    refuse_other_actions,
    taken,
)
from headrace.agents.unrolling import Array, Head
from headrace.config_sections import PositiveWhole
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import LazyModule
from headrace.normalization import LIMIT
from headrace.unroll import Flags, Seen
from headrace.wire.items import Item
from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema

if TYPE_CHECKING:
    import torch

    from headrace.models.network import Network
    from headrace.models.policy import PolicyOutput
else:
    torch = LazyModule("torch")  # acting does without


class ApeXConfig(QConfig):
    """The algorithm: Ape-X DQN (Horgan et al. 2018)."""

    name: Literal["apex"] = "apex"
    """The algorithm."""
    ticks_per_message: PositiveWhole = 16
    """Ticks whose items an actor sends together (count); one item per tick and environment."""


class ApeX(Agent[ApeXConfig]):
    """Logits and value are the two streams of a dueling head, of plain Q-values."""

    Config = ApeXConfig
    sampler = "prioritized"

    def __init__(self, config: ApeXConfig, spaces: Spaces, state: Mapping[str, ArraySpec]) -> None:
        if state:
            raise ConfigError("agent.name: apex has no place for a network's memory; use r2d2, or model.core none")
        refuse_other_actions(config.name, spaces)
        super().__init__(config, spaces, state)
        self.target_period = config.target_period

    def items_of(self, spaces: Spaces, state: Mapping[str, ArraySpec]) -> PayloadSchema:
        one_tick = unroll.unroll_schema(1, spaces.seen, spaces.actions.array, {}, state)
        folded = {
            unroll.DISCOUNT: ArraySpec("<f4", (1,)),
            unroll.TAIL_ACTION: spaces.actions.array,
            unroll.TAIL_REWARD: ArraySpec("<f4", ()),
        }
        return PayloadSchema(one_tick.fields | folded)

    def explorer(self, indices: npt.NDArray[np.int64]) -> EpsilonGreedyExplorer:
        return EpsilonGreedyExplorer(indices, self.config)

    def greedy(self, output: PolicyOutput) -> Actions:
        return best_action(output)

    def unroller(self, slots: int) -> NStepUnroller:
        return NStepUnroller(self.schema, slots, self.config, lambda: self.return_scale)

    def loss(self, network: Network, target: Network | None, batch: UnrollBatch, steps: int) -> Loss:
        from headrace.models.network import scan

        assert target is not None
        assert batch.discount is not None
        inputs = inputs_of(batch)
        q = q_values(scan(network, inputs, batch.state)[0])  # [2, B, A]
        q_taken = taken(q[:-1], batch.action)
        with torch.no_grad():
            target_q = q_values(scan(target, inputs, batch.state)[0])
            bootstrap = double_q(q, target_q, batch.action_mask)
            rewards = batch.reward  # clipped and scaled by the actor
            if self.config.normalize_rewards:
                limit = LIMIT * self.config.reward_scale
                rewards = (rewards * batch.return_scale).clamp(-limit, limit)
            targets = n_step_targets(rewards, batch.discount, bootstrap, batch.valid, 1)
            td_errors = targets - q_taken
        per_tick = batch.weights * torch.nn.functional.huber_loss(q_taken, targets, reduction="none")
        total = per_tick.masked_fill(~batch.valid, 0.0).sum() / batch.valid.sum().clamp(min=1)
        return Loss(total, QParts(q_taken, td_errors, batch.valid), td_errors.abs().masked_fill(~batch.valid, 0.0)[0])

    def diagnose(self, loss: Loss, batch: UnrollBatch, steps: int) -> dict[str, float]:
        return diagnose(loss)


@dataclass(slots=True)
class _Tick:
    """One tick of N slots that is being folded: the following ones are added to `reward` and `discount`."""

    seen: Seen
    first: Flags
    head: Head
    action: Array
    pending: Flags  # its item is not made yet
    version: int
    q_taken: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]  # the discounted sum so far
    discount: npt.NDArray[np.float32]  # the product so far
    terminated: Flags
    truncated: Flags


class NStepUnroller:
    """One item per valid tick, complete n ticks later or at the episode's last observation. A plain object.

    Rewards are clipped and scaled before they are summed: afterwards it would be too late. They are normalised by the
    learner, or an item would keep what was known when it was made; return_scale is what it does now.
    """

    def __init__(
        self,
        schema: PayloadSchema,
        slots: int,
        config: ApeXConfig,
        return_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.most_items = slots * (config.ticks_per_message + config.n_steps)
        self._schema = schema
        self._slots = slots
        self._config = config
        self._return_scale = return_scale
        self._ticks: deque[_Tick] = deque(maxlen=config.n_steps)  # the newest last
        self._consequences = 0  # since items were given out last
        self._seen: Seen
        self._first: Flags
        self._head: Head
        self._begin()

    def observe(self, seen: Seen, first: Flags, head: Head) -> Seen:
        fields = self._schema.fields
        # a copy: the environment may reuse its arrays
        self._seen = {name: np.array(array, fields[name].dtype, order="C") for name, array in seen.items()}
        self._first, self._head = first, head
        return self._seen

    def act(self, action: Array, behaviour: Mapping[str, Array], valid: Flags, version: int) -> None:
        n = self._config.n_steps
        for steps, tick in zip(range(len(self._ticks), 0, -1), self._ticks, strict=True):  # the oldest first
            due = tick.pending if steps == n else tick.pending & ~valid
            if due.any():
                self._emit(tick, due, behaviour[Q_MAX])
        slots = self._slots
        nothing = np.zeros(slots, np.float32)
        self._ticks.append(
            _Tick(
                seen=self._seen,
                first=self._first,
                head=self._head,
                action=action,
                pending=valid.copy(),
                version=version,
                q_taken=behaviour[Q_TAKEN],
                reward=nothing,
                discount=np.ones(slots, np.float32),
                terminated=np.zeros(slots, np.bool_),
                truncated=np.zeros(slots, np.bool_),
            )
        )

    def drop(self, slots: Flags) -> int:
        dropped = 0
        for age, tick in enumerate(reversed(self._ticks)):
            if age:  # the newest is the tick that has just failed
                dropped += int(np.count_nonzero(tick.pending & slots))
            tick.pending &= ~slots
        return dropped

    def consequence(self, reward: npt.NDArray[np.float32], terminated: Flags, truncated: Flags) -> None:
        config = self._config
        if config.reward_clip is not None:
            reward = reward.clip(-config.reward_clip, config.reward_clip)
        reward = reward * np.float32(config.reward_scale)
        discount = np.where(terminated, np.float32(0), np.float32(config.discount))
        for tick in self._ticks:
            tick.reward = tick.reward + tick.discount * reward
            tick.discount = tick.discount * discount
            tick.terminated, tick.truncated = terminated, truncated
        self._consequences += 1

    def finished(self, seen: Seen, first: Flags, peek: Callable[[Seen], PolicyOutput]) -> list[Item]:
        if self._consequences < self._config.ticks_per_message or not self._count:
            return []
        rows = self._rows[: self._count]
        facts = zip(rows, self._versions, self._priorities, strict=True)
        items = [Item(memoryview(row), 1, version, priority) for row, version, priority in facts]
        self._begin()
        return items

    def _begin(self) -> None:
        self._rows: Buffer = self._schema.allocate(self.most_items)
        self._views = self._schema.views(self._rows)
        self._versions: list[int] = []
        self._priorities: list[float] = []
        self._count = 0
        self._consequences = 0

    def _emit(self, tick: _Tick, due: Flags, q_max: npt.NDArray[np.float32]) -> None:
        """Writes the items of `tick` in the slots that are due; what was just observed is their tail."""
        count = int(np.count_nonzero(due))
        rows = slice(self._count, self._count + count)
        views: dict[str, npt.NDArray[Any]] = {name: view[rows] for name, view in self._views.items()}
        for name, array in tick.seen.items():
            views[name][:, 0] = array[due]
            views[name][:, 1] = self._seen[name][due]
        views[unroll.FIRST][:, 0] = tick.first[due]
        views[unroll.ACTION][:, 0] = tick.action[due]
        views[unroll.REWARD][:, 0] = tick.reward[due]
        views[unroll.DISCOUNT][:, 0] = tick.discount[due]
        views[unroll.TERMINATED][:, 0] = tick.terminated[due]
        views[unroll.TRUNCATED][:, 0] = tick.truncated[due]
        views[unroll.VALID][:, 0] = True
        views[unroll.VERSION][:, 0] = tick.version
        views[unroll.PREVIOUS_ACTION][:] = tick.head.previous_action[due]
        views[unroll.PREVIOUS_REWARD][:] = tick.head.previous_reward[due]
        views[unroll.TAIL_ACTION][:] = self._head.previous_action[due]
        views[unroll.TAIL_REWARD][:] = self._head.previous_reward[due]
        rewards = tick.reward[due]
        if self._config.normalize_rewards:
            limit = np.float32(LIMIT * self._config.reward_scale)
            rewards = (rewards * np.float32(self._return_scale())).clip(-limit, limit)
        td_errors = rewards + tick.discount[due] * q_max[due] - tick.q_taken[due]
        self._priorities += np.abs(td_errors).astype(np.float64).tolist()
        self._versions += [tick.version] * count
        self._count += count
        tick.pending &= ~due
