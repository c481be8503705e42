"""What an algorithm is to Headrace: a class with a policy side and a loss side, the same in actors and learner.

    every tick, in an actor        explorer   logits and values -> actions, and what the learner has to know of them
                                   unroller   ticks -> items
    every update, in the learner   loss       network and batch -> loss, and priorities where replay goes by them
    now and then                   diagnose   loss -> what to watch of it

A new algorithm is a file with a class derived from `Agent` (docs/algorithms.md adds one).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.agents.distributions import most_likely
from headrace.agents.unrolling import SequenceUnroller, Unroller
from headrace.config_sections import Section
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.unroll import Flags
from headrace.wire.payload import ArraySpec, PayloadSchema

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.agents.batch import UnrollBatch
    from headrace.models.network import Network
    from headrace.models.policy import PolicyOutput

Actions = npt.NDArray[Any]  # [N, *spaces.actions.array.shape], as they travel
Behaviour = Mapping[str, npt.NDArray[np.float32]]  # [N, ...] per leaf
Sampler = Literal["fifo", "uniform", "prioritized"]
ConfigT = TypeVar("ConfigT", bound=Section)


class Explorer(Protocol):
    """How N slots act in training."""

    judged: Flags  # [N]: the slots whose returns tell how good the policy is; those that hardly explore

    def act(self, output: PolicyOutput, random: np.random.Generator) -> tuple[Actions, Behaviour]:
        """Actions that the output's mask allows, and what is recorded of them beside."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A batch's loss (0-d, with gradient), what it is made of, and the new priority of each item [B], if it has any."""

    total: Tensor
    parts: Any
    priorities: Tensor | None = None


class Agent(ABC, Generic[ConfigT]):
    """One algorithm, made from its settings, the environment's spaces and the network's recurrent state.

    The network gives logits [A] and a value: what they mean is the algorithm's to say. Actors import this file too, and
    do without PyTorch where the network allows it: import it lazily.
    """

    Config: ClassVar[type[Section]]
    """Its settings, the section `agent` of the configuration."""
    sampler: ClassVar[Sampler] = "fifo"
    """How it wants its items drawn, where the configuration does not say."""
    target_period: int | None = None
    """Updates between two copies of the network into a target network; None: there is no target network."""
    schema: PayloadSchema
    """What its items consist of."""
    return_scale: float = 1.0
    """In an actor, for first priorities: what the learner multiplies rewards by where they are normalised, as of the
    weights that act. (The learner has it in each batch.)"""

    def __init__(self, config: ConfigT, spaces: Spaces, state: Mapping[str, ArraySpec]) -> None:
        """state: the specs of one slot's recurrent state; empty without memory. ConfigError for what does not fit."""
        self.config = config
        self.spaces = spaces
        try:
            self.schema = self.items_of(spaces, state)
        except ValueError as error:
            raise ConfigError(f"agent: items of this environment: {error}") from error

    @abstractmethod
    def items_of(self, spaces: Spaces, state: Mapping[str, ArraySpec]) -> PayloadSchema:
        """What its items consist of (see `headrace.unroll.unroll_schema`)."""

    # -- acting ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def explorer(self, indices: npt.NDArray[np.int64]) -> Explorer:
        """How the slots with these indices [N] act; index = lease x num_envs + slot, so that no two slots share one."""

    def greedy(self, output: PolicyOutput) -> Actions:
        """The best action of each slot that the output's mask allows: by default the likeliest."""
        return most_likely(self.spaces.actions, output.logits, output.action_mask)

    def unroller(self, slots: int) -> Unroller:
        """What makes items of the ticks of `slots` slots: by default unrolls, one after the other."""
        return SequenceUnroller(self.schema, slots)

    # -- learning ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, network: Network, target: Network | None, batch: UnrollBatch, steps: int) -> Loss:
        """The loss of a batch after `steps` trained steps, in which each item counts by `batch.weights`."""

    @abstractmethod
    def diagnose(self, loss: Loss, batch: UnrollBatch, steps: int) -> dict[str, float]:
        """What to watch of an update, by the names of headrace.telemetry.diagnostics or others.

        Of the batch there may be only `valid` left by then; what else is wanted has to be in `loss.parts`.
        """
