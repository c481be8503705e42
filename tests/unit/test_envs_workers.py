"""Environments in processes of their own, and environments that fail: nothing is forked, no wait outlives a worker, and
an error comes out where it can be seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import faulty_environments
import numpy as np
import pytest
import zmq

from headrace.agents.registry import make_agent
from headrace.agents.vtrace import VTraceConfig
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.slots import Slots, make_slots
from headrace.errors import ComponentLost
from headrace.models.build import build_network, state_spec
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.wire import sockets
from headrace_actor.collector import Collector, Identity, Weights

PACKAGE = """
import gymnasium
gymnasium.register("Registered-v0", entry_point="my_registering_package:Env")


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}
"""


def failing(how: str, vectorization: Any, num_envs: int = 2) -> Slots:
    config = EnvConfig(
        id="faulty_environments:FailingEnv", num_envs=num_envs, vectorization=vectorization, kwargs={"how": how}
    )
    return make_slots(config, ())


def test_workers_are_spawned_and_know_nothing_of_sockets_and_state_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_environments, "set_by_the_parent", 1.0)
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        router, port = sockets.bind(context, "127.0.0.1", 0)
        dealer = sockets.connect(context, f"127.0.0.1:{port}")
        slots = failing("never", "async", num_envs=1)
        try:
            assert slots.reset([0])["observation"].tolist() == [
                [0, 0]
            ]  # what is set here would show in a forked worker
        finally:
            slots.close()
        assert sockets.send(dealer, [b"still here"])  # the workers' end has not touched the sockets
        assert router.poll(5000)
        dealer.close()
        router.close()


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting.*")
def test_a_worker_that_dies_ends_the_wait_for_it_and_is_named_with_its_exit_code() -> None:
    slots = failing("exits", "async", num_envs=1)
    slots.reset([0])
    for _ in range(4):
        slots.step(np.zeros(1, np.int64))
    with pytest.raises(
        ComponentLost, match=r"environment process of faulty_environments:FailingEnv ended: slot 0 with code \d+"
    ):
        slots.step(np.zeros(1, np.int64))
    slots.close()


@pytest.mark.parametrize("vectorization", ["none", "sync"])
@pytest.mark.parametrize("how", ["raises", "raises in reset"])
def test_an_error_of_the_environment_comes_out_of_collect_and_the_partial_unroll_does_not(
    how: str, vectorization: str
) -> None:
    slots = failing(how, vectorization)
    network = build_network(ModelConfig(), slots.spaces)
    agent = make_agent(VTraceConfig(unroll_length=4), slots.spaces, state_spec(network))
    policy = make_policy(ModelConfig(), slots.spaces)
    weights = Weights(policy.decode(encode_parameters(parameters_of(network))), 1, 0.0)
    collector = Collector(slots, policy, agent, Identity(1, 0, 1), lambda: weights)
    whole = collector.collect()
    assert whole is not None
    assert [item.new_ticks for item in whole] == [4, 4]
    with pytest.raises(RuntimeError, match="the arm is stuck"):
        collector.collect()


@pytest.mark.parametrize("vectorization", ["none", "async"])
@pytest.mark.parametrize(
    ("env_id", "imports"),
    [("my_registering_package:Registered-v0", ()), ("Registered-v0", ("my_registering_package",))],
    ids=["module in the id", "module under imports"],
)
def test_an_environment_that_a_package_registers_is_found_in_workers_too(
    env_id: str, imports: tuple[str, ...], vectorization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium

    (tmp_path / "my_registering_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        slots = make_slots(EnvConfig(id=env_id, num_envs=1, vectorization=vectorization), imports)
        try:
            assert slots.reset([0])["observation"].shape == (1, 2)
        finally:
            slots.close()
    finally:
        gymnasium.registry.pop("Registered-v0", None)
        sys.modules.pop("my_registering_package", None)
