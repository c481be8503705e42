"""The sequence contract (DESIGN section 4) through real processes and sockets, by counting.

Four actors, one of each kind of vectorization, play the counting environment with the counting network. One is killed
and a new one started. Whatever the learner then draws is checked tick by tick against a stream that was worked out
here, and against the learner's own evaluation of the network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from counting import CountingNetwork
from counting_environment import FIRST_ACTION, ends_by_truncation, episode_length, reward_of, tag_of
from harness import Joined, LearnerParts, Processes, copied, learner_parts, replay_shard, seeded_network, until

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.config import EnvConfig, RunConfig
from headrace.envs.seeds import slot_seeds
from headrace.models.build import build_network
from headrace.models.network import Network
from headrace.unroll import pack_version

SEED, SLOTS, TICKS, BATCH = 11, 2, 7, 8
UNROLLS_PER_SLOT = 25  # at least, of each actor that was not killed: some 40 episodes
MODES = ("sync", "async", "none", "native")
ENVIRONMENTS = [
    EnvConfig(
        id="counting_environment:" + ("CountingVectorEnv" if mode == "native" else "CountingEnv"),
        num_envs=SLOTS,
        vectorization=mode,
    )
    for mode in MODES
]
CONFIG = RunConfig.model_validate(
    {
        "seed": SEED,
        "env": ENVIRONMENTS[0],
        "agent": {"unroll_length": TICKS},
        "model": {"network": "counting:CountingNetwork", "kwargs": {"scale": 0.8}},
        "actor": {"report_s": 0.2},
        "replay": {"max_items": 16, "window_items": 8},
        "learner": {"batch_size": BATCH, "lease_s": 120, "min_publish_s": 0},
    }
)

Views = dict[str, npt.NDArray[Any]]


@dataclass
class Drawn:
    """One batch, with the learner's own answers to it."""

    views: Views  # [B, ...]
    new_ticks: npt.NDArray[np.int64]  # [B]
    versions: npt.NDArray[np.int64]  # [B]


@dataclass
class Session:
    """What was drawn, and from whom."""

    joined: list[Joined]
    batches: list[Drawn]
    networks: dict[int, Network]  # by packed version

    def __post_init__(self) -> None:
        self.unrolls: dict[int, list[Views]] = defaultdict(list)  # by tag, in the order in which they were drawn
        for batch in self.batches:
            for row in range(BATCH):
                unroll = {name: view[row] for name, view in batch.views.items()}
                unroll["new_ticks"], unroll["item_version"] = batch.new_ticks[row], batch.versions[row]
                self.unrolls[int(unroll["observation"][0, 0])].append(unroll)

    def tags(self, actor: int) -> list[int]:
        """The tags of an actor's slots, from the seeds that it must have used."""
        *first, restarted = self.joined  # the last one may have the lease of the one that was killed, or another one
        told = restarted if actor == RESTARTED else next(joined for joined in first if joined.lease == actor)
        seeds = slot_seeds(SEED, told.lease, told.incarnation, SLOTS)
        if told.env.vectorization == "native":
            return [tag_of(seeds[0]) + slot for slot in range(SLOTS)]
        return [tag_of(seed) for seed in seeds]


KILLED, RESTARTED = 0, len(MODES)  # actors: by their lease, and the one that was started last


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("contract")
    with (
        Processes(folder) as processes,
        replay_shard(processes) as replay,
        learner_parts(CONFIG, replay.address, ENVIRONMENTS) as learner,
    ):
        # One by one as far as Join goes, so that the first lease is the first process's.
        actors = []
        for count in range(1, len(MODES) + 1):
            actors.append(processes.service("actor", "--learner", learner.address))
            if count == 1:
                until(lambda: learner.front.joined, "the first actor to join", 60)
        networks = {pack_version(1, 0): _opened(learner)}
        # Nothing is drawn before all are there: until then those that are early fill their windows and wait.
        until(lambda: replay.statistics("0123456789abcdef").peers == len(MODES), "all actors at replay", 60)
        batches: list[Drawn] = []
        _draw(learner, batches, 12)

        newer = seeded_network(lambda: build_network(CONFIG.model, learner.definition.spaces.result()), 99)
        assert learner.publisher.publish(newer, 1)
        networks[pack_version(1, 1)] = newer
        _draw_until_each(learner, batches, slots=SLOTS * len(MODES), unrolls=UNROLLS_PER_SLOT)

        actors[KILLED].kill()
        processes.service("actor", "--learner", learner.address)
        until(lambda: len(learner.front.joined) > len(MODES), "the new actor to join", 60)
        _draw_until_each(learner, batches, slots=SLOTS * (len(MODES) + 1), unrolls=UNROLLS_PER_SLOT)
        yield Session(learner.front.joined, batches, networks)


def _opened(learner: LearnerParts) -> Network:
    learner.open()
    return learner.network


def _draw(learner: LearnerParts, batches: list[Drawn], count: int) -> None:
    for _ in range(count):
        batch = learner.next()
        batches.append(Drawn(copied(batch.views), batch.new_ticks.copy(), batch.versions.copy()))


def _draw_until_each(learner: LearnerParts, batches: list[Drawn], *, slots: int, unrolls: int) -> None:
    """Draws until `slots` slots have been seen and each has at least `unrolls` unrolls."""
    seen: dict[float, int] = defaultdict(int)
    checked = 0

    def enough() -> bool:
        nonlocal checked
        _draw(learner, batches, 1)
        for batch in batches[checked:]:
            for tag in batch.views["observation"][:, 0, 0]:
                seen[tag] += 1
        checked = len(batches)
        return len(seen) >= slots and min(seen.values()) >= unrolls

    until(enough, f"{unrolls} unrolls of each of {slots} slots; so far {dict(seen)}", 60)


# -- the stream ------------------------------------------------------------------------------------------------------


def _check_stream(unrolls: list[Views]) -> None:
    """Walks over a slot's unrolls with a stream made here; every field of every tick must agree."""
    tag = int(unrolls[0]["observation"][0, 0])
    episode, step = 0, 0
    ticks, actions, rewards = 0, 0.0, np.float32(0)  # the network's state, counted along
    previous_action, previous_reward = 0, np.float32(0)
    for number, unroll in enumerate(unrolls):
        where = f"tag {tag}, unroll {number}"
        assert int(unroll["state/ticks"]) == ticks, where
        assert float(unroll["state/actions"]) == actions, where
        assert float(unroll["state/rewards"][0]) == rewards, where
        assert int(unroll["previous_action"]) == previous_action, where
        assert float(unroll["previous_reward"]) == previous_reward, where
        valid_ticks = 0
        for tick in range(TICKS + 1):
            at = f"{where}, tick {tick}"
            first, valid = step == 0, step < episode_length(episode)
            assert unroll["observation"][tick].tolist() == [tag, episode, step], at
            assert bool(unroll["first"][tick]) == first, at
            if tick == TICKS:  # the tail is the next unroll's first row
                break
            assert bool(unroll["valid"][tick]) == valid, at
            action = int(unroll["action"][tick])
            assert 0 <= action < 3, at
            last = step + 1 == episode_length(episode)
            reward = np.float32(reward_of(episode, step, action + FIRST_ACTION)) if valid else np.float32(0)
            assert unroll["reward"][tick] == reward, at
            assert bool(unroll["truncated"][tick]) == (last and ends_by_truncation(episode)), at
            assert bool(unroll["terminated"][tick]) == (last and not ends_by_truncation(episode)), at
            if first:
                ticks, actions, rewards, previous_action, previous_reward = 0, 0.0, np.float32(0), 0, np.float32(0)
            ticks, actions, rewards = ticks + 1, actions + previous_action, rewards + previous_reward
            previous_action, previous_reward = action, reward
            valid_ticks += valid
            episode, step = (episode, step + 1) if valid else (episode + 1, 0)
        assert int(unroll["new_ticks"]) == valid_ticks, where
        assert int(unroll["item_version"]) == unroll["version"].max(), where
        assert (np.diff(unroll["version"]) >= 0).all(), where


@pytest.mark.parametrize("mode", MODES)
def test_every_tick_is_what_the_environment_gave_and_nothing_is_missing_between_unrolls(
    session: Session, mode: str
) -> None:
    for tag in session.tags(MODES.index(mode)):
        assert len(session.unrolls[tag]) >= UNROLLS_PER_SLOT
        _check_stream(session.unrolls[tag])


def test_the_stream_of_a_restarted_actor_begins_anew_and_no_unroll_mixes_two(session: Session) -> None:
    assert len(session.joined) == RESTARTED + 1
    expected = [tag for actor in range(RESTARTED + 1) for tag in session.tags(actor)]
    assert len(set(expected)) == SLOTS * (RESTARTED + 1)
    assert sorted(session.unrolls) == sorted(expected)
    for tag, unrolls in session.unrolls.items():
        assert all((unroll["observation"][:, 0] == tag).all() for unroll in unrolls)
    for tag in session.tags(RESTARTED):
        assert session.unrolls[tag][0]["first"][0]
        assert len(session.unrolls[tag]) >= UNROLLS_PER_SLOT
        _check_stream(session.unrolls[tag])


def test_the_learner_computes_what_the_actor_computed_at_every_tick(session: Session) -> None:
    torch.set_num_threads(1)
    acted_by: set[int] = set()
    invalid_ticks = 0
    for drawn in session.batches:
        batch = UnrollBatch.from_views(drawn.views, torch.device("cpu"))
        behaviour = batch.behaviour["logits"]
        logits = torch.full_like(behaviour, torch.nan)
        for version, network in session.networks.items():  # the weights that acted, tick by tick
            with torch.inference_mode():
                answered = evaluate(network, batch).logits[:-1]
            logits = torch.where((batch.version == version).unsqueeze(-1), answered, logits)
        assert (logits - behaviour).abs().max() < 1e-5
        log_prob = torch.log_softmax(logits, -1).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        assert (log_prob - batch.behaviour["log_prob"]).abs().max() < 1e-5
        acted_by |= set(batch.version.flatten().tolist())
        invalid_ticks += int((~batch.valid).sum())
    assert acted_by == set(session.networks)  # both versions were taken up, and no other was ever seen
    assert invalid_ticks > 100


def test_the_comparison_would_notice_other_weights_and_a_missing_reset(session: Session) -> None:
    """The guard of the test above: with one thing wrong it fails."""
    drawn = next(each for each in session.batches if each.views["first"][:, 1:TICKS].any())
    views = copied(drawn.views)
    old, new = (session.networks[version] for version in sorted(session.networks))
    used = new if (views["version"] == max(session.networks)).all() else old

    def difference(views: Views, network: Network) -> float:
        batch = UnrollBatch.from_views(views, torch.device("cpu"))
        with torch.inference_mode():
            return float((evaluate(network, batch).logits[:-1] - batch.behaviour["logits"]).abs().max())

    assert difference(views, used) < 1e-5
    assert difference(views, old if used is new else new) > 1e-2
    assert difference(views | {"first": np.zeros_like(views["first"])}, used) > 1e-2
    assert difference(views | {"previous_reward": views["previous_reward"] + 1}, used) > 1e-2
    assert isinstance(used, CountingNetwork)
