"""`--serial`: the same collectors, table and trainer, stepped in one process in a fixed order.

The only mode that promises the same bits for the same seed, and the place to set a breakpoint.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.config import RunConfig
from headrace.ending import conclusion, resume_line
from headrace.envs.guarded import end_process
from headrace.envs.seeds import table_generator
from headrace.envs.slots import make_slots
from headrace.errors import ConfigError, HeadraceError
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.run_dir import new_run_dir
from headrace.service import Lifetime
from headrace.service_args import TrainOptions
from headrace.table_settings import TableSettings
from headrace.telemetry import logs
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.health import Health
from headrace.telemetry.labels import DropReason, EnvFault
from headrace.telemetry.progress import ProgressView
from headrace.telemetry.recorder import Recorder
from headrace.unroll import pack_version
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS, Floats
from headrace.wire.payload import PayloadSchema
from headrace_actor.collector import Collector, Identity, Observers, Weights
from headrace_actor.statistics import Statistics, make_statistics
from headrace_learner.account import Account
from headrace_learner.importance import importance_weights, relative
from headrace_learner.ledgers import ActorLedger, LearnerLedger, ReplayLedger
from headrace_learner.loader import LoadedBatch
from headrace_learner.normalizers import Normalizers
from headrace_learner.replay_link import check_bytes, settings_of
from headrace_learner.roster import EnvFaults, Roster
from headrace_learner.run_folder import RunFolder
from headrace_learner.trainer import Trainer, check_precision, choose_device
from headrace_learner.training import Training, init_from, resume
from headrace_replay.table import Draw, Table, TableSpec, make_table


def train(config: RunConfig, options: TrainOptions) -> int:
    """`headrace train --serial`; returns the exit code."""
    lifetime = Lifetime()
    lifetime.watch_signals()
    logs.configure("serial", "auto", "warning")
    try:
        return train_under(lifetime, config, options)
    except HeadraceError as error:
        sys.stderr.write(f"headrace: error: {error}\n")
        return int(error.exit_code)


def train_under(lifetime: Lifetime, config: RunConfig, options: TrainOptions) -> int:
    """The run itself, until its end or the lifetime's; raises HeadraceError."""
    if config.evaluation.every_s is not None:
        raise ConfigError(
            f"evaluation.every_s: {config.evaluation.every_s:g}, but --serial has no process for it and goes by no "
            "clock; set it to null, or train without --serial"
        )
    if config.replay.shards > 1:
        raise ConfigError(
            f"replay.shards: {config.replay.shards}, but --serial has one table; set it to 1, or train without --serial"
        )
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    device = choose_device(config.learner.device)
    check_precision(config.learner.precision, device)
    folder = RunFolder.open(options.run_dir or new_run_dir(config.name), config, options.resume)
    sys.stdout.write(f"run {folder.path}\n")
    metrics = LearnerMetrics(CollectorRegistry())
    slots = [make_slots(config.env, config.imports, end_process) for _ in range(config.actor.count)]
    spaces = slots[0].spaces
    if folder.spaces is not None and (difference := folder.spaces.difference(spaces)):
        raise ConfigError(f"the environment does not fit the run: {difference}")
    folder.write_spaces(spaces)
    network = build_network(config.model, spaces)
    agent = make_agent(config.agent, spaces, state_spec(network))
    settings = settings_of(config)
    check_bytes(settings, config, agent.schema.payload_bytes)  # nothing is compressed here: nothing travels
    trainer = Trainer(network, agent, config, device)
    roster = Roster(folder.epoch, float("inf"), config.stop, metrics)
    if folder.checkpoint is not None:
        resume(folder.checkpoint, trainer, roster)
    elif options.init_from is not None:
        init_from(options.init_from, trainer)

    policies = [make_policy(config.model, spaces) for _ in slots]
    publisher = DirectPublisher(folder.epoch, policies[0].decode)
    publisher.publish(network, trainer.updates, trainer.return_scale)
    actors = []
    for index, (own_slots, policy) in enumerate(zip(slots, policies, strict=True)):
        statistics = make_statistics(config.model, agent, spaces, own_slots.num_slots)
        actor = SerialActor(index, roster, statistics, trainer.normalizers)
        identity = Identity(config.seed, actor.lease, actor.incarnation)
        observers = Observers(stepped=actor.stepped, episode=actor.episode, failed=actor.failed)
        actor.collector = Collector(own_slots, policy, agent, identity, publisher.newest, observers, statistics)
        actors.append(actor)
    table = make_table(table_spec(settings), random=table_generator(config.seed, folder.epoch))
    stepping = Stepping(actors, table, agent.schema, settings, lifetime, LearnerLedger(metrics))

    view = ProgressView(sys.stdout)
    account = Account(config, trainer, roster, TableView(table), stepping.ledger)
    recorder = ShownRecorder(folder, config, view)
    training = Training(
        config=config,
        trainer=trainer,
        source=stepping,
        publisher=publisher,
        roster=roster,
        account=account,
        recorder=recorder,
        checkpoints=folder.checkpoints,
        metrics=metrics,
        health=Health(),
        lifetime=lifetime,
        run=folder.run,
        spaces=spaces,
    )
    outcome = training.train()
    trained_until = time.monotonic()
    stepping.leave()
    view.close()
    recorder.close()
    for own_slots in slots:
        own_slots.close()
    if options.summary_json is not None:
        summary = account.summary(folder.run, folder.epoch, outcome, trained_until)
        options.summary_json.write_text(json.dumps(summary, indent=1) + "\n")
    text, code = conclusion(outcome, lifetime.signal, config.stop)
    sys.stdout.write(f"{text}\n{resume_line(folder.path, '--serial')}\n")
    return int(code)


class SerialActor:
    """One actor's collector, and what its process would report, reported directly."""

    collector: Collector

    def __init__(self, index: int, roster: Roster, statistics: Statistics | None, normalizers: Normalizers) -> None:
        self._id = index.to_bytes(16, "big")
        self._roster = roster
        self._statistics = statistics
        self._normalizers = normalizers
        member = roster.join(self._id, index)
        self.lease, self.incarnation = member.lease, member.incarnation
        self.ledger = ActorLedger()
        self._steps = 0
        self._reports = 0
        self._returns: list[float] = []
        self._faults = EnvFaults()

    def stepped(self, inference_s: float, env_s: float, valid: int) -> None:
        self._steps += valid

    def episode(self, return_: float, length: int, judged: bool) -> None:
        if judged:
            self._returns.append(return_)

    def failed(self, reason: EnvFault, abandoned: int) -> None:
        counted = self._faults
        self._faults = EnvFaults(
            counted.failures + Counter({reason: 1}), counted.abandoned + Counter({reason: abandoned})
        )

    def report(self, *, leaving: bool = False) -> None:
        self._reports += 1
        told = self._id, self._reports, self.ledger, self._steps, self._returns
        self._roster.report(*told, leaving=leaving, faults=self._faults)
        self._returns = []
        if self._statistics is not None:
            self._normalizers.merge(self._statistics.take())


class Stepping:
    """Batches from environments in this process: steps the actors in turn until the table has one."""

    def __init__(
        self,
        actors: list[SerialActor],
        table: Table,
        schema: PayloadSchema,
        settings: TableSettings,
        lifetime: Lifetime,
        ledger: LearnerLedger,
    ) -> None:
        self.ledger = ledger
        self._actors = actors
        self._turns = cycle(actors)
        self._table = table
        self._batch_size = settings.draw
        self._importance_exponent = settings.importance_exponent
        self._drawn: Draw  # the last one
        self._lifetime = lifetime
        self._schema = schema
        self._buffer = schema.allocate(settings.draw)
        self._views = schema.views(self._buffer)
        self._held: deque[tuple[SerialActor, list[Item]]] = deque()  # made, and not in the table yet

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch; None if the process is to stop first. The time plays no part."""
        while not self._table.can_draw(self._batch_size):
            if not self._held:
                actor = next(self._turns)
                items = actor.collector.collect(self._lifetime.stopping.is_set)
                if items is None:
                    return None
                actor.ledger.made += len(items)
                actor.ledger.held += len(items)
                self._held.append((actor, items))
                actor.report()
            while self._held and (count := self._table.room(self._held[0][1])):
                actor, items = self._held.popleft()
                self._table.insert(items[:count])
                if items[count:]:
                    self._held.appendleft((actor, items[count:]))
                actor.ledger.held -= count
                actor.ledger.acknowledged += count
        return self._draw()

    def prioritize(self, priorities: Floats) -> None:
        """New priorities [B] of the items of the last batch."""
        self._table.update(self._drawn.ids, priorities)

    def ask(self) -> None:
        """Nothing is got ready ahead: `next` steps the environments itself."""

    def leave(self) -> None:
        """What is held is dropped, as when actors are stopped."""
        for actor in self._actors:
            if actor.ledger.held:
                actor.ledger.dropped[DropReason.STOPPED] += actor.ledger.held
                actor.ledger.held = 0
            actor.report(leaving=True)
        self._held.clear()

    def _draw(self) -> LoadedBatch:
        started = time.perf_counter()
        self._drawn = draw = self._table.draw(self._batch_size)
        self.ledger.draw(0, self._batch_size)
        self._schema.fill(self._buffer, draw.payloads)
        return LoadedBatch(
            views=self._views,
            weights=self._weights(draw),
            new_ticks=np.where(draw.times_sampled > 0, 0, draw.new_ticks),
            versions=draw.versions,
            malformed=0,
            copy_s=time.perf_counter() - started,
        )

    def _weights(self, draw: Draw) -> npt.NDArray[np.float32]:
        if self._importance_exponent is None:
            return np.ones(self._batch_size, np.float32)
        one_shard = np.zeros(self._batch_size, np.int64)
        return relative(importance_weights(draw.probabilities, one_shard, draw.table_size, self._importance_exponent))


def table_spec(settings: TableSettings) -> TableSpec:
    """The one table of such a run."""
    return TableSpec(
        name=UNROLLS,
        sampler=settings.sampler,
        max_items=settings.max_items,
        max_bytes=settings.max_bytes,
        min_size=settings.min_size,
        samples_per_insert=settings.samples_per_insert,
        error_buffer=settings.error_buffer,
        priority_exponent=settings.priority_exponent,
    )


class TableView:
    """The table as the account sees replay."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def fill(self) -> float:
        return len(self._table) / self._table.max_items

    def ledger(self) -> ReplayLedger:
        table = self._table
        return ReplayLedger(
            received=table.inserted,
            stored=table.inserted,
            present=len(table),
            removed=table.removed.copy(),
            sampled=table.sampled,
        )


class DirectPublisher:
    """Hands the trainer's parameters to the collectors, a copy per version, as if they had travelled."""

    def __init__(self, epoch: int, decode: Callable[[bytes], Any]) -> None:
        self.epoch = epoch
        self._decode = decode
        self._encoder: ParameterEncoder | None = None
        self._newest: Weights | None = None
        self._version = -1

    def newest(self) -> Weights | None:
        return self._newest

    def due(self, version: int) -> bool:
        return version > self._version

    def publish(self, network: Network, version: int, return_scale: float = 1.0) -> bool:
        """As WeightPublisher.publish."""
        if self._encoder is None or self._encoder.network is not network:
            self._encoder = ParameterEncoder(network)
        blob = self._encoder.encode()
        if blob is None:
            return False
        self._version = version
        packed = pack_version(self.epoch, version)
        self._newest = Weights(self._decode(blob), packed, time.time(), return_scale)
        return True

    def age_s(self, version: int) -> float | None:
        """Not told: nothing travels here."""
        return None


class ShownRecorder(Recorder):
    """Shows each record as it is written."""

    def __init__(self, folder: RunFolder, config: RunConfig, view: ProgressView) -> None:
        super().__init__(folder.path, config.telemetry.tensorboard)
        self._view = view

    def write(self, record: Mapping[str, Any], step: int) -> None:
        super().write(record, step)
        self._view.update(record)
