"""Actor and learner compute the same, for spaces of every kind: environment, collector, sockets, replay, batch.

One replay process serves them all, since it opens no payload: to it they are items of one run, of different lengths as
compressed ones are.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from every_space import CASES, LENGTH, SpaceEnv
from gymnasium import spaces as gym
from harness import RUN, Processes, ReplayShard, copied, replay_shard, until
from prometheus_client import CollectorRegistry

from headrace.agents import vtrace
from headrace.agents.agent import Agent
from headrace.agents.batch import UnrollBatch, evaluate, inputs_of
from headrace.agents.r2d2 import q_values
from headrace.agents.registry import make_agent
from headrace.config import EnvConfig, RunConfig
from headrace.envs.slots import make_slots
from headrace.envs.spaces import Spaces
from headrace.malformed import malformed
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network, scan
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import Policy, PolicyOutput, make_policy
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_actor.collector import Collector, Identity, Weights
from headrace_actor.stream import Introduction, ItemStream
from headrace_learner.loader import Loader, Source
from headrace_learner.replay_link import open_request

SLOTS, TICKS, ROUNDS = 2, 6, 3  # an unroll ends inside an episode, and each kind of end is in one
EQUAL = {"atol": 1e-5, "rtol": 1e-5}
ANY_ITEM = PayloadSchema({"bytes": ArraySpec("|u1", (1 << 20,))})  # what replay is told: longer than each of them


CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "unused"},
        "learner": {"batch_size": 1},
        "replay": {"sampler": "fifo", "codec": "lz4", "max_items": 1000, "window_items": 1000},
    }
)
_epochs = count(1)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayShard]:
    folder: Path = tmp_path_factory.mktemp("parity")
    with Processes(folder) as processes, replay_shard(processes) as shard:
        yield shard


class Recorded:
    """A policy, and what it said."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.said: list[PolicyOutput] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def step(self, *arguments: Any) -> tuple[PolicyOutput, Any]:
        output, state = self._policy.step(*arguments)
        self.said.append(PolicyOutput(*(None if part is None else part.copy() for part in output)))
        return output, state


class Played:
    """ROUNDS x SLOTS items of one case and one algorithm that went through replay, and what had been played."""

    def __init__(self, replay: ReplayShard, case: str, vectorization: Any, settings: Mapping[str, Any]) -> None:
        model = CASES[case].model
        if "network" not in model:
            model = {"hidden_sizes": [6], "activation": "tanh", **model}
        env = EnvConfig(id="every_space:SpaceEnv", num_envs=SLOTS, vectorization=vectorization, kwargs={"case": case})
        config = RunConfig.model_validate({"env": env, "agent": settings, "model": model})
        slots = make_slots(config.env, ())
        self.spaces: Spaces = slots.spaces
        torch.manual_seed(3)
        self.network: Network = build_network(config.model, slots.spaces)
        for parameter in self.network.parameters():
            torch.nn.init.normal_(parameter, std=0.5)  # not the nearly uniform policy that it begins with
        if self.network.observation_normalizer is not None:
            shift = torch.arange(self.network.observation_normalizer.size)
            self.network.observation_normalizer.mean.copy_(0.5 - 0.1 * shift)
            self.network.observation_normalizer.scale.copy_(0.2 + 0.3 * shift)
        self.agent: Agent[Any] = make_agent(config.agent, slots.spaces, state_spec(self.network))
        policy = Recorded(make_policy(config.model, slots.spaces))
        weights = Weights(policy.decode(encode_parameters(parameters_of(self.network))), 1, 0.0)
        collector = Collector(slots, policy, self.agent, Identity(7, 0, 1), lambda: weights)
        items: list[Item] = []
        while len(items) < ROUNDS * SLOTS:
            items += collector.collect() or []
        self.said = policy.said
        self.environments = SpaceEnv.made[-SLOTS:]
        slots.close()
        views, new_ticks = through(replay, items, self.agent.schema)
        assert not malformed(views, new_ticks, self.spaces).any()
        self.views = views
        self.batch = UnrollBatch.from_views(views, torch.device("cpu"))


def through(
    replay: ReplayShard, items: list[Item], schema: PayloadSchema
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """The items as the learner has them: views [B, ...], and the new ticks of each."""
    epoch = next(_epochs)  # within one, a loader that asks from number 1 on would get what another one was given
    replay.open(open_request(RUN, epoch, CONFIG, ANY_ITEM))
    me = Introduction(replay.items, RUN, uuid.uuid4().bytes, 0, ANY_ITEM.hash, UNROLLS, 60.0, "lz4")
    stream = ItemStream(me, ActorMetrics(CollectorRegistry()))
    source = Source([replay.samples], RUN, epoch, UNROLLS, len(items), 0, "lz4")
    loader = Loader(source, schema, LearnerMetrics(CollectorRegistry()))
    try:
        assert stream.wait_for_room(len(items), threading.Event(), lambda: None)
        stream.put(items)
        loaded = until(lambda: loader.next(0.1), "the batch", 60)
        assert loaded.malformed == 0
        return copied(loaded.views), loaded.new_ticks
    finally:
        stream.leave()
        loader.close()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """An observation as an environment gives it, leaf by leaf."""
    if isinstance(value, dict | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}/{key}")
    else:
        yield "observation" + path, value


def starts(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(space, gym.Dict | gym.Tuple):
        for key, part in space.items() if isinstance(space, gym.Dict) else enumerate(space):
            yield from starts(part, f"{path}/{key}")
    else:
        yield "observation" + path, getattr(space, "start", 0)


def expected_action(space: Any, row: npt.NDArray[Any], at: int = 0) -> tuple[Any, int]:
    """What the environment is to get for an action as it travels [elements], from element `at` on, and the next `at`.

    Keys in the alphabet's order.
    """
    if isinstance(space, gym.Dict | gym.Tuple):
        parts = {}
        for key, part in sorted(space.items()) if isinstance(space, gym.Dict) else enumerate(space):
            parts[key], at = expected_action(part, row, at)
        return (parts if isinstance(space, gym.Dict) else tuple(parts.values())), at
    end = at + int(np.prod(space.shape))
    numbers, at = row[at:end].reshape(space.shape), end
    if isinstance(space, gym.Discrete):
        return int(numbers) + int(space.start), at
    if isinstance(space, gym.Box):
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, 0).astype(np.float64), np.where(bounded, space.high, 0)
        middle, half = (low + high) / 2, (high - low) / 2
        scaled = np.where(bounded, middle + half * numbers, numbers)
        return np.asarray(np.minimum(np.maximum(scaled, space.low), space.high), space.dtype), at
    return np.asarray(numbers + getattr(space, "start", 0), space.dtype), at


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0) and np.array_equal(a, b)


@pytest.mark.parametrize("case", CASES)
def test_at_equal_weights_the_learner_finds_what_the_actor_found_and_the_environment_gave(
    replay: ReplayShard, case: str
) -> None:
    """In every second case the environments are Gymnasium's vector environment."""
    vectorization = ("none", "sync")[list(CASES).index(case) % 2]
    played = Played(replay, case, vectorization, {"name": "vtrace", "unroll_length": TICKS})
    batch, views = played.batch, played.views

    output = evaluate(played.network, batch)
    parts = vtrace.targets(output, batch, played.spaces.actions, played.agent.config)
    assert parts.log_ratios.abs()[batch.valid].max() < 1e-5
    assert batch.behaviour["logits"].std() > 0.1  # so that equality means something
    for item in range(ROUNDS * SLOTS):
        begin, slot = item // SLOTS * TICKS, item % SLOTS
        said = played.said[begin : begin + TICKS + 1]  # without the last one's tail, which nobody had to say
        for name in ("logits", "value"):
            acted = torch.tensor(np.stack([getattr(one, name)[slot] for one in said]))
            torch.testing.assert_close(getattr(output, name)[: len(said), item], acted, **EQUAL)

    played.agent.loss(played.network, None, batch, 0).total.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in played.network.parameters() if p.grad is not None)

    first_number = dict(starts(CASES[case].observation))
    for slot, environment in enumerate(played.environments):
        ticks = [(item, tick) for item in range(slot, ROUNDS * SLOTS, SLOTS) for tick in range(TICKS)]
        tail = (ROUNDS * SLOTS - SLOTS + slot, TICKS)
        for (item, tick), shown in zip([*ticks, tail], environment.shown, strict=True):
            for name, value in leaves(shown):
                given = np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else None)
                np.testing.assert_array_equal(views[name][item, tick] + first_number[name], given, err_msg=name)
        rows = [views["action"][item, tick].reshape(-1) for item, tick in ticks if views["valid"][item, tick]]
        for row, taken in zip(rows, environment.taken, strict=True):
            assert same(expected_action(CASES[case].action, row)[0], taken), f"{row} became {taken}"
        assert len(rows) == ROUNDS * TICKS - ROUNDS * TICKS // (LENGTH + 1)


MASKED = ("mask", "mask of one action", "mask with memory", "own network")


@pytest.mark.parametrize(
    ("algorithm", "case"),
    [(name, case) for name in ("r2d2", "apex") for case in MASKED if (name, case) != ("apex", "mask with memory")],
)
def test_q_values_are_the_actors_and_targets_never_look_at_a_forbidden_action(
    replay: ReplayShard, algorithm: str, case: str
) -> None:
    settings: dict[str, Any] = {"name": algorithm, "n_steps": 1, "discount": 0.9, "epsilon_base": 0.1}
    if algorithm == "r2d2":
        settings |= {"unroll_length": TICKS, "burn_in": 0, "period": TICKS, "value_rescale": False}
    else:
        settings |= {"ticks_per_message": 1}
    played = Played(replay, case, "none", settings)
    network, batch = played.network, played.batch
    with torch.no_grad():
        q = q_values(scan(network, inputs_of(batch), batch.state)[0])
        loss = played.agent.loss(network, network, batch, 0)
    if algorithm == "r2d2":
        masks = batch.acting_mask
        assert masks is not None
        best = q[:-1].masked_fill(~masks, -torch.inf).amax(-1)
        torch.testing.assert_close(best, batch.behaviour["q_max"], **EQUAL)
        taken = q[:-1].gather(-1, batch.action[..., None])[..., 0]
        torch.testing.assert_close(taken, batch.behaviour["q_taken"], **EQUAL)

    misled = 0
    reward, discount = batch.reward, batch.discount
    if discount is None:
        discount = torch.where(batch.terminated, 0.0, 0.9)
    targets = loss.parts.td_errors + loss.parts.q_taken
    assert batch.action_mask is not None
    for tick, item in batch.valid.nonzero().tolist():
        following, allowed = q[tick + 1, item], batch.action_mask[tick + 1, item]
        bootstrap = max(float(value) for value, flag in zip(following, allowed, strict=True) if flag)
        misled += not bool(allowed[following.argmax()])
        wanted = float(reward[tick, item]) + float(discount[tick, item]) * bootstrap
        assert abs(float(targets[tick, item]) - wanted) < 1e-4
    assert misled > 0  # the best of all actions was a forbidden one, so that this could go wrong
