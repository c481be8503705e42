"""`headrace bench weights`, the learner's process: the trainer steps, and the publisher and its gRPC server serve."""

from __future__ import annotations

import time
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.bench.calibration import WARM_UP_UPDATES, BareLearner
from headrace.bench.processes import Facts, Parent, run_child
from headrace.config import RunConfig
from headrace.rpc.options import LEARNER_SERVICE
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2_grpc
from headrace.telemetry.catalogue import LearnerMetrics
from headrace_learner.front import Definition, LearnerFront
from headrace_learner.publisher import WeightPublisher
from headrace_learner.roster import Roster

EPOCH = 1
PAIRS = 3  # of slices, with and without publishing, since the machine's speed drifts
MAX_SETTLE_S = 1.5  # after publishing, for what is still being sent


class PublishingLearner:
    """The real trainer on a batch that lies in memory, the real publisher and the real server in one process."""

    def __init__(self, run: str, config: RunConfig, parent: Parent) -> None:
        metrics = LearnerMetrics(CollectorRegistry())

        def register(server: Any) -> None:
            cast(Any, learner_pb2_grpc.add_LearnerServicer_to_server)(front, server)

        server = Server("127.0.0.1:0", register, parent.fail, services=[LEARNER_SERVICE], observe=metrics.observe_rpc)
        self._publisher = WeightPublisher(EPOCH, config.learner.min_publish_s, server.call_soon, metrics)
        roster = Roster(EPOCH, config.learner.lease_s, config.stop, metrics)
        front = LearnerFront(run, EPOCH, config, roster, Definition(None), self._publisher)
        self._learner = BareLearner(config)
        self.address = f"127.0.0.1:{server.start()}"
        server.set_serving(True)
        for _ in range(WARM_UP_UPDATES):
            self._learner.update()
        self._publish()  # whoever subscribes gets this one at once

    def measure(self, seconds: float) -> Facts:
        """Steps with and without publishing, by turns, `seconds` each in all.

        windows: when there was publishing, in Unix time.
        """
        steps: dict[bool, int] = {True: 0, False: 0}
        passed_s: dict[bool, float] = {True: 0.0, False: 0.0}
        windows: list[tuple[float, float]] = []
        published = 0
        for pair in range(PAIRS):
            for publishing in (pair % 2 == 0, pair % 2 != 0):  # neither is always the second
                began = time.time()
                count, elapsed, versions = self._slice(seconds / PAIRS, publishing)
                steps[publishing] += count
                passed_s[publishing] += elapsed
                published += versions
                if publishing:
                    windows.append((began, began + elapsed))
                    self._slice(min(seconds / PAIRS, MAX_SETTLE_S), publishing=False)
        return {
            "steps_per_s": steps[True] / passed_s[True],
            "steps_per_s_without": steps[False] / passed_s[False],
            "published_per_s": published / passed_s[True],
            "windows": windows,
        }

    def _slice(self, seconds: float, publishing: bool) -> tuple[int, float, int]:
        """Steps for so long; how many they were, how long it took, and how many versions were published."""
        steps, versions, started = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            self._learner.update()
            steps += 1
            if publishing and self._publisher.due(self._learner.trainer.updates):
                self._publish()
                versions += 1
        return steps, elapsed, versions

    def _publish(self) -> None:
        trainer = self._learner.trainer
        if not self._publisher.publish(trainer.network, trainer.updates):
            raise ValueError("the benchmark's parameters are not finite")


def main(parent: Parent) -> None:
    run, config = parent.parameters["run"], RunConfig.model_validate(parent.parameters["config"])
    learner = PublishingLearner(run, config, parent)
    parent.tell(address=learner.address)
    for order in parent.orders():
        parent.tell(**learner.measure(order["seconds"]))


if __name__ == "__main__":
    run_child(main)
