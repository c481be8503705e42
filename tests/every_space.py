"""Environments of every kind of space, `every_space:SpaceEnv` with a case's name: they check what they are given.

`CASES` is a table of observation and action spaces, with and without masks, and of the networks that play them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from headrace.envs.spaces import Spaces
from headrace.models.network import Network, NetworkInput, NetworkOutput, State

Space = gymnasium.Space[Any]
LENGTH = 3  # steps of an episode


@dataclass(frozen=True)
class Case:
    """mask: what `info["action_mask"]` allows: "some" actions, drawn anew at each step, "one", or None: there is none.

    row: whether flags of several elements stand in a row, and not nested as Gymnasium takes them.
    """

    observation: Space
    action: Space
    mask: str | None = None
    row: bool = False
    model: dict[str, Any] = field(default_factory=dict)


def box(dtype: Any, *shape: int, high: float = 5) -> spaces.Box:
    return spaces.Box(0 if np.dtype(dtype).kind in "ub" else -high, 1 if dtype is np.bool_ else high, shape, dtype)


def grid(nvec: Any, start: Any = None, dtype: Any = np.int64) -> spaces.MultiDiscrete:
    return spaces.MultiDiscrete(np.array(nvec), dtype, start=start)


DICT = spaces.Dict({"a.b": box(np.float64, 2), "two words": spaces.Discrete(3, start=-1), "c": spaces.MultiBinary(3)})
NESTED = spaces.Dict(
    {
        "camera": box(np.uint8, 36, 40, 3, high=255),
        "body": spaces.Tuple((box(np.float32, 3), spaces.Dict({"gear": spaces.Discrete(5, start=1)}))),
        "grid": grid([[2, 3], [4, 70]], [[1, 0], [-2, 5]]),
    }
)
# As an OrderedDict it keeps its order, which is not the alphabet's: what is sent must not depend on it.
BACKWARDS = spaces.Dict([("z", spaces.Discrete(2)), ("m", box(np.int16, 2)), ("a", grid([3, 2]))])
MIXED = spaces.Dict(
    [
        ("steer", spaces.Box(np.array([-2, 0], np.float32), np.array([1, 9], np.float32))),
        ("gear", spaces.Discrete(4, start=-1)),
        ("lamps", spaces.MultiBinary(2)),
        ("arm", spaces.Tuple((grid([2, 3], [1, 5]), spaces.Box(-np.inf, np.inf, (), np.float64)))),
    ]
)
LSTM = {"core": "lstm", "core_size": 5}
FLAT, CATEGORIES = box(np.float32, 4), spaces.Discrete(5, start=3)

CASES: dict[str, Case] = {
    "float64": Case(box(np.float64, 4), spaces.Discrete(3, start=5)),
    "half, a scalar": Case(box(np.float16), spaces.Discrete(2, start=-3), model={"previous_inputs": True}),
    "image, channels first": Case(box(np.uint8, 3, 36, 40, high=255), spaces.Discrete(4)),
    "image, channels last": Case(
        box(np.uint8, 12, 10, 2, high=255), spaces.Discrete(4), model={"torso": "impala", **LSTM}
    ),
    "int8": Case(box(np.int8, 2, 3), grid([2, 3])),
    "uint16": Case(box(np.uint16, 4), grid([[2, 3], [4, 5]], [[1, 0], [-2, 7]], np.int32), model=LSTM),
    "uint32": Case(box(np.uint32, 4), spaces.MultiBinary(3), model={"previous_inputs": True, **LSTM}),
    "int64": Case(box(np.int64, 2), spaces.MultiBinary((2, 2))),
    "uint64": Case(box(np.uint64, 4), spaces.Box(-3, 5, (2,), np.float32)),
    "bool": Case(box(np.bool_, 3), spaces.Box(-np.inf, np.inf, (2, 2), np.float64)),
    "discrete": Case(spaces.Discrete(6, start=2), spaces.Box(0, np.inf, (2,), np.float32)),
    "discrete, embedded": Case(spaces.Discrete(100, start=-7), spaces.Box(-1, 1, (), np.float16)),
    "multi-discrete": Case(grid([[3, 2], [4, 5]], [[0, 1], [2, -3]]), spaces.Tuple((spaces.Discrete(2), FLAT))),
    "multi-binary": Case(spaces.MultiBinary((2, 3)), spaces.Tuple((grid([2, 3]), spaces.MultiBinary(2)))),
    "dict": Case(DICT, MIXED, model={"previous_inputs": True}),
    "tuple": Case(spaces.Tuple((FLAT, spaces.Discrete(3), box(np.int32, 2))), MIXED, model=LSTM),
    "nested": Case(NESTED, MIXED, model={"previous_inputs": True, **LSTM}),
    "backwards": Case(BACKWARDS, spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(-1, 3, (1,)))])),
    "with nothing in a leaf": Case(spaces.Dict({"empty": box(np.float32, 0), "full": FLAT}), spaces.Discrete(2)),
    "own network": Case(DICT, CATEGORIES, "some", model={"network": "every_space:OwnNetwork"}),
    "mask": Case(FLAT, CATEGORIES, "some"),
    "mask of one action": Case(FLAT, CATEGORIES, "one"),
    "mask with memory": Case(DICT, CATEGORIES, "some", model={"previous_inputs": True, **LSTM}),
    "mask of multi-discrete": Case(FLAT, grid([2, 3, 4], [1, 0, -5]), "some"),
    "mask of multi-discrete, in a row": Case(FLAT, grid([[2, 3], [4, 5]]), "some", row=True),
    "mask of multi-binary": Case(FLAT, spaces.MultiBinary(4), "some"),
    "mask of multi-binary, in a row": Case(FLAT, spaces.MultiBinary((2, 2)), "some", row=True),
    "mask of a dict": Case(NESTED, MIXED, "some", model=LSTM),
    "normalised": Case(box(np.float64, 4), MIXED, model={"normalize_observations": True, "previous_inputs": True}),
    "normalised, without PyTorch": Case(box(np.int32, 4), CATEGORIES, "some", model={"normalize_observations": True}),
    "normalised leaves, with memory": Case(DICT, MIXED, "some", model={"normalize_observations": True, **LSTM}),
    "mask of a dict, one action": Case(DICT, MIXED, "one"),
    "mask of a tuple": Case(
        FLAT, spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,)), grid([2, 2]))), "some"
    ),
}


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observes what it draws from its space; episodes last LENGTH steps and are truncated and terminated in turn.

    Every action has to be in its space, and allowed by the mask that came before it. The mask of a final observation
    forbids everything. `shown`, `masks` and `taken` are what it gave and got, tick by tick.
    """

    made: list[SpaceEnv] = []  # noqa: RUF012 (of this process, the newest last)

    def __init__(self, case: str) -> None:
        self.case = CASES[case]
        self.observation_space, self.action_space = self.case.observation, self.case.action
        self.shown: list[Any] = []
        self.masks: list[Any] = []
        self.taken: list[Any] = []
        self._episode = -1
        SpaceEnv.made.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.shown, self.masks, self.taken = [], [], []
        self._episode, self._step = self._episode + 1, 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._step < LENGTH, "a step after the episode's end"
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.case.mask is not None:
            assert allows(self.masks[-1], self.action_space, action), f"{action!r} is not in {self.masks[-1]}"
        self.taken.append(action)
        self._step += 1
        ended = self._step == LENGTH
        observation, info = self._observe()
        return observation, float(self._step), ended and self._episode % 2 == 1, ended and self._episode % 2 == 0, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.shown.append(self.observation_space.sample())
        if self.case.mask is None:
            return self.shown[-1], {}
        self.masks.append(self._mask(self.action_space))
        return self.shown[-1], {"action_mask": self.masks[-1]}

    def _mask(self, space: Space) -> Any:
        if isinstance(space, spaces.Dict):  # what is left out is allowed
            return {key: self._mask(part) for key, part in space.items() if not isinstance(part, spaces.Box)}
        if isinstance(space, spaces.Tuple):
            return tuple(self._mask(part) for part in space)
        if isinstance(space, spaces.Box):
            return None
        if isinstance(space, spaces.Discrete):
            return self._flags(space.n)
        if isinstance(space, spaces.MultiDiscrete):
            nested = [self._flags(int(n)) for n in space.nvec.ravel()]
            return np.concatenate(nested) if self.case.row else tuple(nested)
        pairs = np.array([self._flags(2) for _ in range(int(np.prod(space.shape)))])
        if self.case.row:
            return pairs.ravel()
        return np.where(pairs.all(axis=1), 2, pairs[:, 1]).astype(np.int8).reshape(space.shape)

    def _flags(self, count: int) -> Any:
        flags = np.zeros(count, np.int8)
        if self._step < LENGTH:
            flags[self.np_random.integers(count)] = 1
            if self.case.mask == "some":
                flags |= self.np_random.integers(0, 2, count, np.int8)
        return flags


def allows(mask: Any, space: Space, action: Any) -> bool:
    """Whether a mask of SpaceEnv allows an action, element by element."""
    if mask is None:
        return True
    if isinstance(space, spaces.Dict):
        return all(allows(mask.get(key), part, action[key]) for key, part in space.items())
    if isinstance(space, spaces.Tuple):
        return all(allows(*parts) for parts in zip(mask, space, action, strict=True))
    if isinstance(space, spaces.Discrete):
        return bool(mask[action - space.start])
    if isinstance(space, spaces.MultiDiscrete):
        nested = mask if isinstance(mask, tuple) else np.split(mask, np.cumsum(space.nvec.ravel())[:-1])
        chosen = (action - space.start).ravel()
        return all(flags[category] for flags, category in zip(nested, chosen, strict=True))
    if mask.shape == space.shape:
        return bool(((mask == 2) | (mask == action)).all())
    return all(pair[bit] for pair, bit in zip(mask.reshape(-1, 2), action.ravel(), strict=True))


class OwnNetwork(Network):
    """Sees a Dict: its leaves by their paths."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.body = nn.Linear(2 + 1 + 3, 8)
        self.heads = nn.Linear(8 + spaces.actions.mask_width, spaces.actions.num_logits + 1)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        observation, mask = inputs.observation, inputs.action_mask
        assert isinstance(observation, Mapping)
        assert mask is not None
        parts = [observation["a.b"], observation["two words"][:, None], observation["c"]]
        hidden = torch.tanh(self.body(torch.cat([part.float() for part in parts], dim=1)))
        heads = self.heads(torch.cat([hidden, mask.float()], dim=1))
        return NetworkOutput(heads[:, :-1], heads[:, -1]), state
