"""The actor's newest weights: never older than what was there, also when a restarted learner offers its first ones."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from headrace.rpc.chunks import Blob
from headrace.unroll import pack_version
from headrace_actor.weights import WeightSubscription


@pytest.fixture
def subscription() -> WeightSubscription:
    return WeightSubscription(cast(Any, None), b"a" * 16, "run", threading.Event(), safetensors.torch.load)


def offer(subscription: WeightSubscription, epoch: int, version: int) -> None:
    data = safetensors.torch.save({"weight": torch.tensor([float(version)])})
    subscription._take(Blob(epoch=epoch, version=version, data=data, published_at=1.5, return_scale=1.0 + version))


def test_there_are_no_weights_before_the_learner_published_some(subscription: WeightSubscription) -> None:
    assert subscription.newest() is None
    subscription._stopping.set()
    assert not subscription.wait_for_first(lambda: None)


def test_older_and_repeated_versions_are_ignored_and_a_later_epoch_wins_from_its_first_version_on(
    subscription: WeightSubscription,
) -> None:
    taken = []
    for version in ((1, 500), (1, 499), (1, 500), (2, 0), (1, 900), (2, 1)):
        offer(subscription, *version)
        newest = subscription.newest()
        assert newest is not None
        taken.append((newest.version, newest.parameters["weight"].item()))
        assert newest.return_scale == 1 + taken[-1][1]
    expected = [(1, 500), (1, 500), (1, 500), (2, 0), (2, 0), (2, 1)]
    assert taken == [(pack_version(*version), version[1]) for version in expected]
    assert subscription.wait_for_first(lambda: None)
