"""A replay shard that has run out of file descriptors goes on, and takes the actors that wait when others leave."""

from __future__ import annotations

import os
import resource
import uuid
from pathlib import Path

import zmq
from harness import EPOCH, RUN, Processes, replay_shard, until

from headrace.config import RunConfig
from headrace.wire import sockets
from headrace.wire.messages import PROTOCOL, TO_ACTOR, Ack, Beat, Credit, Hello, decode, encode
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.replay_link import open_request

SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
CONFIG = RunConfig.model_validate({"env": {"id": "unused"}})
ROOM, ACTORS = 12, 40  # descriptors that are left, and connections that are tried


def test_a_shard_without_descriptors_serves_those_it_has_and_takes_others_in_their_place(processes: Processes) -> None:
    with replay_shard(processes) as shard, zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        shard.open(open_request(RUN, EPOCH, CONFIG, SCHEMA))
        pid = shard.process.popen.pid
        limit = len(os.listdir(Path("/proc") / str(pid) / "fd")) + ROOM
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        waiting: list[zmq.Socket[bytes]] = []
        served: list[zmq.Socket[bytes]] = []

        def look() -> bool:
            """Moves those that got credit."""
            for socket in waiting[:]:
                frames = sockets.receive(socket)
                if frames is not None and isinstance(decode(frames[0], TO_ACTOR), Credit):
                    waiting.remove(socket)
                    served.append(socket)
            return len(served) >= ROOM // 2

        def answers(socket: zmq.Socket[bytes]) -> bool:
            assert sockets.send(socket, [encode(Beat())])
            frames = until(lambda: sockets.receive(socket), "the answer to a beat")
            return isinstance(decode(frames[0], TO_ACTOR), Ack)

        try:
            for _ in range(ACTORS):
                socket = sockets.connect(context, shard.items)
                assert sockets.send(socket, [encode(Hello(PROTOCOL, RUN, uuid.uuid4().bytes, 0, 0, SCHEMA.hash))])
                waiting.append(socket)
            until(look, "as many actors as there is room for")
            until(lambda: len(os.listdir(Path("/proc") / str(pid) / "fd")) == limit, "the limit to be reached")
            look()
            first, among_the_first = served[0], len(served)
            assert among_the_first < ACTORS
            assert answers(first)
            for socket in served[1:]:
                socket.close()
            del served[1:]
            until(lambda: look() and len(served) > ROOM // 2, "actors that waited to take their places")
            assert answers(first)
            assert answers(served[-1])
            assert shard.process.running
        finally:
            for socket in waiting + served:
                socket.close()
        shard.process.terminate()
        assert shard.process.wait() == 0
