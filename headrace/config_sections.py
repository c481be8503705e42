"""The sections of a run's configuration. Each field's docstring is its documentation, unit included."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_serializer, model_validator

from headrace.atari_settings import is_atari, with_preprocessing
from headrace.schedule import Number, Schedule, Whole, refuse_bool

if TYPE_CHECKING:
    Kwargs = dict[str, Any]
else:
    Kwargs = dict[str, JsonValue]  # checked: it must survive YAML, JSON and msgpack

MIB = 1024 * 1024
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", examples=["my_package.module:Class"])]
PositiveWhole = Annotated[int, Field(ge=1), BeforeValidator(refuse_bool)]
PositiveNumber = Annotated[float, Field(gt=0), BeforeValidator(refuse_bool)]
Decay = Annotated[float, Field(ge=0, lt=1), BeforeValidator(refuse_bool)]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", examples=["my_package.module"])]


class Section(BaseModel):
    """A group of settings: frozen, and without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # `name: 7` in YAML means the text
        use_attribute_docstrings=True,
        validate_default=False,
    )


class WrapperConfig(Section):
    """An environment wrapper: `module:Class`, or `{class: module:Class, kwargs: {...}}`."""

    class_: ImportPath = Field(alias="class")
    """Import path module:Class; called with the environment first."""
    kwargs: Kwargs = {}
    """Keyword arguments of the wrapper."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @model_serializer(mode="plain")
    def _to_plain(self) -> str | dict[str, Any]:
        return {"class": self.class_, "kwargs": self.kwargs} if self.kwargs else self.class_

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "examples": ["my_package.module:Class"]}, handler(core_schema)]}


class EnvConfig(Section):
    """The environment, made in each actor process."""

    id: str = Field(min_length=1, examples=["CartPole-v1"])
    """Gymnasium id such as CartPole-v1, or module:factory of a callable that returns an environment."""
    kwargs: Kwargs = {}
    """Keyword arguments of the environment; for Atari's ids they have defaults, the preprocessing."""
    wrappers: tuple[WrapperConfig, ...] = ()
    """Wrappers around each environment, the innermost first: module:Class or {class, kwargs}."""
    num_envs: Whole = Field(default=16, ge=1)
    """Environments that one actor process steps together (count)."""
    vectorization: Literal["auto", "native", "sync", "async", "none"] = "auto"
    """How they are stepped: native vector environment, sync, async (a process each), none (one by one), or auto."""
    step_timeout_s: PositiveNumber = 60.0
    """How long a step or a reset may take until the environment counts as hung (seconds); for async, making it may take
    ten times as long."""
    max_failures: Whole = Field(default=5, ge=1)
    """Failures of one environment in a row, without a whole episode or 1,000 steps in between, that end its actor
    (count). For async: elsewhere the first one does."""

    @model_validator(mode="before")
    @classmethod
    def _atari(cls, values: Any) -> Any:
        if isinstance(values, dict) and is_atari(values.get("id")) and isinstance(values.get("kwargs", {}), dict):
            return {**values, "kwargs": with_preprocessing(values.get("kwargs", {}))}
        return values


class AgentConfig(Section):
    """What the settings of every built-in algorithm begin with; each has its own in its file under headrace/agents."""

    name: str
    """The algorithm."""
    discount: Number = Field(default=0.99, ge=0, le=1)
    """Discount gamma per tick (ratio)."""
    reward_clip: PositiveNumber | None = None
    """Rewards are clipped to [-c, c] to be learnt from (reward units); null: not clipped. Statistics stay raw."""
    reward_scale: PositiveNumber = 1.0
    """Factor on the (clipped) rewards that are learnt from: values of about 1 to 10 are learnt fastest (ratio)."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return to be learnt from, after
    reward_clip and before reward_scale, and then limited to [-10, 10]. Statistics stay raw."""


class OwnAgentConfig(Section):
    """An algorithm of the user's."""

    name: ImportPath
    """Import path module:Class of an own algorithm; vtrace, r2d2 or apex: a built-in one."""
    kwargs: Kwargs = {}
    """The settings of an own algorithm, for its Config."""


class ModelConfig(Section):
    """The policy and value network."""

    torso: Literal["auto", "mlp", "nature", "impala"] = "auto"
    """What the hidden layers see of an observation: all its numbers (mlp), or what the convolutions of DQN (nature) or
    of IMPALA's deep network (impala) make of an image. auto: nature for uint8 images of at least 36x36, else mlp."""
    hidden_sizes: tuple[PositiveWhole, ...] | None = None
    """Width of each hidden layer (units); null: [64, 64] for mlp, [512] for nature, [256] for impala."""
    activation: Literal["relu", "tanh"] = "relu"
    """Nonlinearity after each hidden layer; convolutions always have relu."""
    core: Literal["none", "lstm", "gru"] = "none"
    """The memory between hidden layers and heads; its state at an unroll's head travels with the unroll."""
    core_size: PositiveWhole = 64
    """Width of the core (units)."""
    previous_inputs: bool = False
    """Whether the core, or the heads if there is none, also see the previous action and the previous reward."""
    head_sizes: tuple[PositiveWhole, ...] = ()
    """Width of each hidden layer that the policy and the value head have of their own (units)."""
    normalize_observations: bool = False
    """Whether a network sees each number of a Box less its running mean, divided by its running standard deviation, and
    limited to [-10, 10]; not uint8, which is divided by 255."""
    network: ImportPath | None = None
    """Import path module:Class of an own network, which replaces the built-in one; null: built-in."""
    kwargs: Kwargs = {}
    """Keyword arguments of `network`."""


class ActorConfig(Section):
    """The actor processes."""

    count: Whole = Field(default=1, ge=1)
    """Actors that `headrace train` starts on this machine (count); `--actors N`."""
    report_s: Number = Field(default=0.5, gt=0)
    """Time between an actor's reports to the learner (seconds)."""


class ReplayConfig(Section):
    """The table that lies between actors and learner, and the window that bounds what is in flight."""

    sampler: Literal["auto", "fifo", "uniform", "prioritized"] = "auto"
    """How items are drawn: fifo (each once, oldest first), uniform, prioritized, or auto: as the algorithm has it."""
    shards: PositiveWhole = 1
    """Replay processes that `headrace train` starts, and that share the limits below evenly (count)."""
    codec: Literal["none", "lz4"] = "none"
    """Compression of items, on their way and in the table: lz4 is worth it for images."""
    max_items: Whole = Field(default=64, ge=1)
    """Items the table holds at most, over all shards (count); at least learner.batch_size."""
    max_bytes: Whole = Field(default=256 * MIB, ge=1)
    """Payload the table holds at most, over all shards (bytes)."""
    min_size: PositiveWhole | None = None
    """Items before the first draw (count); null: a batch. Not for fifo."""
    samples_per_insert: PositiveNumber | None = None
    """Items drawn per item inserted, which the rate limiter holds (ratio); null: 1. Not for fifo."""
    error_buffer: PositiveNumber | None = None
    """How far draws may run ahead or behind (items); null: a tenth of samples_per_insert x min_size, or what a batch
    needs, if that is more. Not for fifo."""
    priority_exponent: Number | None = Field(default=None, ge=0)
    """Exponent alpha of the priorities (ratio); null: 0.6. For prioritized only."""
    importance_exponent: Number | None = Field(default=None, ge=0, le=1)
    """Exponent beta of the importance weights (ratio); null: 0.4. For prioritized only."""
    window_items: Whole = Field(default=128, ge=1)
    """Items that one actor may have sent and not yet acknowledged (count)."""
    window_bytes: Whole = Field(default=64 * MIB, ge=1)
    """Payload that one actor may have sent and not yet acknowledged (bytes)."""
    shard_patience_s: Number = Field(default=300.0, gt=0)
    """How long an actor keeps a lost shard's unacknowledged items before it drops them as in doubt and goes to another
    shard (seconds)."""


class LearnerConfig(Section):
    """The learner: batches, optimiser, publication, checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes; auto: cuda where there is one."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the learner's network computes in, forth and back. bfloat16: faster for convolutions where the hardware has
    it; parameters, published weights, losses and optimiser stay float32, and actors act in float32."""
    batch_size: Whole = Field(default=32, ge=1)
    """Items per update, B (count); a multiple of replay.shards."""
    prefetch: Whole = Field(default=1, ge=0)
    """Batches asked for ahead of the update (count); each adds to the policy lag. 0: the next one when it is done."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """The optimiser."""
    lr: Schedule = Schedule.constant(1e-3)
    """Learning rate (per update), a number or a schedule over trained steps."""
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of Adam's two moments (ratios)."""
    rmsprop_decay: Number = Field(default=0.99, ge=0, lt=1)
    """Decay of RMSProp's second moment (ratio)."""
    optimizer_eps: Number = Field(default=1e-8, gt=0)
    """Epsilon in the optimiser's denominator (gradient units)."""
    clip_norm: PositiveNumber | None = 40.0
    """Limit of the gradient's global norm (gradient units); null: not clipped."""
    min_publish_s: Number = Field(default=0.02, ge=0)
    """Least time between two published weight versions (seconds)."""
    checkpoint_s: Number = Field(default=60.0, gt=0)
    """Time between checkpoints (seconds)."""
    checkpoints_kept: Whole = Field(default=3, ge=1)
    """Newest checkpoints that are kept (count)."""
    max_nonfinite: Whole = Field(default=10, ge=1)
    """Updates skipped in a row for a non-finite loss or gradient before the learner stops (count)."""
    lease_s: Number = Field(default=10.0, gt=0)
    """An actor that does not report for so long loses its lease (seconds)."""


class EvaluationConfig(Section):
    """Greedy evaluation beside training, by an actor process of its own; what it finds best is kept."""

    every_s: PositiveNumber | None = None
    """Time from the start of one evaluation to that of the next (seconds); null: none takes place."""
    episodes: Whole = Field(default=20, ge=1)
    """Episodes per evaluation (count)."""


class StopConfig(Section):
    """When the run ends: at the goal `return_`, or when one of the budgets is used up."""

    return_: Number | None = None
    """Goal: mean raw return of the last `episodes` episodes (reward units); null: no goal."""
    episodes: Whole = Field(default=100, ge=1)
    """Episodes that the mean return is taken over (count)."""
    steps: PositiveWhole | None = None
    """Budget of agent steps (valid ticks trained on, however many frames each skips); null: none."""
    updates: PositiveWhole | None = None
    """Budget of updates (count); null: none."""
    wall_s: PositiveNumber | None = None
    """Budget of wall time (seconds); null: none."""


class TelemetryConfig(Section):
    """What a run tells about itself."""

    log_every_s: Number = Field(default=10.0, gt=0)
    """Time between progress lines and rows of metrics.jsonl (seconds)."""
    tensorboard: bool = True
    """Whether TensorBoard events are written to the run's folder (true or false)."""
