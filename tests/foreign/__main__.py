"""The foreign actor's life, from Join to Goodbye. Prints its account as one line of JSON in the end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

import grpc
import gymnasium

from foreign.acting import Actor, Network
from foreign.codec import Array, Layout, unroll_fields
from foreign.delivery import Delivery, Refused
from foreign.learner import Learner


class Life:
    """One actor process. `leaving` is set by SIGTERM, or once it has made enough."""

    def __init__(self, learner_address: str, max_items: int | None) -> None:
        self.leaving = threading.Event()
        self.learner = Learner(learner_address, os.urandom(16), self.leaving)
        self.max_items = max_items
        self.new_ticks = 0
        self.acted_by: set[int] = set()  # epochs
        self.delivery: Delivery
        self.actor: Actor

    def live(self) -> None:
        learner = self.learner
        config = learner.join()
        joined = learner.joins[0]
        model = config["model"]
        if config["env"]["wrappers"] or model["network"] or model.get("core", "none") != "none":
            raise RuntimeError("this actor knows neither wrappers nor own networks nor memory")
        make = partial(gymnasium.make, config["env"]["id"], **config["env"]["kwargs"])
        self.actor = actor = Actor(make, config["env"]["num_envs"], [joined.seed, joined.lease, joined.incarnation])
        self._spaces = (actor.dtype, actor.shape, actor.actions, actor.start)
        described = learner.describe(*self._spaces)
        layout = Layout.of(unroll_fields(config["agent"]["unroll_length"], actor.dtype, actor.shape, actor.actions))
        if layout.hash != described.schema:
            raise RuntimeError(f"another payload schema: {layout.text}")
        addresses = described.replay_items
        self.delivery = delivery = Delivery(
            addresses[joined.lease % len(addresses)],
            joined.run,
            learner.actor,
            joined.lease,
            layout.hash,
            config.get("codec", "none"),
            config["shard_patience_s"],
        )
        self._report_s, self._report_at = config["report_s"], time.monotonic()
        self._network = Network(model["activation"])
        weights = threading.Thread(target=learner.follow_weights, name="weights")
        weights.start()
        try:
            while not self.leaving.is_set() and learner.newest is None:
                delivery.wait(0.05)
                self._duties()
            while not self.leaving.is_set():
                if not delivery.room(actor.slots):
                    delivery.wait(0.05)
                    self._duties()
                    continue
                items = actor.unroll(layout, self._policy, self._duties)
                self.new_ticks += sum(item.new_ticks for item in items)
                delivery.put(items)
                if self.max_items is not None and delivery.made >= self.max_items:
                    break
        finally:
            delivery.leave()
            self._report(leaving=True)
            self.leaving.set()
            learner.close()
            weights.join()

    def _policy(self, observation: Array) -> tuple[Array, int]:
        assert self.learner.newest is not None
        packed, tensors = self.learner.newest
        self.acted_by.add(packed >> 40)
        return self._network.logits(tensors, observation), packed

    def _duties(self) -> bool:
        """What is due between two ticks. False once this actor is to leave."""
        self.delivery.step()
        if time.monotonic() >= self._report_at:
            self._report()
            self._report_at = time.monotonic() + self._report_s
            if not self.learner.known and not self.leaving.is_set():
                self.learner.known = True
                self.learner.join()
                self.learner.describe(*self._spaces)
        return not self.leaving.is_set()

    def _report(self, leaving: bool = False) -> None:
        if self.learner.report(self._ledger(), self.actor.env_steps, self.actor.returns, leaving):
            self.actor.returns = []

    def _ledger(self) -> dict[str, Any]:
        delivery = self.delivery
        return {
            "made": delivery.made,
            "acknowledged": delivery.acknowledged,
            "held": delivery.held,
            "dropped": dict(delivery.dropped),
        }

    def account(self) -> dict[str, Any]:
        return {
            **self._ledger(),
            "new_ticks": self.new_ticks,
            "resent": self.delivery.resent,
            "heard": dict(self.delivery.heard),
            "joins": [[reply.epoch, reply.lease] for reply in self.learner.joins],
            "acted_by": sorted(self.acted_by),
        }


def main() -> int:
    """Exit codes: 0 left as told, 3 refused or lost."""
    parser = argparse.ArgumentParser(prog="foreign", description="An actor that knows the wire and nothing else.")
    parser.add_argument("--learner", required=True, metavar="HOST:PORT")
    parser.add_argument("--max-items", type=int, metavar="N", help="leave once so many items were made")
    arguments = parser.parse_args()
    life = Life(arguments.learner, arguments.max_items)
    signal.signal(signal.SIGTERM, lambda *_: life.leaving.set())
    try:
        life.live()
    except (Refused, RuntimeError, grpc.RpcError) as error:
        sys.stderr.write(f"foreign actor: {error}\n")
        return 3
    sys.stdout.write(json.dumps(life.account()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
