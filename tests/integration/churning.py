"""Some hundred actors in one process, as the services see them: `python churning.py LEARNER LEASE_S SEED`.

Each has connections of its own and does what an actor does, but for making unrolls: it joins, describes its
environment, says Hello to replay and beats there, follows the weights, and reports. The process is told on stdin, one
JSON object a line, how many are to `join`, to `leave` with a goodbye and to `vanish` without one, and does that in
random order. Then it says on stdout, in a line as well, the leases that its actors hold now, and when who held which.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

import grpc
import grpc.aio
import zmq

from headrace.descriptors import raise_limit
from headrace.rpc.options import channel_options
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc
from headrace.wire import sockets
from headrace.wire.messages import (
    BEAT_S,
    HELLO_S,
    PROTOCOL,
    TO_ACTOR,
    Beat,
    Credit,
    Farewell,
    Goodbye,
    Hello,
    Reset,
    decode,
    encode,
)

REPORT_S = 2.0
FAREWELL_S = 5.0  # for the answer to Goodbye, on a busy machine
AT_ONCE = 16  # that come or go at the same time
SPACES = json.dumps({"observation": {"dtype": "<f4", "shape": [4]}, "action": {"n": 2, "start": 0}})  # CartPole's
OPTIONS = (*channel_options(), ("grpc.use_local_subchannel_pool", 1))  # or all would share one connection


@dataclass
class Hold:
    """A lease while it was held for certain, in seconds of the machine's monotonic clock."""

    lease: int
    since: float
    until: float


class Actor:
    """One actor. `holds`: of all leases that it had so far."""

    def __init__(self, learner: str, context: zmq.Context[zmq.Socket[bytes]], lease_s: float, uuid: bytes) -> None:
        self.uuid = uuid
        self.holds: list[Hold] = []
        self.socket: zmq.Socket[bytes]
        self._context = context
        self._lease_s = lease_s
        self._channel = grpc.aio.insecure_channel(learner, options=OPTIONS)
        self._stub = cast(Any, learner_pb2_grpc.LearnerStub)(self._channel)
        self._run = ""
        self._hello = b""
        self._sequence = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        await self._take_lease()
        described = await self._stub.Describe(
            learner_pb2.DescribeRequest(actor=self.uuid, run=self._run, spaces_json=SPACES), timeout=60
        )
        self.socket = sockets.connect(self._context, described.replay_items[0])
        self._hello = encode(Hello(PROTOCOL, self._run, self.uuid, self.holds[-1].lease, 0, described.schema))
        while not self._told(Credit):
            sockets.send(self.socket, [self._hello])
            await asyncio.sleep(HELLO_S)
        chunks = self._stub.Weights(learner_pb2.WeightsRequest(actor=self.uuid, run=self._run))
        await chunks.read()
        self._tasks = [asyncio.create_task(self._report_forever()), asyncio.create_task(self._follow(chunks))]

    async def leave(self) -> None:
        self._stop()
        sockets.send(self.socket, [encode(Goodbye())])
        limit = time.monotonic() + FAREWELL_S
        while not self._told(Farewell) and time.monotonic() < limit:
            await asyncio.sleep(0.02)
        self._give_up()
        await self._report(leaving=True)
        await self.vanish()

    async def vanish(self) -> None:
        self._stop()
        self._give_up()
        self.socket.close(linger=0)
        await self._channel.close()
        del self._channel, self._stub, self._tasks

    def _give_up(self) -> None:
        """From now on another one may have the lease."""
        self.holds[-1].until = min(self.holds[-1].until, time.monotonic())

    def beat(self) -> None:
        reset = self._told(Reset)  # its connection was lost, and made again
        sockets.send(self.socket, [self._hello if reset else encode(Beat())])

    async def _take_lease(self) -> None:
        request = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=self.uuid)
        if self.holds:
            request.lease = self.holds[-1].lease
        asked = time.monotonic()
        reply = await self._stub.Join(request, timeout=60, wait_for_ready=True)
        self._run = reply.run
        self.holds.append(Hold(reply.lease, time.monotonic(), asked + self._lease_s))

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S * random.uniform(0.8, 1.2))
            with suppress(grpc.aio.AioRpcError):  # it is late: once more
                if not await self._report():
                    await self._take_lease()

    async def _report(self, *, leaving: bool = False) -> bool:
        self._sequence += 1
        request = learner_pb2.ReportRequest(
            actor=self.uuid, run=self._run, sequence=self._sequence, env_steps=self._sequence, leaving=leaving
        )
        told = time.monotonic()
        known = (await self._stub.Report(request, timeout=10)).known
        if known and not leaving:
            self.holds[-1].until = told + self._lease_s
        return bool(known)

    @staticmethod
    async def _follow(chunks: Any) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for _ in chunks:
                pass

    def _told(self, kind: type[Any]) -> bool:
        """Takes in what replay said; whether something of that kind was among it."""
        found = False
        while frames := sockets.receive(self.socket):
            found = isinstance(decode(frames[0], TO_ACTOR), kind) or found
        return found

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()


async def serve(learner: str, lease_s: float, seed: str) -> None:
    order = random.Random(seed)
    context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
    actors: list[Actor] = []
    gone: list[Hold] = []
    turn = asyncio.Semaphore(AT_ONCE)

    async def join() -> None:
        actor = Actor(learner, context, lease_s, order.randbytes(16))
        await actor.join()
        actors.append(actor)

    async def go(leaving: bool) -> None:
        actor = actors.pop(order.randrange(len(actors)))
        await (actor.leave() if leaving else actor.vanish())
        gone.extend(actor.holds)

    async def in_turn(step: Coroutine[Any, Any, None]) -> None:
        async with turn:
            await step

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for actor in actors:
                actor.beat()

    beating = asyncio.create_task(beat())
    while line := await asyncio.to_thread(sys.stdin.readline):
        orders = json.loads(line)
        steps = [join() for _ in range(orders.get("join", 0))]
        steps += [go(True) for _ in range(orders.get("leave", 0))]
        steps += [go(False) for _ in range(orders.get("vanish", 0))]
        order.shuffle(steps)
        await asyncio.gather(*map(in_turn, steps))
        gc.collect()  # connections of those that went live on in cycles otherwise
        held = [*gone, *(hold for actor in actors for hold in actor.holds)]
        told = {"leases": [actor.holds[-1].lease for actor in actors], "holds": [asdict(hold) for hold in held]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    beating.cancel()


if __name__ == "__main__":
    raise_limit()
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
