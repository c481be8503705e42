"""The trainer: updates are PyTorch's, what is not finite is never applied, and a state goes on bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.config import LearnerConfig, ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError, ExitCode
from headrace.models.build import state_spec
from headrace.models.built_in import BuiltIn
from headrace.wire.payload import ArraySpec
from headrace_learner.optimizer import Optimizer
from headrace_learner.trainer import DivergedError, Trainer, choose_device

CPU = torch.device("cpu")
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
MODEL = ModelConfig(hidden_sizes=(8,), activation="tanh")


R2D2 = {"name": "r2d2", "burn_in": 0, "unroll_length": 5, "period": 5, "target_period": 3}  # has a target network


def trainer(agent: dict[str, Any] | None = None, **learner: Any) -> Trainer:
    torch.manual_seed(5)
    config = RunConfig.model_validate(
        {"env": {"id": "CartPole-v1"}, "agent": agent or {}, "learner": {"lr": 0.01, **learner}}
    )
    return Trainer(BuiltIn(SPACES, MODEL), make_agent(config.agent, SPACES, {}), config, CPU)


def batch(seed: int, *, reward: float | None = None) -> UnrollBatch:
    random = torch.Generator().manual_seed(seed)
    ticks, width = 5, 3
    flags = torch.zeros(ticks, width, dtype=torch.bool)
    return UnrollBatch(
        observation=torch.randn(ticks + 1, width, 4, generator=random),
        first=torch.zeros(ticks + 1, width, dtype=torch.bool),
        action=torch.randint(2, (ticks, width), generator=random),
        reward=torch.randn(ticks, width, generator=random) if reward is None else torch.full((ticks, width), reward),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        version=torch.zeros(ticks, width, dtype=torch.int64),
        behaviour={"log_prob": torch.full((ticks, width), -0.7)},
        state={},
        previous_action=torch.zeros(width, dtype=torch.int64),
        previous_reward=torch.zeros(width),
        weights=torch.ones(width),
    )


def parameters(made: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in made.network.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- the optimiser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, eps=1e-8)),
        (
            {"optimizer": "adam", "adam_betas": (0.5, 0.9), "optimizer_eps": 1e-3},
            lambda p: torch.optim.Adam(p, betas=(0.5, 0.9), eps=1e-3),
        ),
        (
            {"optimizer": "rmsprop", "rmsprop_decay": 0.9, "optimizer_eps": 0.01},
            lambda p: torch.optim.RMSprop(p, alpha=0.9, eps=0.01),
        ),
    ],
    ids=["adam", "adam, other betas", "rmsprop"],
)
def test_the_optimizers_are_pytorchs_also_with_a_learning_rate_that_changes(settings: Any, reference: Any) -> None:
    torch.manual_seed(0)
    mine, theirs = nn.Linear(3, 4), nn.Linear(3, 4)
    theirs.load_state_dict(mine.state_dict())
    optimizer, expected = Optimizer(mine, LearnerConfig(**settings)), reference(theirs.parameters())
    for update in range(20):
        lr = 0.1 / (1 + update)
        for group in expected.param_groups:
            group["lr"] = lr
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizer.step(lr)
        expected.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_parameter_that_gets_no_gradient_stays_as_it_is(optimizer: Any) -> None:
    made = trainer(optimizer=optimizer)
    made.network.register_parameter("unused", nn.Parameter(torch.ones(3)))
    made.network.get_submodule("torso").requires_grad_(False)
    again = Trainer(made.network, made.agent, made._config, CPU)
    before = parameters(again)
    again.update(batch(0), 15)
    after = parameters(again)
    assert torch.equal(after["unused"], before["unused"])
    assert torch.equal(after["torso.0.weight"], before["torso.0.weight"])
    assert not torch.equal(after["policy.weight"], before["policy.weight"])


def test_an_optimizer_state_that_lacks_a_tensor_is_refused_by_name() -> None:
    optimizer = Optimizer(nn.Linear(2, 2), LearnerConfig())
    tensors = optimizer.tensors()
    del tensors["exp_avg/weight"]
    with pytest.raises(KeyError, match="exp_avg/weight"):
        optimizer.load(tensors)


# -- updates ---------------------------------------------------------------------------------------------------------


def test_an_update_counts_itself_and_the_ticks_it_trained_on_and_lowers_the_loss() -> None:
    made = trainer()
    losses = [made.update(batch(0), 13).loss.total.item() for _ in range(30)]
    assert losses[-1] < losses[0]
    assert (made.updates, made.trained_steps) == (30, 390)


def test_the_gradient_is_scaled_to_its_limit_and_the_norm_before_that_is_told() -> None:
    def first_step(**learner: Any) -> tuple[float, float]:
        made = trainer(**learner)
        update = made.update(batch(0), 15)
        gradients = [parameter.grad for parameter in made.network.parameters()]
        return update.gradient_norm, torch.cat([g.flatten() for g in gradients if g is not None]).norm().item()

    norm, unclipped = first_step(clip_norm=None)
    assert norm == pytest.approx(unclipped)
    assert first_step(clip_norm=norm / 4) == pytest.approx((norm, norm / 4), rel=1e-4)
    assert first_step(clip_norm=2 * norm) == pytest.approx((norm, norm))


def test_learning_rate_and_schedules_go_by_trained_steps() -> None:
    made = trainer(lr={"start": 0.01, "end": 0.0, "steps": 100})
    assert [made.update(batch(0), 50).lr for _ in range(3)] == [0.01, 0.005, 0.0]


def test_a_target_network_is_copied_every_so_many_updates_and_is_not_trained() -> None:
    made = trainer(R2D2)
    target, first = made.target, parameters(made)
    assert target is not None
    assert not any(parameter.requires_grad for parameter in target.parameters())
    copied = []
    for update in range(7):
        made.update(batch(update), 15)
        copied.append(equal(dict(target.state_dict()), parameters(made)))
        if update < 2:
            assert equal(dict(target.state_dict()), first)
    assert copied == [False, False, True, False, False, True, False]
    assert trainer().target is None


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e30])
def test_a_loss_or_gradient_that_is_not_finite_changes_nothing_and_training_goes_on(reward: float) -> None:
    made = trainer(max_nonfinite=3)
    made.update(batch(0), 15)
    tensors, facts = made.state()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for _ in range(2):
        assert not made.update(batch(1, reward=reward), 15).applied
    after, counters = made.state()
    assert equal(after, before)
    assert counters == facts
    assert made.skipped_in_row == 2
    assert made.update(batch(2), 15).applied
    assert made.skipped_in_row == 0


def test_too_many_bad_updates_in_a_row_end_the_run_with_the_facts_of_the_batch() -> None:
    made = trainer(max_nonfinite=2)
    made.update(batch(1, reward=float("nan")), 15)
    made.update(batch(0), 15)  # a good one between them starts the count anew
    made.update(batch(1, reward=float("nan")), 15)
    good = parameters(made)
    with pytest.raises(DivergedError, match=r"2 updates in a row.*not finite: reward") as caught:
        made.update(batch(1, reward=float("nan")), 15)
    assert caught.value.exit_code == ExitCode.LOST
    assert equal(parameters(made), good)


# -- the state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "agent"), [("adam", {}), ("rmsprop", {}), ("adam", R2D2)], ids=["adam", "rmsprop", "target network"]
)
def test_a_resumed_run_continues_bit_by_bit_like_one_that_was_never_interrupted(optimizer: Any, agent: Any) -> None:
    settings = {"agent": agent, "optimizer": optimizer, "lr": {"start": 0.01, "end": 0.001, "steps": 300}}
    whole = trainer(**settings)
    for seed in range(10):
        whole.update(batch(seed), 15)
    torch.rand(7)  # as something random in the run would
    tensors, facts = whole.state()
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    losses = [whole.update(batch(seed), 15).loss.total.item() for seed in range(10, 20)]
    drawn = torch.rand(3)

    resumed = trainer(**settings)
    resumed.update(batch(99), 15)  # not at its beginning either
    resumed.load(saved, facts)
    assert (resumed.updates, resumed.trained_steps) == (10, 150)
    assert [resumed.update(batch(seed), 15).loss.total.item() for seed in range(10, 20)] == losses
    assert equal(parameters(resumed), parameters(whole))
    assert torch.equal(torch.rand(3), drawn)


def test_a_state_holds_only_tensors_and_plain_facts() -> None:
    tensors, facts = trainer().state()
    assert all(type(tensor) is Tensor for tensor in tensors.values())
    assert {type(value) for value in facts.values()} == {int, float}


@pytest.mark.parametrize("change", ["missing", "unknown", "another shape"])
def test_a_state_of_another_network_is_refused_by_the_parameters_name(change: str) -> None:
    tensors, facts = trainer().state()
    name = "network/policy.bias"
    match change:
        case "missing":
            del tensors[name]
        case "unknown":
            tensors["network/_orig_mod.policy.bias"] = tensors[name]
        case "another shape":
            tensors[name] = torch.zeros(3)
    with pytest.raises((KeyError, RuntimeError), match=r"policy\.bias"):
        trainer().load(tensors, facts)


def test_cuda_on_a_machine_without_one_is_refused_and_auto_takes_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ConfigError, match=r"learner\.device: cuda"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    assert choose_device("cpu") == CPU


def test_a_target_networks_recurrent_weights_are_put_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened: list[nn.LSTM] = []
    monkeypatch.setattr(nn.LSTM, "flatten_parameters", lambda core: flattened.append(core))
    config = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, "agent": R2D2})
    network = BuiltIn(SPACES, MODEL.model_copy(update={"core": "lstm"}))
    made = Trainer(network, make_agent(config.agent, SPACES, state_spec(network)), config, CPU)
    assert made.target is not None
    assert any(core is made.target.get_submodule("core") for core in flattened)
