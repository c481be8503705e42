"""`learner.precision: bfloat16`: what the network computes is rounded, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.agents.vtrace import VTraceConfig, targets
from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError, ExitCode
from headrace.models.build import build_network, state_spec
from headrace.models.encoders import as_float
from headrace.models.network import Network, NetworkInput, NetworkOutput, scan
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.wire.payload import ArraySpec
from headrace_learner.trainer import Trainer, check_precision

CPU = torch.device("cpu")
TICKS, WIDTH, ACTIONS = 5, 4, 6
SPACES = Spaces(ArraySpec("|u1", (4, 36, 36)), DiscreteSpec(ACTIONS, 0))
NATURE = ModelConfig(torso="nature", hidden_sizes=(64,))
LSTM = ModelConfig(torso="nature", hidden_sizes=(64,), core="lstm", core_size=32, previous_inputs=True)
GRU = LSTM.model_copy(update={"core": "gru"})
IMPALA = ModelConfig(torso="impala", hidden_sizes=(64,))
MODELS = {"nature": NATURE, "impala": IMPALA, "lstm": LSTM, "gru": GRU}
R2D2 = {"name": "r2d2", "burn_in": 2, "unroll_length": 3, "period": 3, "target_period": 3}


def network(model: ModelConfig, precision: torch.dtype) -> Network:
    """With a policy that is far from uniform: the rounding of one that is would hardly show."""
    torch.manual_seed(2)
    made = build_network(model, SPACES)
    nn.init.orthogonal_(dict(made.named_parameters())["policy.weight"])
    made.compute_dtype = precision
    return made


def trainer(model: ModelConfig, precision: str, agent: dict[str, Any]) -> Trainer:
    settings = {"precision": precision, "lr": 3e-4}
    config = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, "agent": agent, "learner": settings})
    made = network(model, torch.float32)
    return Trainer(made, make_agent(config.agent, SPACES, state_spec(made)), config, CPU)


def inputs(seed: int = 0) -> NetworkInput:
    random = torch.Generator().manual_seed(seed)
    first = torch.zeros(TICKS + 1, WIDTH, dtype=torch.bool)
    first[0, 0] = first[3, 1] = True
    return NetworkInput(
        observation=torch.randint(256, (TICKS + 1, WIDTH, 4, 36, 36), generator=random).to(torch.uint8),
        first=first,
        previous_action=torch.randint(ACTIONS, (TICKS + 1, WIDTH), generator=random),
        previous_reward=torch.randn(TICKS + 1, WIDTH, generator=random),
    )


def batch(model: ModelConfig) -> UnrollBatch:
    """As an actor that acts by `model`, in float32, would have sent it."""
    seen, acting = inputs(), network(model, torch.float32)
    state = acting.initial_state(WIDTH)
    with torch.no_grad():
        logits = scan(acting, seen, state)[0].logits[:-1]
    action = seen.previous_action[1:]
    flags = torch.zeros(TICKS, WIDTH, dtype=torch.bool)
    return UnrollBatch(
        observation=seen.observation,
        first=seen.first,
        action=action,
        reward=torch.randn(TICKS, WIDTH, generator=torch.Generator().manual_seed(1)),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        version=torch.zeros(TICKS, WIDTH, dtype=torch.int64),
        behaviour={"log_prob": logits.log_softmax(-1).gather(-1, action[..., None])[..., 0], "logits": logits},
        state=state,
        previous_action=seen.previous_action[0],
        previous_reward=seen.previous_reward[0],
        weights=torch.ones(WIDTH),
    )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_learners_log_probabilities_differ_from_the_actors_by_rounding_only(model: ModelConfig) -> None:
    sent = batch(model)
    seen = inputs()
    with torch.no_grad():
        exact = scan(network(model, torch.float32), seen, sent.state)
        rounded = scan(network(model, torch.bfloat16), seen, sent.state)
    ratios = targets(rounded[0], sent, SPACES.actions, VTraceConfig(unroll_length=TICKS)).log_ratios
    assert 1e-5 < ratios.abs().max() < 0.05  # it is rounded, to 8 bits; no rho is off by more than 5 %
    assert (rounded[0].value - exact[0].value).abs().max() < 0.05
    for name, leaf in exact[1].items():
        assert rounded[1][name].dtype == leaf.dtype
        torch.testing.assert_close(rounded[1][name], leaf, rtol=0.02, atol=0.02)
    assert rounded[0].logits.dtype == rounded[0].value.dtype == torch.float32


@pytest.mark.parametrize("agent", [{"name": "vtrace", "unroll_length": TICKS}, R2D2], ids=["vtrace", "r2d2"])
def test_losses_gradients_parameters_and_optimizer_stay_float32(agent: dict[str, Any]) -> None:
    made = trainer(LSTM, "bfloat16", agent)
    computed: list[torch.dtype] = []
    for module in [*made.network.modules(), *(made.target.modules() if made.target is not None else ())]:
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _module, _inputs, output: computed.append(output.dtype))
    update = made.update(batch(LSTM), TICKS * WIDTH)
    assert update.applied
    assert set(computed) == {torch.bfloat16}
    loss = update.loss
    of_loss = [loss.total, *(leaf for leaf in vars_of(loss.parts) if leaf.is_floating_point())]
    if loss.priorities is not None:
        of_loss.append(loss.priorities)
    stored = [tensor for tensor in made.state()[0].values() if tensor.is_floating_point()]
    gradients = [parameter.grad for parameter in made.network.parameters() if parameter.grad is not None]
    assert {tensor.dtype for tensor in (*of_loss, *stored, *gradients)} == {torch.float32}


def vars_of(parts: Any) -> list[Tensor]:
    return [leaf for leaf in (getattr(parts, name) for name in parts.__slots__) if isinstance(leaf, Tensor)]


def test_the_actor_acts_by_the_same_parameters_in_float32() -> None:
    made = trainer(NATURE, "bfloat16", {"unroll_length": TICKS})
    policy = make_policy(NATURE, SPACES)
    blob = ParameterEncoder(made.network).encode()
    assert blob is not None
    policy.load(policy.decode(blob))
    seen = inputs().tick(1)
    others = (leaf.numpy() for leaf in (seen.first, seen.previous_action, seen.previous_reward))
    said, _ = policy.step({"observation": seen.observation.numpy()}, *others, {})
    with torch.no_grad():
        exact, _ = made.network(seen, {})
    torch.testing.assert_close(torch.from_numpy(said.logits), exact.logits)


def test_a_few_updates_go_the_same_way_as_in_float32() -> None:
    agent = {"unroll_length": TICKS}
    losses = {}
    for precision in ("float32", "bfloat16"):
        made = trainer(NATURE, precision, agent)
        losses[precision] = [made.update(batch(NATURE), TICKS * WIDTH).loss.total.item() for _ in range(12)]
    exact, rounded = losses["float32"], losses["bfloat16"]
    assert exact[-1] < 0.8 * exact[0]
    assert rounded == pytest.approx(exact, rel=0.05, abs=0.02)


def test_bytes_are_rounded_once_on_their_way_into_bfloat16() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = as_float(every, byte_frames=True)
    assert torch.equal(rounded, (every.double() / 255).to(torch.bfloat16))
    assert torch.equal(as_float(every, byte_frames=True), every.float() / 255)


class Halves(Network):
    """An own network, whose state counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4 * 36 * 36, ACTIONS)

    def forward(self, inputs: NetworkInput, state: Any) -> tuple[NetworkOutput, Any]:
        logits = self.layer(inputs.observation.flatten(1).float())
        return NetworkOutput(logits, logits.sum(-1)), {"ticks": state["ticks"] + 1}


def test_an_own_networks_state_keeps_its_dtype() -> None:
    made = Halves()
    made.compute_dtype = torch.bfloat16
    state = {"ticks": torch.zeros(WIDTH, dtype=torch.int64)}
    output, after = scan(made, inputs(), state)
    assert after["ticks"].tolist() == [TICKS + 1, 3, TICKS + 1, TICKS + 1]
    assert (after["ticks"].dtype, output.logits.dtype) == (torch.int64, torch.float32)


def test_a_device_without_bfloat16_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    check_precision("float32", CPU)
    with pytest.raises(ConfigError, match=r"learner\.precision: bfloat16, but this processor .* float32") as caught:
        check_precision("bfloat16", CPU)
    assert caught.value.exit_code == ExitCode.CONFIG
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    check_precision("bfloat16", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ConfigError, match="this GPU"):
        check_precision("bfloat16", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_precision("bfloat16", torch.device("cuda"))
