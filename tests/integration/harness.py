"""Real processes and real sockets for the tests: starting and ending processes, and a learner without its trainer.

Every process is started by `Processes`, which ends it, and whatever it started, when the `with` is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import grpc
import numpy as np
import numpy.typing as npt
import psutil
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.arguments import Address
from headrace.config import EnvConfig, RunConfig
from headrace.launch import Ports
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network
from headrace.rpc.channel import is_transient
from headrace.rpc.clients import ReplayClient
from headrace.rpc.options import LEARNER_SERVICE
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc, replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import PayloadSchema
from headrace_learner.evaluations import Evaluations
from headrace_learner.front import Definition, LearnerFront, Opened
from headrace_learner.loader import LoadedBatch, Loader, Source
from headrace_learner.publisher import WeightPublisher
from headrace_learner.replay_link import ReplayLink, open_request
from headrace_learner.roster import Roster

TESTS = Path(__file__).resolve().parents[1]
START_S = 60.0  # for a process to import torch and answer, on a busy machine

# -- waiting ---------------------------------------------------------------------------------------------------------


class Deadline:
    """A limit on a wait; `check` fails the test once it has passed."""

    def __init__(self, seconds: float, what: str) -> None:
        self._at = time.monotonic() + seconds
        self._what = what

    def check(self) -> None:
        assert time.monotonic() < self._at, f"waited too long for {self._what}"


def until(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """Polls until the condition is true and returns its value; fails the test after `seconds`."""
    deadline = Deadline(seconds, what)
    while not (value := condition()):
        deadline.check()
        time.sleep(0.01)
    return value


# -- processes -------------------------------------------------------------------------------------------------------

_MARK = "TEST_PROCESSES_OF"  # in the environment of all that a Processes started, however indirectly
_started: list[Process] = []


@dataclass
class Process:
    """One started process, in a session of its own."""

    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """kill -9, of this process alone."""
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        self.popen.terminate()

    def wait(self, timeout_s: float = START_S) -> int:
        """The exit code; fails the test if the process goes on for longer."""
        until(lambda: not self.running, f"the end of {self.name}", timeout_s)
        return cast(int, self.popen.returncode)

    def errors(self) -> str:
        """What it wrote to stderr."""
        return self.log.with_suffix(".err").read_text(errors="replace")

    def text(self) -> str:
        return self.log.read_text(errors="replace") + self.errors()


class Processes:
    """Starts processes, and kills all of them and their descendants when the `with` is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = Ports()  # kept, so that what is restarted finds its ports again
        self._mark = uuid.uuid4().hex
        self._own: list[Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._own:
            with suppress(ProcessLookupError):
                process.popen.kill()
        for left in self.left():  # descendants
            with suppress(psutil.NoSuchProcess):
                left.kill()
        for process in self._own:
            process.popen.wait()
            if process.popen.stdin is not None:
                process.popen.stdin.close()
        self.ports.close()

    def start(
        self, name: str, arguments: Sequence[str], *, path: Sequence[Path] = (), cwd: Path | None = None
    ) -> Process:
        """Runs `python ARGUMENTS`, with `path` as PYTHONPATH and its output in files.

        Its stdin stays open for as long as this process lives (the services' lifeline).
        """
        log = self.folder / f"{name}-{len(self._own)}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {_MARK: self._mark, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), *given])
        with log.open("wb") as output, log.with_suffix(".err").open("wb") as errors:
            popen = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )
        process = Process(name, log, popen)
        self._own.append(process)
        _started.append(process)
        return process

    def service(self, service: str, *arguments: str, metrics_port: int = 0) -> Process:
        """Runs `python -m headrace_SERVICE`; user code comes from tests/."""
        own = ["--metrics-bind", f"127.0.0.1:{metrics_port}", "--lifeline", "--log-format", "text"]
        return self.start(service, ["-m", f"headrace_{service}", *arguments, *own], path=[TESTS])

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was started here, descendants included."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def logs() -> list[tuple[str, str]]:
    """Name and end of the log of each process that the running test could have seen."""
    return [(process.log.name, process.text()[-6000:]) for process in _started]


def forget_ended() -> None:
    """A test has ended: the processes that have, too, are no concern of the next one."""
    _started[:] = [process for process in _started if process.running]


def metric(port: int, name: str, **labels: str) -> float:
    """One value from a service's /metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as reply:
        lines = reply.read().decode().splitlines()
    series = name + ("{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else "")
    return float(next(line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == series))


# -- replay ----------------------------------------------------------------------------------------------------------


class ReplayShard:
    """A replay process on ports that it keeps over restarts, and its statistics."""

    def __init__(self, processes: Processes) -> None:
        take = processes.ports.take
        self._processes = processes
        self.address = Address("127.0.0.1", take())
        self._items, self._samples, self.metrics_port = take(), take(), take()
        self.items = f"127.0.0.1:{self._items}"
        self.samples = f"127.0.0.1:{self._samples}"
        self.client = ReplayClient(str(self.address))
        self.process: Process
        self.start()

    def start(self) -> None:
        ports = ["--items-port", str(self._items), "--samples-port", str(self._samples)]
        self.process = self._processes.service(
            "replay", "--bind", str(self.address), *ports, metrics_port=self.metrics_port
        )

    def open(self, request: replay_pb2.OpenRunRequest) -> replay_pb2.OpenRunReply:
        """Opens the run, as soon as the process answers."""

        def opened() -> replay_pb2.OpenRunReply | None:
            try:
                return self.client.open_run(request)
            except grpc.RpcError as error:
                if not is_transient(error):
                    raise
                return None

        return cast(replay_pb2.OpenRunReply, until(opened, "replay to answer", START_S))

    def statistics(self, run: str) -> replay_pb2.StatisticsReply:
        return self.client.statistics(replay_pb2.StatisticsRequest(run=run))


@contextmanager
def replay_shard(processes: Processes) -> Iterator[ReplayShard]:
    shard = ReplayShard(processes)
    try:
        yield shard
    finally:
        shard.client.close()


# -- the learner's parts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """What a Join answered."""

    lease: int
    incarnation: int
    env: EnvConfig


class Front(LearnerFront):
    """The real front, except that lease i may be given an environment of its own."""

    environments: Sequence[EnvConfig] = ()
    joined: list[Joined]

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinReply:
        reply = await super().Join(request, context)
        config = json.loads(reply.config_json)
        if self.environments:
            env = self.environments[reply.lease % len(self.environments)]
            config["env"] = env.model_dump(mode="json", by_alias=True)
            reply.config_json = json.dumps(config)
        self.joined.append(Joined(reply.lease, reply.incarnation, EnvConfig.model_validate(config["env"])))
        return reply


@dataclass
class LearnerParts:
    """All of a learner's service but its trainer: the test decides what is drawn and published.

    `address` is there at once; `open` waits for the first actor, publishes `network` as version 0, opens the run at
    replay and makes the loader.
    """

    config: RunConfig
    replay: Address
    address: str
    front: Front
    roster: Roster
    definition: Definition
    publisher: WeightPublisher
    link: ReplayLink
    stopping: threading.Event
    metrics: LearnerMetrics
    failures: list[BaseException]
    evaluations: Evaluations | None  # None where the config has no evaluation
    network: Network = field(init=False)
    schema: PayloadSchema = field(init=False)
    loader: Loader = field(init=False)
    _closing: ExitStack = field(default_factory=ExitStack)

    def open(self) -> None:
        spaces = self.definition.wait(self.stopping, Deadline(START_S, "the first actor to describe itself").check)
        assert spaces is not None
        self.network = build_network(self.config.model, spaces)
        self.schema = make_agent(self.config.agent, spaces, state_spec(self.network)).schema
        assert self.publisher.publish(self.network, 0)
        assert self.link.open(open_request(RUN, EPOCH, self.config, self.schema))
        self.definition.opened.set_result(Opened(self.schema, [self.link.items_address]))
        learner = self.config.learner
        source = Source(
            [self.link.samples_address],
            RUN,
            EPOCH,
            UNROLLS,
            learner.batch_size,
            learner.prefetch,
            codec=self.config.replay.codec,
        )
        self.loader = Loader(source, self.schema, self.metrics)
        self._closing.callback(self.loader.close)
        thread = threading.Thread(target=partial(self.link.run, self.loader.ledger.drawn_from), name="replay-link")
        thread.start()
        self._closing.callback(thread.join)

    def next(self, timeout_s: float = START_S) -> LoadedBatch:
        """The next batch; fails the test if there is none in time."""
        batch = until(lambda: self.loader.next(0.5), "a batch", timeout_s)
        self.loader.ledger.train(len(batch.new_ticks))
        return cast(LoadedBatch, batch)

    def close(self) -> None:
        self.stopping.set()
        self._closing.close()


RUN, EPOCH = "0123456789abcdef", 1


@contextmanager
def learner_parts(config: RunConfig, replay: Address, environments: Sequence[EnvConfig] = ()) -> Iterator[LearnerParts]:
    """Serves Join, Describe, Weights and Report on a free port, connected to a replay shard."""
    failures: list[BaseException] = []
    metrics = LearnerMetrics(CollectorRegistry())
    stopping = threading.Event()

    def register(server: Any) -> None:
        cast(Any, learner_pb2_grpc.add_LearnerServicer_to_server)(front, server)

    server = Server("127.0.0.1:0", register, failures.append, services=[LEARNER_SERVICE])
    roster = Roster(EPOCH, config.learner.lease_s, config.stop, metrics)
    definition = Definition(None)
    publisher = WeightPublisher(EPOCH, config.learner.min_publish_s, server.call_soon, metrics)
    evaluations = None if config.evaluation.every_s is None else Evaluations(metrics)
    front = Front(RUN, EPOCH, config, roster, definition, publisher, evaluations)
    front.environments, front.joined = environments, []
    link = ReplayLink(replay, stopping, metrics)
    with ExitStack() as stack:
        address = f"127.0.0.1:{server.start()}"
        stack.callback(server.stop, 0.1)
        server.set_serving(True)
        parts = LearnerParts(
            config,
            replay,
            address,
            front,
            roster,
            definition,
            publisher,
            link,
            stopping,
            metrics,
            failures,
            evaluations,
        )
        stack.callback(link.close)
        stack.callback(parts.close)
        yield parts
    assert failures == []


def copied(views: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Views of a batch that outlive the next one."""
    return {name: np.array(view) for name, view in views.items()}


def seeded_network(make: Callable[[], Network], seed: int) -> Network:
    """A network with reproducible random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()
