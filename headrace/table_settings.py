"""How a run's items are kept and drawn: the section `replay` with what it leaves open filled in, for each shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.agents.agent import Sampler
from headrace.agents.registry import agent_class
from headrace.config_errors import ContradictionError
from headrace.wire.messages import MAX_ITEMS_PER_MESSAGE

if TYPE_CHECKING:
    from headrace.config import RunConfig

PRIORITY_EXPONENT, IMPORTANCE_EXPONENT = 0.6, 0.4  # Schaul et al. 2016, arXiv 1511.05952, section 4
_NOT_OF = {
    "fifo": ("min_size", "samples_per_insert", "error_buffer", "priority_exponent", "importance_exponent"),
    "uniform": ("priority_exponent", "importance_exponent"),
    "prioritized": (),
}
_WHY_NOT = {"fifo": "each item is drawn once, in its turn", "uniform": "its items have no priorities"}


@dataclass(frozen=True)
class TableSettings:
    """The table of one shard, and what follows from all of them together.

    min_size, samples_per_insert, error_buffer: of the rate limiter; 0 in a fifo table.
    importance_exponent: beta of the weights of what is drawn; None: all items count alike.
    """

    sampler: Sampler
    shards: int
    draw: int  # items that are drawn at a time
    max_items: int
    max_bytes: int
    min_size: int = 0
    samples_per_insert: float = 0.0
    error_buffer: float = 0.0
    priority_exponent: float = 0.0
    importance_exponent: float | None = None


def check_batch(config: RunConfig) -> None:
    """ContradictionError if the shards could never give a batch, whatever the algorithm."""
    shards, batch = config.replay.shards, config.learner.batch_size
    if config.replay.max_items < batch:
        raise _clash(config, "replay.max_items", "is below", "learner.batch_size", "no batch would ever fill")
    if batch % shards:
        why = "every shard gives an equal part of a batch at a time"
        raise _clash(config, "learner.batch_size", "is no multiple of", "replay.shards", why)
    if batch // shards > MAX_ITEMS_PER_MESSAGE:
        why = f"a shard gives at most {MAX_ITEMS_PER_MESSAGE} items at a time"
        raise _clash(config, "learner.batch_size", "is too large for", "replay.shards", why)


def table_settings(config: RunConfig) -> TableSettings:
    """What `replay` means for this algorithm, batch and number of shards. ContradictionError if it cannot work.

    The shards have equal parts of the limits, rounded up. Several uniform shards are to be like one table, in which
    each item counts the same: their importance exponent is 1.
    """
    check_batch(config)
    replay, shards, batch = config.replay, config.replay.shards, config.learner.batch_size
    wanted = agent_class(config.agent).sampler
    sampler: Sampler = wanted if replay.sampler == "auto" else replay.sampler
    if sampler == "prioritized" and wanted != "prioritized":
        why = "that algorithm gives items no priorities"
        raise _clash(config, "replay.sampler", "does not go with", "agent.name", why)
    for name in _NOT_OF[sampler]:
        if getattr(replay, name) is not None:
            given = {"replay.sampler": sampler, f"replay.{name}": getattr(replay, name)}
            raise ContradictionError(given, "does not go with", _WHY_NOT[sampler])

    max_items, max_bytes = _part(replay.max_items, shards), _part(replay.max_bytes, shards)
    if sampler == "fifo":
        return TableSettings(sampler, shards, batch // shards, max_items, max_bytes)
    min_size = batch if replay.min_size is None else replay.min_size
    if min_size > replay.max_items:
        raise _clash(config, "replay.min_size", "is above", "replay.max_items", "no batch would ever be drawn")
    ratio = 1.0 if replay.samples_per_insert is None else replay.samples_per_insert
    least = (batch + shards * ratio) / 2  # with less, inserts and draws would wait for each other
    buffer = max(0.1 * ratio * min_size, least) if replay.error_buffer is None else replay.error_buffer
    if buffer < least:
        each = f"{shards} shards x " if shards > 1 else ""
        arithmetic = f"2 x {buffer:g} < {batch} + {each}samples_per_insert {ratio:g} = {2 * least:g}"
        why = f"inserts and draws would wait for each other, {arithmetic}"
        raise _clash(config, "replay.error_buffer", "is too small for", "learner.batch_size", why)
    alpha, beta = replay.priority_exponent, replay.importance_exponent
    if sampler == "uniform":
        alpha, beta = 0.0, 1.0 if shards > 1 else None
    else:
        alpha = PRIORITY_EXPONENT if alpha is None else alpha
        beta = IMPORTANCE_EXPONENT if beta is None else beta
    return TableSettings(
        sampler=sampler,
        shards=shards,
        draw=batch // shards,
        max_items=max_items,
        max_bytes=max_bytes,
        min_size=_part(min_size, shards),
        samples_per_insert=ratio,
        error_buffer=buffer / shards,
        priority_exponent=alpha,
        importance_exponent=beta,
    )


def _part(whole: int, shards: int) -> int:
    return -(-whole // shards)


def _clash(config: RunConfig, first: str, relation: str, second: str, why: str) -> ContradictionError:
    def value(key: str) -> Any:
        section, name = key.split(".")
        return getattr(getattr(config, section), name)

    return ContradictionError({first: value(first), second: value(second)}, relation, why)
