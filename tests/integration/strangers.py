"""Those who have no business at a run's ports: what they say, and a run that they come to while it trains."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import msgpack
import psutil
import zmq
import zmtp
from command import Command, running
from harness import metric, until

from headrace.rpc.v1 import learner_pb2, replay_pb2
from headrace.wire import sockets
from headrace.wire.messages import PROTOCOL, Hello, encode

MIB = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HTTP = b"GET /metrics HTTP/1.1\r\nHost: run\r\nUser-Agent: something that is long enough to be taken for more\r\n\r\n"


@dataclass(frozen=True)
class Port:
    """One that a service of the run listens at. `speaks`: zmtp, grpc or http."""

    service: str
    name: str
    number: int
    speaks: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.number}"


@dataclass
class Run:
    """A run that trains, its ports, and what its services use."""

    command: Command

    def __post_init__(self) -> None:
        self.command.wait_for("updates", 20)
        self.processes = {service: self.command.child(service) for service in ("replay", "learner", "actor")}
        self.ports = [port for service, process in self.processes.items() for port in _ports(service, process)]

    def port(self, name: str) -> Port:
        return next(port for port in self.ports if port.name == name)

    def trains(self, updates: int = 20) -> None:
        """Waits for so many updates more."""
        self.command.wait_for("updates", self.command.newest()["updates"] + updates)

    def resident(self) -> dict[str, float]:
        """In MiB."""
        return {service: process.memory_info().rss / MIB for service, process in self.processes.items()}

    def files(self) -> dict[str, int]:
        return {service: process.num_fds() for service, process in self.processes.items()}

    def replay(self, name: str, **labels: str) -> float:
        """One of replay's metrics."""
        return metric(self.port("replay metrics").number, f"headrace_replay_{name}", **labels)

    def refused_calls(self, service: str) -> float:
        return metric(self.port(f"{service} metrics").number, f"headrace_{service}_rpc_refused_total")

    def log(self, service: str) -> str:
        name = "actor-0" if service == "actor" else service
        return (self.command.run_dir / "logs" / f"{name}.log").read_text()

    @property
    def id(self) -> str:
        return str(self.command.versions()["run"])

    def is_whole(self) -> None:
        """Nobody died, and nobody was started anew."""
        for service, process in self.processes.items():
            assert self.command.child(service).pid == process.pid
        for service in self.processes:
            assert "Traceback" not in self.log(service)


def _ports(service: str, process: psutil.Process) -> Iterator[Port]:
    words = process.cmdline()
    flags = {
        "--items-port": ("items", "zmtp"),
        "--samples-port": ("samples", "zmtp"),
        "--bind": (f"{service} gRPC", "grpc"),
        "--metrics-bind": (f"{service} metrics", "http"),
    }
    for flag, (name, speaks) in flags.items():
        if flag in words:
            yield Port(service, name, int(words[words.index(flag) + 1].rpartition(":")[2]), speaks)


@contextmanager
def training(folder: Path, *more: str) -> Iterator[Run]:
    """CartPole with one actor, until the test is done."""
    forever = ["--stop.return_", "null", "--stop.steps", "null", "--learner.checkpoint_s", "3600"]
    quickly = ["--telemetry.log_every_s", "0.1", "--telemetry.tensorboard", "false", "--actor.report_s", "0.1"]
    with running(folder, ["train", "cartpole", "--actors", "1", *forever, *quickly, *more]) as command:
        yield Run(command)
        command.process.terminate()
        assert command.wait() == 0


# -- what strangers say ------------------------------------------------------------------------------------------------


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def pickled(canary: Path) -> bytes:
    return pickle.dumps(_Canary(canary))


def object_array(canary: Path) -> dict[bytes, Any]:
    """What msgpack-numpy makes of an array of objects: whoever decodes it carelessly runs the pickle."""
    return {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": pickled(canary)}


def garbage(canary: Path) -> list[bytes]:
    """What is said at once after connecting, to whichever port."""
    return [
        HTTP,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(508),  # TLS
        bytes(1000),
        b"\xff" * 1000,
        os.urandom(100_000),
        pickled(canary),
        msgpack.packb(object_array(canary)),
        struct.pack(">Q", (1 << 64) - 1) * 10,  # lengths, for whoever reads some
        zmtp.GREETING + os.urandom(1000),
        zmtp.SIGNATURE + os.urandom(1000),
        PREFACE + os.urandom(1000),
        PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000),  # a frame of 16 MiB
        b"GET /" + b"x" * 100_000,
    ]


def babble(port: Port, canary: Path) -> int:
    """Says all of it, each over a connection of its own; returns how many those were."""
    said = garbage(canary)
    for each in said:
        with zmtp.connect(port.number) as connection, suppress(OSError):
            if port.speaks == "zmtp":
                connection.recv(10)  # who is gone at once has left no address
                time.sleep(0.05)
            connection.sendall(each)
            connection.settimeout(0.1)
            while connection.recv(1 << 16):
                pass
    return len(said)


def wrong_messages(canary: Path, run: str) -> list[tuple[str, list[bytes]]]:
    """Whole messages that a replay port has to refuse, and why."""
    hello = Hello(PROTOCOL, run, bytes(16), 0, 0, b"another schema")
    plain = {"kind": "items", "table": "unrolls", "seq": 0, "codec": "none"}
    return [
        ("malformed", [msgpack.packb(plain | {"new_ticks": object_array(canary), "versions": object_array(canary)})]),
        ("malformed", [msgpack.packb({"kind": object_array(canary)})]),
        ("malformed", [pickled(canary)]),
        ("malformed", [b"\xdf\xff\xff\xff\xff"]),
        ("malformed", [b"\xc6\xff\xff\xff\xff"]),
        ("malformed", [b"\x91" * 100_000]),
        ("malformed", [bytes(MIB + 1)]),
        ("malformed", [b"x"] * 1100),
        ("malformed", [encode(hello).replace(b"protocol\x02", b"protocol\x03")]),
        ("schema", [encode(hello)]),
    ]


def wrong_calls(run: Run) -> Iterator[grpc.StatusCode]:
    """Calls that the two gRPC ports have to refuse: of another protocol, run or schema, and no messages at all."""
    spaces = '{"observation": {"dtype": "<f4", "shape": [5]}, "action": {"n": 2, "start": 0}}'
    table = replay_pb2.Table(name="unrolls", sampler="fifo", max_items=1, max_bytes=1)
    ours = {"run": run.id, "epoch": 1, "tables": [table], "payload_bytes": 64, "window_items": 1, "window_bytes": 1}
    ours["codec"] = "none"
    calls: dict[str, list[tuple[str, Any]]] = {
        "learner gRPC": [
            ("Learner/Join", learner_pb2.JoinRequest(protocol=99, actor=bytes(16))),
            ("Learner/Join", learner_pb2.JoinRequest(protocol=PROTOCOL, actor=b"short")),
            ("Learner/Describe", learner_pb2.DescribeRequest(run="another", spaces_json=spaces)),
            ("Learner/Describe", learner_pb2.DescribeRequest(run=run.id, spaces_json=spaces)),
            ("Learner/Describe", learner_pb2.DescribeRequest(run=run.id, spaces_json="[" * 10_000)),
            ("Learner/Report", learner_pb2.ReportRequest(run="another")),
            ("Learner/Join", b"\xff" * 1000),
            ("Learner/Report", msgpack.packb(object_array(Path("/nowhere")))),
        ],
        "replay gRPC": [
            ("Replay/OpenRun", replay_pb2.OpenRunRequest(protocol=99, **ours)),
            ("Replay/OpenRun", replay_pb2.OpenRunRequest(protocol=PROTOCOL, schema=b"another", **ours)),
            ("Replay/OpenRun", replay_pb2.OpenRunRequest(protocol=PROTOCOL, run="x" * 100_000)),
            ("Replay/Statistics", replay_pb2.StatisticsRequest(run="another")),
            ("Replay/OpenRun", b"\xff" * 1000),
        ],
    }
    for name, requests in calls.items():
        with grpc.insecure_channel(run.port(name).address) as channel:
            for method, request in requests:
                data = request if isinstance(request, bytes) else request.SerializeToString()
                try:
                    cast(Any, channel.unary_unary(f"/headrace.v1.{method}"))(data, timeout=5.0)
                except grpc.RpcError as error:
                    yield error.code()
                else:
                    yield grpc.StatusCode.OK


def send(port: Port, messages: list[list[bytes]]) -> None:
    """Sends whole messages as a ZeroMQ peer does, and waits until the last has been answered."""
    with zmq.Context[zmq.Socket[bytes]]() as context:
        socket = sockets.connect(context, port.address)
        for message in [*messages, [msgpack.packb({"kind": "beat"})]]:
            until(lambda message=message: sockets.send(socket, message), "room for a message")
        answers = 0
        while answers == 0 or socket.poll(200):
            until(lambda: sockets.receive(socket), "an answer")
            answers += 1
        socket.close()


# -- crowds ------------------------------------------------------------------------------------------------------------


class Crowd:
    """Connections to a port: a third says nothing, a third a byte now and then, and a third asks and never reads."""

    def __init__(self, port: Port, count: int) -> None:
        self.connections = []
        for _ in range(count):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port.number))
            self.connections.append(connection)
        self._drips, self._deaf = self.connections[1::3], self.connections[2::3]
        self._first = {"zmtp": zmtp.GREETING + zmtp.READY, "grpc": PREFACE, "http": HTTP}[port.speaks]
        beats, pings = zmtp.frame(msgpack.packb({"kind": "beat"})) * 10, (b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)) * 3
        self._questions = {"zmtp": beats, "grpc": pings, "http": HTTP}[port.speaks]

    def begin(self) -> None:
        self._say(self._deaf, self._first)

    def go_on(self) -> None:
        self._say(self._drips, b"\xff")
        self._say(self._deaf, self._questions)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    @staticmethod
    def _say(connections: list[socket.socket], data: bytes) -> None:
        for connection in connections:
            with suppress(OSError):  # it is not connected yet, or has been cut, or the other end does not read
                connection.send(data)


def crowd_size(ports: int, wanted: int = 1000) -> int:
    """As many for each of so many ports as this process may have; a thousand if it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, (hard - 500) // ports)


@contextmanager
def crowds(run: Run, count: int, seconds: float) -> Iterator[None]:
    """So many connections to every port at once; while they go on for so long, the run trains."""
    with ExitStack() as stack:
        made = [Crowd(port, count) for port in run.ports]
        for crowd in made:
            stack.callback(crowd.close)
        until(lambda: established(made) > 0.5 * count * len(made), "half of them to be connected", 20.0)
        for crowd in made:
            crowd.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run.trains(5)
            for crowd in made:
                crowd.go_on()
            time.sleep(max(0.0, min(1.0, end - time.monotonic())))
        yield


def established(crowds: list[Crowd]) -> int:
    count = 0
    for crowd in crowds:
        for connection in crowd.connections:
            with suppress(OSError):
                connection.getpeername()
                count += 1
    return count
