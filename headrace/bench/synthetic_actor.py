"""An actor without environments: sends random unrolls of Pong as fast as replay takes them, for a learner's sake.

`python -m headrace.bench.synthetic_actor --learner HOST:PORT --metrics-bind HOST:PORT`: to learner and replay it is an
actor like any other, which joins, describes its environment, takes weights, keeps to its window and reports.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import cycle, islice

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.bench.pong import HEIGHT, WIDTH
from headrace.bench.random_unrolls import random_unrolls
from headrace.envs.spaces import Spaces, describe
from headrace.errors import ConfigError
from headrace.models.policy import make_policy
from headrace.rpc.clients import LearnerClient
from headrace.rpc.options import REPORT_DEADLINE_S
from headrace.service import Lifetime, leave, run_service
from headrace.service_args import ActorArgs, parse_actor
from headrace.telemetry.catalogue import ActorMetrics
from headrace.telemetry.health import Health, serve
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace_actor.membership import Membership
from headrace_actor.stream import Introduction, ItemStream
from headrace_actor.weights import WeightSubscription

_NUM_ACTIONS = 6
_ITEMS = 16  # that there are, and a message has


def pong_spaces() -> Spaces:
    """As ale-py's vector environment has them: four frames, and six actions."""
    import gymnasium

    frames = gymnasium.spaces.Box(0, 255, (4, HEIGHT, WIDTH), np.uint8)
    return describe(frames, gymnasium.spaces.Discrete(_NUM_ACTIONS))


def act(args: ActorArgs, lifetime: Lifetime) -> None:
    registry = CollectorRegistry()
    metrics = ActorMetrics(registry)
    health = Health(ready_gauge=metrics.ready)
    serve(args.metrics_bind.host, args.metrics_bind.port, registry, health)
    learner = LearnerClient(str(args.learner))
    membership = Membership(learner, lifetime.stopping, metrics, args.patience_s, health.beat)
    assignment = membership.join()
    if assignment is None:
        return
    spaces = pong_spaces()
    described = membership.describe(spaces)
    if described is None:
        return
    state = make_policy(assignment.model, spaces).state_spec()
    schema = make_agent(assignment.agent, spaces, state).schema
    payloads = random_unrolls(schema, spaces, _ITEMS, assignment.seed + assignment.lease)
    ticks = int(np.prod(schema.fields["valid"].shape))  # of one
    introduction = Introduction(
        address=described.replay_items[assignment.lease % len(described.replay_items)],
        run=assignment.run,
        actor=membership.id,
        lease=assignment.lease,
        schema=schema.hash,
        table=UNROLLS,
        patience_s=assignment.shard_patience_s,
        codec=assignment.codec,
    )
    stream = ItemStream(introduction, metrics)
    weights = WeightSubscription(learner, membership.id, assignment.run, lifetime.stopping, bytes)
    lifetime.on_stop(weights.cancel)
    lifetime.thread("weights", weights.run)
    reports = lifetime.thread("reports", partial(membership.report_forever, stream.ledger))
    try:
        weights.wait_for_first(health.beat)
        rows = cycle(payloads)
        while stream.wait_for_room(_ITEMS, lifetime.stopping, health.beat):
            newest = weights.newest()
            assert newest is not None
            stream.put([Item(memoryview(row), ticks, newest.version) for row in islice(rows, _ITEMS)])
            membership.episodes.steps += _ITEMS * ticks
            metrics.env_steps.inc(_ITEMS * ticks)
            health.beat()
    finally:
        stream.leave()
        membership.leave(stream.ledger())
        reports.join(REPORT_DEADLINE_S)
        learner.close()


def main() -> int:
    """Runs the service; returns its exit code."""
    try:
        args = parse_actor(sys.argv[1:])
    except ConfigError as error:
        sys.stderr.write(f"synthetic actor: error: {error}\n")
        return int(error.exit_code)
    return run_service("synthetic actor", partial(act, args), lifeline=args.lifeline)


if __name__ == "__main__":
    leave(main())
