"""The collector: what it ships is what its policy saw and answered, and the learner computes the same from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.vtrace import VTrace, VTraceConfig
from headrace.config import EnvConfig
from headrace.envs.slots import Slots, make_slots
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Transition
from headrace.models.build import state_spec
from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.models.torch_policy import TorchPolicy
from headrace.unroll import Seen, pack_version
from headrace.wire.items import Item
from headrace_actor.collector import Collector, Identity, Observers, Weights


class Recurrent(Network):
    """A GRU over observation, previous action and previous reward, so that a wrong state or reset shows."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.policy = nn.Linear(8, spaces.actions.num_logits)
        self.value = nn.Linear(8, 1)

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {"hidden": torch.zeros(batch, 8)}

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        seen = torch.cat(
            [inputs.observation.float(), inputs.previous_action[:, None].float(), inputs.previous_reward[:, None]], 1
        )
        hidden = self.cell(seen, state["hidden"])
        return NetworkOutput(5 * self.policy(hidden), self.value(hidden)[:, 0]), {"hidden": hidden}


class Setup:
    """A collector of a recurrent policy over counting environments, and the network a learner would have."""

    def __init__(
        self,
        length: int,
        newest: Callable[[], Weights | None] | None = None,
        observers: Observers | None = None,
        factory: str = "CountingEnv",
        vectorization: Any = "none",
        **kwargs: Any,
    ) -> None:
        config = EnvConfig(
            id=f"environments:{factory}", num_envs=2, vectorization=vectorization, kwargs={"actions": 4, **kwargs}
        )
        self.slots: Slots = make_slots(config, ())
        torch.manual_seed(1)
        self.network = Recurrent(self.slots.spaces)
        spaces = self.slots.spaces
        agent = VTrace(VTraceConfig(unroll_length=length), spaces, state_spec(self.network))
        self.schema = agent.schema
        own = Weights(self.network.state_dict(), pack_version(1, 0), 0.0)
        self.collector = Collector(
            self.slots,
            TorchPolicy(Recurrent(spaces)),
            agent,
            Identity(7, 0, 1),
            newest or (lambda: own),
            observers or Observers(),
        )

    def views(self, items: list[Item]) -> dict[str, np.ndarray]:
        buffer = self.schema.allocate(len(items))
        self.schema.fill(buffer, [item.payload for item in items])
        return self.schema.views(buffer)


@pytest.mark.parametrize("length", [1, 4, 10])
def test_the_learner_computes_the_actors_logits_at_every_tick_across_resets_and_unrolls(length: int) -> None:
    setup = Setup(length)
    tail_values: list[torch.Tensor] = []
    for _ in range(5):
        items = setup.collector.collect()
        assert items is not None
        views = setup.views(items)
        with torch.no_grad():
            output = evaluate(setup.network, UnrollBatch.from_views(views, torch.device("cpu")))
        actor = torch.from_numpy(views["behaviour/logits"]).transpose(0, 1)
        torch.testing.assert_close(output.logits[:-1], actor, rtol=1e-5, atol=1e-5)
        if tail_values:  # the tail is the next unroll's first tick
            torch.testing.assert_close(tail_values[-1], output.value[0], rtol=1e-5, atol=1e-5)
        tail_values.append(output.value[-1])


def test_an_unroll_is_the_environments_stream_with_resets_final_observations_and_tail() -> None:
    setup = Setup(10, start=5)
    first, second = setup.collector.collect(), setup.collector.collect()
    assert first is not None
    assert second is not None
    views = setup.views(first)
    steps = [0, 1, 2, 3] * 3
    assert views["observation"][0].tolist() == [[index // 4, steps[index]] for index in range(11)]
    assert views["first"][0].tolist() == [step == 0 for step in steps[:11]]
    assert views["valid"][0].tolist() == [step != 3 for step in steps[:10]]
    assert views["reward"][0].tolist() == [step + 1 if step != 3 else 0 for step in steps[:10]]
    assert np.flatnonzero(views["truncated"][0]).tolist() == [2]
    assert np.flatnonzero(views["terminated"][0]).tolist() == [6]
    assert [item.new_ticks for item in first] == [8, 8]
    following = setup.views(second)
    np.testing.assert_array_equal(following["observation"][:, 0], views["observation"][:, -1])
    np.testing.assert_array_equal(following["first"][:, 0], views["first"][:, -1])
    np.testing.assert_array_equal(following["previous_action"], views["action"][:, -1])
    np.testing.assert_array_equal(following["previous_reward"], views["reward"][:, -1])
    assert set(np.unique(views["action"])) <= set(range(4))  # zero-based, whatever the environment's start


class LosingLives:
    """Slots that say a life was lost in every second step of an episode, and nonsense where they only reset."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.spaces, self.num_slots = slots, slots.spaces, slots.num_slots

    def reset(self, seeds: Sequence[int]) -> Seen:
        return self.slots.reset(seeds)

    def step(self, actions: np.ndarray) -> Transition:
        transition = self.slots.step(actions)
        step_in_episode = transition.seen["observation"][:, 1]
        return transition._replace(life_lost=(step_in_episode == 2) | (step_in_episode == 0))

    def close(self) -> None:
        self.slots.close()


def test_a_lost_life_is_terminated_for_learning_and_neither_resets_anything_nor_ends_the_episode() -> None:
    episodes: list[tuple[float, int]] = []
    observers = Observers(episode=lambda return_, length, judged: episodes.append((return_, length)))
    plain, setup = Setup(10), Setup(10, observers=observers)
    setup.collector.slots = LosingLives(setup.slots)
    expected, got = (setup.views(made.collector.collect() or []) for made in (plain, setup))
    assert np.flatnonzero(expected["terminated"][0]).tolist() == [6]
    assert np.flatnonzero(got["terminated"][0]).tolist() == [1, 5, 6, 9]
    for name in set(got) - {"terminated"}:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    assert episodes == [(6.0, 3)] * 4


def test_every_vectorization_ships_the_same_items() -> None:
    shipped = []
    single, native = "CountingEnv", "CountingVectorEnv"
    for vectorization, factory in (("none", single), ("sync", single), ("async", single), ("native", native)):
        setup = Setup(10, factory=factory, vectorization=vectorization)
        try:
            items = [setup.collector.collect() or [] for _ in range(3)]
        finally:
            setup.slots.close()
        shipped.append([bytes(item.payload) for made in items for item in made])
    assert len(shipped[0]) == 6
    assert shipped[0] == shipped[1] == shipped[2] == shipped[3]


def test_a_collector_that_is_told_to_stop_ships_no_partial_unroll() -> None:
    setup = Setup(10)
    asked = iter([False] * 6 + [True])
    assert setup.collector.collect(lambda: next(asked)) is None


def test_episode_statistics_are_raw_returns_over_valid_ticks() -> None:
    finished: list[tuple[float, int, bool]] = []
    valid: list[int] = []
    observers = Observers(
        stepped=lambda _inference, _env, ticks: valid.append(ticks), episode=lambda *facts: finished.append(facts)
    )
    setup = Setup(10, observers=observers)
    setup.collector.collect()
    assert finished == [(6.0, 3, True)] * 4
    assert sum(valid) == 16


def test_newer_weights_are_swapped_in_between_ticks_and_older_ones_never_even_from_a_restarted_learner() -> None:
    parameters = Setup(1).network.state_dict()
    offered = [(1, 500), (1, 500), (1, 7), (1, 501), (2, 0), (1, 900), (2, 3), (2, 2)]
    expected = [(1, 500), (1, 500), (1, 500), (1, 501), (2, 0), (2, 0), (2, 3), (2, 3)]
    queue = iter([Weights(parameters, pack_version(*version), 0.0) for version in offered])
    applied: list[int] = []
    setup = Setup(
        len(offered), lambda: next(queue), Observers(applied=lambda weights, _: applied.append(weights.version))
    )
    items = setup.collector.collect()
    assert items is not None
    assert setup.views(items)["version"][0].tolist() == [pack_version(*version) for version in expected]
    assert items[0].version == pack_version(2, 3)
    assert applied == [pack_version(*version) for version in ((1, 500), (1, 501), (2, 0), (2, 3))]


def test_the_same_identity_collects_the_same_items_and_another_does_not() -> None:
    def collect(identity: Identity) -> list[bytes]:
        setup = Setup(10)
        setup.collector.identity = identity
        setup.collector.__post_init__()
        items = setup.collector.collect()
        assert items is not None
        return [bytes(item.payload) for item in items]

    same = collect(Identity(7, 0, 1))
    assert collect(Identity(7, 0, 1)) == same
    for other in (Identity(8, 0, 1), Identity(7, 1, 1), Identity(7, 0, 2)):
        assert collect(other) != same
