"""The learner's control of its shards: each is opened again after a restart, and their ledgers are one."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from headrace.arguments import Address
from headrace.config import RunConfig
from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.v1 import replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner import replay_link
from headrace_learner.replay_link import ReplayLinks, open_request

CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "unused"},
        "agent": {"name": "r2d2"},
        "learner": {"batch_size": 8},
        "replay": {"shards": 2, "max_items": 200},
    }
)
REQUEST = open_request("run", 1, CONFIG, PayloadSchema({"number": ArraySpec("<i8", ())}))
ADDRESSES = [Address("127.0.0.1", 1), Address("127.0.0.1", 2)]


class Fault(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code = lambda: code
        self.details = lambda: text


class Shard:
    """What a shard answers; also the client that the link has of it."""

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.away = False
        self.opened = False
        self.refuses = ""
        self.ports = (boot, boot)
        self.ledger: dict[str, Any] = {}
        self.open_run = SimpleNamespace(name="OpenRun", peer="replay", attempt=self._open_run)

    def restart(self, boot: int) -> None:
        self.boot, self.opened, self.ledger = boot, False, {}

    def _open_run(self, request: replay_pb2.OpenRunRequest, *_: Any) -> replay_pb2.OpenRunReply:
        if self.refuses:
            raise Fault(grpc.StatusCode.FAILED_PRECONDITION, self.refuses)
        assert request == REQUEST
        self.opened = True
        return replay_pb2.OpenRunReply(boot=self.boot, items_port=self.ports[0], samples_port=self.ports[1])

    def statistics(self, request: replay_pb2.StatisticsRequest) -> replay_pb2.StatisticsReply:
        if self.away:
            raise Fault(grpc.StatusCode.UNAVAILABLE, "nobody is there")
        if not self.opened:
            raise Fault(grpc.StatusCode.FAILED_PRECONDITION, "no run is open")
        return replay_pb2.StatisticsReply(boot=self.boot, ledger=replay_pb2.ReplayLedger(**self.ledger))

    def close(self) -> None:
        pass


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    made = [Shard(10), Shard(20)]
    by_address = dict(zip(map(str, ADDRESSES), made, strict=True))
    monkeypatch.setattr(replay_link, "ReplayClient", by_address.__getitem__)
    return made


def links_to(shards: list[Shard], drawn: Counter[int], registry: CollectorRegistry | None = None) -> ReplayLinks:
    links = ReplayLinks(ADDRESSES, threading.Event(), LearnerMetrics(registry or CollectorRegistry()))
    assert links.open(REQUEST)
    for link in links.shards:
        link._drawn_from = drawn.__getitem__
    return links


def test_the_ledger_and_the_fill_are_those_of_all_shards(shards: list[Shard]) -> None:
    links = links_to(shards, Counter())
    assert links.fill is None  # nobody has looked yet
    shards[0].ledger = {"received": 90, "stored": 80, "present": 70, "removed": {"evicted": 10}, "sampled": 40}
    shards[1].ledger = {"received": 30, "stored": 20, "present": 20, "rejected": {"gap": 10}, "sampled": 2}
    assert links.poll()
    total = links.ledger()
    assert (total.received, total.stored, total.present, total.sampled) == (120, 100, 90, 42)
    assert (total.removed, total.rejected) == (Counter(evicted=10), Counter(gap=10))
    assert links.fill == pytest.approx((70 + 20) / 200)


def test_a_shard_that_is_away_hides_none_of_the_others(shards: list[Shard]) -> None:
    links = links_to(shards, Counter())
    assert links.poll()
    shards[0].away = True
    shards[1].ledger = {"received": 5, "stored": 5, "present": 5}
    assert links.poll()
    assert links.ledger().present == 5
    shards[1].away = True
    assert not links.poll()


def test_a_shard_that_was_restarted_is_opened_again_and_what_it_held_is_booked_as_lost(shards: list[Shard]) -> None:
    registry, drawn = CollectorRegistry(), Counter({20: 30})
    links = links_to(shards, drawn, registry)
    shards[1].ledger = {"received": 60, "stored": 50, "present": 50, "waiting": 10, "sampled": 28}
    assert links.poll()
    shards[1].restart(21)
    assert links.poll()  # the other one answers
    assert shards[1].opened
    shards[1].ledger = {"received": 7, "stored": 7, "present": 7, "sampled": 1}
    assert links.poll()
    total = links.ledger()
    assert (total.received, total.stored, total.present, total.lost_at_restart) == (57, 57, 7, 50)
    assert (total.sampled, total.unknown) == (29, 2)
    assert registry.get_sample_value("headrace_learner_items_lost_at_restart_total") == 50
    assert registry.get_sample_value("headrace_learner_reconnects_total", {"peer": "replay"}) == 1
    drawn[20] += 8  # a batch that the dead one had sent arrives
    assert links.ledger().unknown == 10


def test_a_refusal_is_a_configuration_error_in_the_shards_words(shards: list[Shard]) -> None:
    shards[1].refuses = "table 'unrolls' may grow to 8,000 bytes, and the machine's memory is 4,000"
    links = ReplayLinks(ADDRESSES, threading.Event(), LearnerMetrics(CollectorRegistry()))
    with pytest.raises(ConfigError, match=r"replay refused OpenRun: .* may grow to 8,000 bytes, and the machine's"):
        links.open(REQUEST)


def test_a_restarted_shard_that_refuses_ends_the_learner_too(shards: list[Shard]) -> None:
    links = links_to(shards, Counter())
    shards[0].restart(11)
    shards[0].refuses = "less memory than before"
    with pytest.raises(ConfigError, match="less memory than before"):
        links.poll()


def test_a_shard_that_comes_back_at_other_ports_is_refused(shards: list[Shard]) -> None:
    links = links_to(shards, Counter())
    shards[0].restart(11)
    shards[0].ports = (99, 98)
    with pytest.raises(ComponentLost, match="other ports"):
        links.poll()
