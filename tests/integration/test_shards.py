"""Two replay shards, each a process of its own: one dies, or gets a hundred times the items of the other."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import psutil
import pytest
from command import Command, Record, running
from harness import RUN, Deadline, Processes, ReplayShard, metric, replay_shard, until
from ledgers import assert_identities_hold
from prometheus_client import CollectorRegistry

from headrace.config import RunConfig
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_actor.stream import Introduction, ItemStream
from headrace_learner.loader import Loader, Source
from headrace_learner.replay_link import ReplayLinks, open_request, settings_of

# -- a shard dies ----------------------------------------------------------------------------------------------------

CONFIG = """
env: {id: CartPole-v1, num_envs: 4}
agent: {name: r2d2, burn_in: 2, unroll_length: 8, period: 4, n_steps: 3, target_period: 50}
model: {hidden_sizes: [16], core: lstm, core_size: 16}
actor: {count: 2, report_s: 0.1}
replay: {shards: 2, max_items: 2000, min_size: 100, samples_per_insert: 2, error_buffer: 100}
learner: {batch_size: 16, device: cpu, checkpoint_s: 3600}
telemetry: {log_every_s: 0.1, tensorboard: false}
"""
MIN_SIZE = 50  # of one shard


def port_of(process: psutil.Process, flag: str) -> int:
    words = process.cmdline()
    return int(words[words.index(flag) + 1].rpartition(":")[2])


def shard_of(command: Command, number: int) -> psutil.Process:
    """The process of shard `number`; waits until it is there."""
    learner = command.child("learner").cmdline()
    address = learner[learner.index("--replay") + 1].split(",")[number]

    def there() -> psutil.Process | None:
        return next((child for child in command.children()["replay"] if address in child.cmdline()), None)

    found = until(there, f"shard {number}", 60.0)
    assert isinstance(found, psutil.Process)
    return found


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Record, float]]:
    """A run that was without one of its shards for a while, its last record before that, and what that shard held."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "two.yaml").write_text(CONFIG)
    with running(folder, ["train", str(folder / "two.yaml")]) as command:
        command.wait_for("updates", 30)
        learner = port_of(command.child("learner"), "--metrics-bind")
        victim = shard_of(command, 1)
        replay = port_of(victim, "--metrics-bind")
        assert metric(learner, "headrace_learner_shards_live") == metric(learner, "headrace_learner_shards") == 2
        assert metric(learner, "headrace_learner_actors_wanted") == 2  # what alerts compare with
        assert metric(learner, "headrace_learner_checkpoint_interval_seconds") == 3600
        until(lambda: metric(replay, "headrace_replay_sampled_total") > 100, "draws from the shard", 30.0)
        victim.suspend()  # killed at once, it would be back before anybody missed it
        held = command.newest()
        until(lambda: metric(learner, "headrace_learner_shards_live") == 1, "the shard to be missed", 30.0)
        alone = command.newest()
        command.wait_for("updates", alone["updates"] + 50, since=alone["time"])
        victim.kill()
        until(lambda: shard_of(command, 1).pid != victim.pid, "another process in its place", 30.0)
        until(lambda: metric(learner, "headrace_learner_shards_live") == 2, "the shard to rejoin", 60.0)
        until(lambda: metric(replay, "headrace_replay_sampled_total") > 100, "draws from it", 60.0)
        lost = metric(learner, "headrace_learner_items_lost_at_restart_total")
        command.process.terminate()
        assert command.wait() == 0
        yield command, held, lost


def test_training_goes_on_without_a_shard_that_died_and_it_rejoins(survived: tuple[Command, Record, float]) -> None:
    command, before, _ = survived
    assert command.left() == []
    summary = command.summary()
    assert (summary["outcome"], summary["updates"] > before["updates"] + 50) == ("stopped", True)
    said = "\n".join(command.output())
    assert "replay-1 ended with signal SIGKILL; starting it again" in said
    assert "replay-0 ended" not in said


def test_the_ledger_shows_what_was_lost_with_a_shard(survived: tuple[Command, Record, float]) -> None:
    command, _, lost = survived
    ledger = command.summary()["ledger"]
    assert_identities_hold(ledger)
    assert ledger["replay"]["lost_at_restart"] == lost > MIN_SIZE
    assert ledger["replay"]["present"] > 0  # of both, as they are in the end
    assert ledger["learner"]["trained"] == 16 * command.summary()["updates"]


def test_what_each_boot_stored_and_dealt_out_is_summed_over_the_shards(
    survived: tuple[Command, Record, float],
) -> None:
    command, before, _ = survived
    summary = command.summary()
    replay, actor = summary["ledger"]["replay"], summary["ledger"]["actor"]
    assert actor["acknowledged"] >= replay["stored"]  # what the dead one never told of is missing here
    assert actor["acknowledged"] - replay["stored"] <= before["env_steps"] / 4 / 4
    assert summary["samples_per_insert"] == pytest.approx(2.0, rel=0.25)


# -- a shard gets a hundred times the items of the other -------------------------------------------------------------

EPOCH, BATCH, RATIO, MUCH = 1, 64, 2.0, 12_000
SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
UNEVEN = RunConfig.model_validate(
    {
        "env": {"id": "unused"},
        "agent": {"name": "r2d2"},
        "learner": {"batch_size": BATCH},
        "replay": {
            "shards": 2,
            "max_items": 8000,
            "min_size": 40,
            "samples_per_insert": RATIO,
            "error_buffer": 40,
            "window_items": 64,
        },
    }
)


@contextmanager
def stream_to(shard: ReplayShard, registry: CollectorRegistry) -> Iterator[ItemStream]:
    me = Introduction(shard.items, RUN, uuid.uuid4().bytes, 0, SCHEMA.hash, UNROLLS, patience_s=60.0)
    stream = ItemStream(me, ActorMetrics(registry))
    try:
        yield stream
    finally:
        stream.leave()


def put(stream: ItemStream, count: int) -> None:
    assert stream.wait_for_room(count, threading.Event(), Deadline(60.0, "room in the window").check)
    stream.put([Item(bytes(SCHEMA.payload_bytes), 1, 1, priority=1.0) for _ in range(count)])


def held(stream: ItemStream) -> int:
    stream.put([])  # it reads what arrived
    return stream.ledger().held


def feed(much: ItemStream, little: ItemStream) -> None:
    """A hundred items go to the one, then one to the other."""
    for _ in range(MUCH // 100):
        put(much, 50)
        put(much, 50)
        put(little, 1)


def test_one_shard_with_a_hundred_times_the_items_of_the_other_holds_up_neither(processes: Processes) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    settings = settings_of(UNEVEN)
    with ExitStack() as stack:
        shards = [stack.enter_context(replay_shard(processes)) for _ in range(2)]
        metrics = LearnerMetrics(CollectorRegistry())
        links = ReplayLinks([shard.address for shard in shards], threading.Event(), metrics)
        stack.callback(links.close)
        assert links.open(open_request(RUN, EPOCH, UNEVEN, SCHEMA))
        streams = [stack.enter_context(stream_to(*each)) for each in zip(shards, registries, strict=True)]
        source = Source([shard.samples for shard in shards], RUN, EPOCH, UNROLLS, BATCH, 1, "none", True, 0.4)
        loader = Loader(source, SCHEMA, metrics)
        stack.callback(loader.close)

        feeder = threading.Thread(target=partial(feed, *streams), name="feeder")
        feeder.start()
        busy = shards[0].metrics_port
        waiting = partial(metric, busy, "headrace_replay_worker_seconds_total")
        until(lambda: waiting(state="waiting_for_samples") > 0.2, "the actor to be blocked", 60.0)
        assert metric(busy, "headrace_replay_waiting") > 0
        batches = 0
        while feeder.is_alive():
            batch = loader.next(0.1)
            if batch is not None:
                batches += 1
                loader.prioritize(np.full(BATCH, 1.0 + batches % 7))
                loader.ask()
        feeder.join()
        while (batch := loader.next(1.0)) is not None:  # until the learner starves
            batches += 1
        for shard in shards:
            seconds = partial(metric, shard.metrics_port, "headrace_replay_worker_seconds_total")
            before = seconds(state="waiting_for_inserts")
            until(lambda seconds=seconds, before=before: seconds(state="waiting_for_inserts") > before, "starvation")
        blocked = registries[0].get_sample_value("headrace_actor_blocked_seconds_total")
        assert blocked is not None
        assert blocked > 0.2
        until(lambda: [held(stream) for stream in streams] == [0, 0], "all to be acknowledged")
        assert [stream.ledger().acknowledged for stream in streams] == [MUCH, MUCH // 100]
        assert links.poll()

        for shard in shards:
            told = shard.statistics(RUN).ledger
            due = RATIO * (told.stored - settings.min_size)
            assert abs(told.sampled - due) <= settings.error_buffer + 0.02 * due, told
            per_insert = metric(shard.metrics_port, "headrace_replay_samples_per_insert")
            assert per_insert == pytest.approx(told.sampled / (told.stored - settings.min_size))
            assert metric(shard.metrics_port, "headrace_replay_samples_per_insert_target") == RATIO
            assert metric(shard.metrics_port, "headrace_replay_priorities_applied_total") > 0
        ledger = links.ledger()
        assert ledger.stored == MUCH + MUCH // 100
        assert ledger.sampled == loader.ledger.drawn
        assert loader.ledger.drawn - BATCH < batches * BATCH <= loader.ledger.drawn
        assert links.fill == pytest.approx((4000 + MUCH // 100) / 8000)
