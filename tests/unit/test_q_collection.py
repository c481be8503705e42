"""What R2D2's and Ape-X's actors ship, by counting: the learner sees what they saw, and finds what they found."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from counting import CountingNetwork
from counting_environment import FIRST_ACTION, ends_by_truncation, episode_length, reward_of

from headrace.agents.agent import Agent
from headrace.agents.apex import ApeX, ApeXConfig
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.r2d2 import R2D2, R2D2Config, ladder_epsilon, q_values, taken
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.slots import make_slots
from headrace.errors import ConfigError
from headrace.models.build import state_spec
from headrace.models.built_in import BuiltIn
from headrace.models.network import Network
from headrace.models.numpy_mlp import NumpyMLP
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import Policy, PolicyOutput
from headrace.models.torch_policy import TorchPolicy
from headrace.unroll import pack_version
from headrace.wire.items import Item
from headrace_actor.collector import Collector, Identity, Weights

SLOTS = 3
VERSION = pack_version(1, 5)
Views = dict[str, npt.NDArray[Any]]


class Played:
    """The items of one actor on counting environments, in the order in which it made them."""

    def __init__(self, agent: Agent[Any], network: Network, policy: Policy, items: int) -> None:
        slots = make_slots(ENVIRONMENT, ())
        blob = ParameterEncoder(network).encode()
        assert blob is not None
        weights = Weights(policy.decode(blob), VERSION, 0.0)
        self.agent, self.network, self.items = agent, network, list[Item]()
        collector = Collector(slots, policy, agent, Identity(3, 0, 1), lambda: weights)
        while len(self.items) < items:
            made = collector.collect()
            assert made is not None
            assert len(made) <= collector.most_items
            self.items += made

    def views(self, items: list[Item] | None = None) -> Views:
        items = self.items if items is None else items
        buffer = self.agent.schema.allocate(len(items))
        self.agent.schema.fill(buffer, [item.payload for item in items])
        return self.agent.schema.views(buffer)

    def batch(self) -> UnrollBatch:
        return UnrollBatch.from_views(self.views(), torch.device("cpu"))


ENVIRONMENT = EnvConfig(id="counting_environment:CountingEnv", num_envs=SLOTS, vectorization="none")
SPACES = make_slots(ENVIRONMENT, ()).spaces


def sequences(items: int = 60, **settings: Any) -> Played:
    """Episodes last 1 to 6 ticks, so their ends fall everywhere: into the burn-in, onto its last tick, behind it."""
    torch.manual_seed(1)
    network = CountingNetwork(SPACES)
    config = R2D2Config(**{"burn_in": 4, "unroll_length": 7, "period": 3, "n_steps": 3, **settings})
    agent = R2D2(config, SPACES, state_spec(network))
    return Played(agent, network, TorchPolicy(CountingNetwork(SPACES)), items)


def flat(items: int = 200, **settings: Any) -> Played:
    torch.manual_seed(2)
    network = BuiltIn(SPACES, ModelConfig(hidden_sizes=(8,), activation="tanh"))
    policy = NumpyMLP(SPACES.observation, SPACES.actions.num_logits, (8,), "tanh")
    agent = ApeX(ApeXConfig(**{"n_steps": 3, "ticks_per_message": 5, "discount": 0.5, **settings}), SPACES, {})
    return Played(agent, network, policy, items)


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"burn_in": 0}, {"period": 7}, {"period": 1, "burn_in": 9}])
def test_the_learner_finds_the_actors_q_values_at_every_tick_of_every_sequence(settings: dict[str, int]) -> None:
    played = sequences(**settings)
    batch = played.batch()
    with torch.no_grad():
        q = q_values(evaluate(played.network, batch))[:-1]
    torch.testing.assert_close(taken(q, batch.action), batch.behaviour["q_taken"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.amax(-1), batch.behaviour["q_max"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"burn_in": 0}, {"burn_in": 1}, {"period": 1, "burn_in": 9}])
def test_after_the_burn_in_the_loss_starts_from_the_state_that_the_actor_had_there(settings: dict[str, int]) -> None:
    played = sequences(**settings)
    batch, agent = played.batch(), played.agent
    burn_in = agent.config.burn_in
    ends = (~batch.valid[:burn_in]).any(0)
    assert burn_in < 4 or ends.any()  # episodes end inside the burn-in
    loss = agent.loss(played.network, played.network, batch, 0)
    torch.testing.assert_close(loss.parts.q_taken, batch.behaviour["q_taken"][burn_in:], rtol=1e-5, atol=1e-5)


def test_the_comparison_would_notice_zeros_in_the_place_of_the_stored_state() -> None:
    played = sequences(stored_state=False, burn_in=1)
    batch = played.batch()
    loss = played.agent.loss(played.network, played.network, batch, 0)
    assert (loss.parts.q_taken - batch.behaviour["q_taken"][1:]).abs().max() > 0.1


def test_sequences_overlap_and_together_hold_every_tick_from_the_first_of_the_run_on() -> None:
    played = sequences(60)
    views = played.views()
    length, period = 11, 3
    for slot in range(SLOTS):
        own = {name: view[slot::SLOTS] for name, view in views.items()}
        count = len(own["valid"])
        stream: list[tuple[int, int]] = []  # (episode, step), worked out here
        episode, step = 0, 0
        while len(stream) < count * period + length:
            stream.append((episode, step))
            episode, step = (episode, step + 1) if step < episode_length(episode) else (episode + 1, 0)
        for number in range(count):
            begin = number * period
            seen = own["observation"][number][:, 1:].tolist()
            assert seen == [list(tick) for tick in stream[begin : begin + length + 1]]
            expected_first = [step == 0 for _, step in stream[begin : begin + length + 1]]
            assert own["first"][number].tolist() == expected_first
        assert count == 60 // SLOTS
        assert own["first"][0][0]  # the first sequence begins with the run
        new = [item.new_ticks for item in played.items[slot::SLOTS]]
        ticks = stream[: (count - 1) * period + length]
        assert sum(new) == sum(step < episode_length(episode) for episode, step in ticks)  # each valid tick once


@pytest.mark.parametrize("rescale", [True, False])
def test_a_sequence_starts_with_the_priority_that_the_learner_would_give_it(rescale: bool) -> None:
    played = sequences(value_rescale=rescale, reward_scale=0.5, reward_clip=1.2)
    given = torch.tensor([item.priority for item in played.items], dtype=torch.float32)
    loss = played.agent.loss(played.network, played.network, played.batch(), 0)
    assert loss.priorities is not None
    torch.testing.assert_close(loss.priorities, given, rtol=1e-4, atol=1e-5)
    assert given.std() > 0.05


def test_an_items_weight_scales_its_part_of_the_loss_and_nothing_flows_through_burn_in_or_target() -> None:
    played = sequences(12)
    views = played.views()
    device = torch.device("cpu")
    target = CountingNetwork(SPACES)
    whole = played.agent.loss(played.network, target, UnrollBatch.from_views(views, device), 0)
    halves = []
    for keep in (slice(0, 6), slice(6, 12)):
        weights = np.zeros(12, np.float32)
        weights[keep] = 1.0
        halves.append(
            played.agent.loss(played.network, target, UnrollBatch.from_views(views, device, weights), 0).total
        )
    torch.testing.assert_close(sum(halves), whole.total)
    whole.total.backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in played.network.parameters())


# -- n steps folded into one -------------------------------------------------------------------------------------------


def test_an_item_folds_n_steps_and_ends_at_the_episodes_last_observation() -> None:
    played, n, gamma = flat(), 3, 0.5
    by_tick: dict[tuple[int, int, int], int] = {}
    views = played.views()
    for row in range(len(played.items)):
        tag, episode, step = views["observation"][row, 0].astype(int).tolist()
        assert (tag, episode, step) not in by_tick  # one item per tick
        by_tick[tag, episode, step] = row
    tags = {tag for tag, _, _ in by_tick}
    assert len(tags) == SLOTS
    last_episode = min(max(episode for tag, episode, _ in by_tick if tag == own) for own in tags)
    for (tag, episode, step), row in by_tick.items():
        if episode >= last_episode:
            continue
        length = episode_length(episode)
        steps = min(n, length - step)
        actions = [int(views["action"][by_tick[tag, episode, step + k], 0]) + FIRST_ACTION for k in range(steps)]
        rewards = [reward_of(episode, step + k, action) for k, action in enumerate(actions)]
        terminated = step + steps == length and not ends_by_truncation(episode)
        assert views["observation"][row, 1].tolist() == [tag, episode, step + steps]
        assert views["reward"][row, 0] == pytest.approx(sum(gamma**k * reward for k, reward in enumerate(rewards)))
        assert views["discount"][row, 0] == (0.0 if terminated else gamma**steps)
        assert bool(views["terminated"][row, 0]) == terminated
        assert views["tail_reward"][row] == np.float32(rewards[-1])
        assert views["tail_action"][row] == actions[-1] - FIRST_ACTION
        assert views["valid"][row, 0]
        assert played.items[row].new_ticks == 1
    for own in tags:  # and none is missing
        for episode in range(last_episode):
            assert all((own, episode, step) in by_tick for step in range(episode_length(episode)))


def test_the_learner_sees_what_the_actor_saw_at_both_ends_of_an_item() -> None:
    """By a network that looks at previous action and reward too, without memory."""

    class Looking(CountingNetwork):
        def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
            return {}

        def forward(self, inputs: Any, state: Any) -> Any:
            return super().forward(inputs, super().initial_state(len(inputs.first)))[0], {}

    torch.manual_seed(3)
    network = Looking(SPACES)
    agent = ApeX(ApeXConfig(n_steps=3, ticks_per_message=4), SPACES, {})
    played = Played(agent, network, TorchPolicy(Looking(SPACES)), 100)
    given = torch.tensor([item.priority for item in played.items], dtype=torch.float32)
    loss = agent.loss(network, network, played.batch(), 0)
    assert loss.priorities is not None
    torch.testing.assert_close(loss.priorities, given, rtol=1e-4, atol=1e-5)
    assert given.std() > 0.05


def test_rewards_are_clipped_and_scaled_before_they_are_summed() -> None:
    plain, clipped = flat(), flat(reward_clip=1.0, reward_scale=0.25)
    assert plain.views()["reward"].max() > 1.5
    folded = clipped.views()["reward"]
    assert folded.max() == np.float32(0.25 * (1 + 0.5 + 0.25))


def test_a_network_with_memory_is_refused_by_apex() -> None:
    with pytest.raises(ConfigError, match=r"agent.name: apex has no place for a network's memory"):
        ApeX(ApeXConfig(), SPACES, state_spec(CountingNetwork(SPACES)))


# -- exploration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("played", [sequences, flat])
def test_every_slot_explores_as_often_as_its_place_on_the_ladder_says(played: Any) -> None:
    agent = played(1).agent
    indices = np.array([0, 1, 3, 7, 100])
    explorer = agent.explorer(indices)
    assert explorer.judged.tolist() == (ladder_epsilon(indices) <= 0.01).tolist()
    assert explorer.judged[0]
    random = np.random.default_rng(1)
    logits = np.tile(np.array([0.0, 3.0, 1.0], np.float32), (5, 1))
    output = PolicyOutput(logits, np.full(5, 7.0, np.float32))
    explored = np.zeros(5)
    for _ in range(20_000):
        action, behaviour = explorer.act(output, random)
        explored += action != 1
    assert behaviour["q_max"].tolist() == pytest.approx([7 + 3 - 4 / 3] * 5)
    expected = ladder_epsilon(indices) * 2 / 3  # a random action is the best one in a third of all cases
    np.testing.assert_allclose(explored / 20_000, expected, atol=4 * np.sqrt(expected / 20_000).max())


@pytest.mark.parametrize(("lease", "expected"), [(0, [0, 1, 2]), (4, [12, 13, 14])])
def test_an_actors_slots_have_places_on_the_ladder_that_no_other_actors_have(lease: int, expected: list[int]) -> None:
    indices: list[list[int]] = []

    class Asked(ApeX):
        def explorer(self, given: npt.NDArray[np.int64]) -> Any:
            indices.append(given.tolist())
            return super().explorer(given)

    built_in = (SPACES.observation, SPACES.actions.num_logits, (8,), "tanh")
    agent = Asked(ApeXConfig(), SPACES, {})
    Collector(make_slots(ENVIRONMENT, ()), NumpyMLP(*built_in), agent, Identity(3, lease, 1), lambda: None)
    assert indices == [expected]
