"""The actor: joins a run, makes its environments, and sends unrolls for as long as it is wanted.

With --evaluator it plays greedy episodes instead.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

from headrace.errors import ConfigError, HeadraceError
from headrace.memory import require_memory
from headrace.service import Lifetime, Once, leave, run_service
from headrace.service_args import ActorArgs, parse_actor

LEAST_MEMORY_BYTES = 128 << 20  # with a small environment, and without PyTorch


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service; returns its exit code."""
    try:
        args = parse_actor(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"headrace actor: error: {error}\n")
        return int(error.exit_code)
    return run_service("actor", partial(evaluate if args.evaluator else serve, args), lifeline=args.lifeline)


def serve(args: ActorArgs, lifetime: Lifetime) -> None:
    """The actor's life. Imports are in here so that a wrong argument is told at once."""
    require_memory("an actor", LEAST_MEMORY_BYTES)
    from prometheus_client import CollectorRegistry

    from headrace.agents.registry import make_agent
    from headrace.envs.guarded import end_process
    from headrace.envs.slots import Slots, make_slots
    from headrace.envs.workers import MAKING_FACTOR
    from headrace.errors import MisbehavedError
    from headrace.models.policy import make_policy
    from headrace.rpc.clients import LearnerClient
    from headrace.rpc.options import REPORT_DEADLINE_S
    from headrace.telemetry import health as health_endpoints
    from headrace.telemetry import logs
    from headrace.telemetry.catalogue import ActorMetrics
    from headrace.telemetry.labels import EnvFault
    from headrace.unroll import unpack_version
    from headrace.wire.messages import UNROLLS
    from headrace_actor.collector import Collector, Identity, Observers, Weights
    from headrace_actor.membership import Membership
    from headrace_actor.statistics import make_statistics
    from headrace_actor.stream import NOTHING_MADE, Introduction, ItemStream
    from headrace_actor.weights import WeightSubscription

    logs.configure("actor", args.log_format, args.log_level)
    registry = CollectorRegistry()
    metrics = ActorMetrics(registry)
    health = health_endpoints.Health(ready_gauge=metrics.ready)
    health_endpoints.serve(args.metrics_bind.host, args.metrics_bind.port, registry, health)

    learner = LearnerClient(str(args.learner))
    membership = Membership(learner, lifetime.stopping, metrics, args.patience_s, health.beat)
    assignment = membership.join()
    if assignment is None:
        return
    health.patience_s = max(health.patience_s, 2 * assignment.env.step_timeout_s)
    slots: Slots | None = None
    stream: ItemStream | None = None
    reports: threading.Thread | None = None
    collector: Collector | None = None

    def leave_run() -> None:
        """Delivers what replay takes, and gives the lease back."""
        if stream is not None:
            stream.leave()
        membership.leave(NOTHING_MADE if stream is None else stream.ledger())
        if reports is not None:
            reports.join(REPORT_DEADLINE_S)  # it would fail on a closed channel, and with it the process
        learner.close()

    depart = Once(leave_run)
    lifetime.leave_in_time(depart)

    def failed(reason: EnvFault, abandoned: int) -> None:
        metrics.env_failures.labels(reason).inc()
        metrics.unrolls_abandoned.labels(reason).inc(abandoned)
        membership.env_faults.add(reason, abandoned)

    def hung(error: MisbehavedError) -> None:
        """Leaves in place of the main thread, which is in an environment and may never come back."""
        lifetime.fail(error)
        if collector is None:
            failed(error.reason, 0)
        else:
            collector.abandon(error.reason)
        depart()
        end_process(error)

    def stepped(inference_s: float, env_s: float, valid: int) -> None:
        metrics.inference_seconds.observe(inference_s)
        metrics.env_step_seconds.observe(env_s)
        metrics.env_steps.inc(valid)
        membership.episodes.steps += valid
        health.beat()

    def episode(return_: float, length: int, judged: bool) -> None:
        metrics.episodes.inc()
        if not judged:
            return
        metrics.episode_return.observe(return_)
        metrics.episode_length.observe(length)
        membership.episodes.add(return_)

    def applied(new: Weights, seconds: float) -> None:
        epoch, version = unpack_version(new.version)
        metrics.weights_epoch.set(epoch)
        metrics.weights_version.set(version)
        metrics.weights_timestamp_seconds.set(new.published_at)
        metrics.weights_apply_seconds.observe(seconds)

    try:
        try:
            with health.patient(MAKING_FACTOR * assignment.env.step_timeout_s):
                slots = make_slots(assignment.env, assignment.imports, hung)
        except MisbehavedError as error:
            failed(error.reason, 0)
            raise
        described = membership.describe(slots.spaces)
        if described is None:
            return
        policy = make_policy(assignment.model, slots.spaces)
        agent = make_agent(assignment.agent, slots.spaces, policy.state_spec())
        if agent.schema.hash != described.schema:
            difference = agent.schema.difference(described.schema_json)
            raise HeadraceError(
                f"this actor makes other payloads than the learner expects, {difference}; run the same version"
            )

        shards = deque(described.replay_items)
        shards.rotate(-assignment.lease)  # its own first
        stream = ItemStream(
            Introduction(
                address=shards[0],
                run=assignment.run,
                actor=membership.id,
                lease=assignment.lease,
                schema=agent.schema.hash,
                table=UNROLLS,
                patience_s=assignment.shard_patience_s,
                codec=assignment.codec,
                others=list(shards)[1:],
            ),
            metrics,
        )
        weights = WeightSubscription(learner, membership.id, assignment.run, lifetime.stopping, policy.decode)
        membership.statistics = statistics = make_statistics(assignment.model, agent, slots.spaces, slots.num_slots)
        lifetime.on_stop(weights.cancel)
        lifetime.thread("keeper", partial(stream.keep, lifetime.stopping))
        lifetime.thread("weights", weights.run)
        reports = lifetime.thread("reports", partial(membership.report_forever, stream.ledger))

        identity = Identity(assignment.seed, assignment.lease, assignment.incarnation)
        observers = Observers(stepped, episode, applied, failed)
        collector = Collector(slots, policy, agent, identity, weights.newest, observers, statistics)
        if weights.wait_for_first(health.beat):
            health.ready(True)
        while stream.wait_for_room(collector.most_items, lifetime.stopping, health.beat):
            items = collector.collect(lifetime.stopping.is_set)
            if items is not None:
                stream.put(items)
    finally:
        depart()
        if slots is not None:
            slots.close()


def evaluate(args: ActorArgs, lifetime: Lifetime) -> None:
    """An evaluator's life: no lease, no replay, no unrolls."""
    require_memory("an actor", LEAST_MEMORY_BYTES)
    from prometheus_client import CollectorRegistry

    from headrace.envs.guarded import end_process
    from headrace.envs.slots import make_slots
    from headrace.envs.workers import MAKING_FACTOR
    from headrace.models.policy import make_policy
    from headrace.rpc.clients import LearnerClient
    from headrace.telemetry import health as health_endpoints
    from headrace.telemetry import logs
    from headrace.telemetry.catalogue import EvaluatorMetrics
    from headrace_actor.evaluator import Evaluator

    logs.configure("evaluator", args.log_format, args.log_level)
    registry = CollectorRegistry()
    metrics = EvaluatorMetrics(registry)
    health = health_endpoints.Health(ready_gauge=metrics.ready)
    health_endpoints.serve(args.metrics_bind.host, args.metrics_bind.port, registry, health)

    learner = LearnerClient(str(args.learner))
    evaluator = Evaluator(learner, lifetime.stopping, metrics, health)
    lifetime.on_stop(evaluator.cancel)
    lifetime.leave_in_time()
    assignment = evaluator.join()
    if assignment is None:
        return
    health.patience_s = max(health.patience_s, 2 * assignment.env.step_timeout_s)
    num_envs = min(assignment.env.num_envs, assignment.evaluation.episodes)
    env = assignment.env.model_copy(update={"num_envs": num_envs})
    with health.patient(MAKING_FACTOR * env.step_timeout_s):
        slots = make_slots(env, assignment.imports, end_process)
    if not evaluator.describe(slots.spaces):
        return
    try:
        evaluator.run(slots, make_policy(assignment.model, slots.spaces))
    finally:
        learner.close()
        slots.close()


if __name__ == "__main__":
    leave(main())
