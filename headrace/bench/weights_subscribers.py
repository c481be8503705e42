"""`headrace bench weights`, a process of subscribers, each an actor's client and assembler with its own connection."""

from __future__ import annotations

import threading
import time
import uuid

from headrace.bench.processes import Parent, run_child
from headrace.rpc.chunks import Assembler
from headrace.rpc.clients import LearnerClient
from headrace.rpc.options import channel_options
from headrace.rpc.v1 import learner_pb2

# Channels of one process to one address would share a connection, as no two actors do.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


class Subscriber:
    """One subscription, and when each of its versions was published and was complete here, in Unix time."""

    def __init__(self, address: str, run: str, parent: Parent) -> None:
        self.versions: list[tuple[float, float]] = []
        self.blob_bytes = 0
        self.first = threading.Event()
        self._client = LearnerClient(address, (*channel_options(), OWN_CONNECTION))
        self._request = learner_pb2.WeightsRequest(actor=uuid.uuid4().bytes, run=run)
        self._parent = parent
        threading.Thread(target=self._read, name="weights", daemon=True).start()

    def _read(self) -> None:
        assembler = Assembler()
        try:
            for chunk in self._client.weights(self._request):
                blob = assembler.add(chunk)
                if blob is not None:
                    self.versions.append((blob.published_at, time.time()))
                    self.blob_bytes = len(blob.data)
                    self.first.set()
        except Exception as error:
            self._parent.fail(error)


def main(parent: Parent) -> None:
    told = parent.parameters
    subscribers = [Subscriber(told["address"], told["run"], parent) for _ in range(told["subscribers"])]
    for subscriber in subscribers:
        subscriber.first.wait()
    parent.tell(blob_bytes=subscribers[0].blob_bytes)
    for order in parent.orders():  # what arrived while there was publishing, and how long it had taken
        latencies_s = [
            [
                arrived - published
                for published, arrived in list(subscriber.versions)
                if any(began <= arrived < ended for began, ended in order["windows"])
            ]
            for subscriber in subscribers
        ]
        parent.tell(latencies_s=latencies_s)


if __name__ == "__main__":
    run_child(main)
