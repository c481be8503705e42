"""Every metric of Headrace, declared once. An attribute has the metric's name, less `headrace_<service>_` and `_total`.

docs/metrics.md is generated from this module (`headrace.telemetry.reference`). Items are unrolls seen from replay and
the learner; ticks and steps are valid ticks. One process has one registry and one of these classes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from headrace.telemetry.families import Declaration, Family
from headrace.telemetry.labels import (
    REFUSALS,
    ConnectionFault,
    DiscardReason,
    DropReason,
    EnvFault,
    LearnerMethod,
    LossComponent,
    MissReason,
    Peer,
    RefusalReason,
    RejectReason,
    RemoveReason,
    ReplayMethod,
    RpcCode,
    StepPhase,
    WorkerState,
)

# Histogram buckets, upper bounds in the metric's unit.
FAST_SECONDS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
SLOW_SECONDS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
AGE_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
TIMES_SAMPLED = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
PRIORITIES = (0.0, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3)
LAG_VERSIONS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
LAG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_RETURN_SIZES = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 1e5)
EPISODE_RETURN = (*(-size for size in reversed(_RETURN_SIZES)), 0.0, *_RETURN_SIZES)
EPISODE_STEPS = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 1e5)


class ServiceMetrics:
    """What every service exports."""

    def __init__(self, service: str, registry: CollectorRegistry, peers: Iterable[Peer]) -> None:
        self._family = Family(service, registry)
        try:
            headrace_version = version("headrace")
        except PackageNotFoundError:
            headrace_version = "unknown"
        self.build_info = self._family.info(
            "build_info",
            "1; the labels tell which code runs",
            {
                "version": headrace_version,
                "revision": os.environ.get("HEADRACE_REVISION", "unknown"),  # an image has it from its build
                "python": platform.python_version(),
            },
        )
        self.ready = self._family.gauge("ready", "0 or 1", "Whether the service is ready, as /readyz says")
        self.reconnects = self._family.counter(
            "reconnects_total", "connections", "Connections that were lost and made again", {"peer": peers}
        )

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        return tuple(self._family.declarations)


class ServerMetrics(ServiceMetrics):
    """What the services with a gRPC server export besides."""

    def __init__(
        self,
        service: str,
        registry: CollectorRegistry,
        peers: Iterable[Peer],
        methods: type[LearnerMethod | ReplayMethod],
    ) -> None:
        super().__init__(service, registry, peers)
        self._methods = frozenset(str(method) for method in methods)
        self.rpc_seconds = self._family.histogram(
            "rpc_seconds",
            "seconds",
            "Answering a gRPC call",
            FAST_SECONDS,
            {"method": methods, "code": RpcCode},
            from_start={"code": (RpcCode.OK,)},
        )
        self.rpc_refused = self._family.counter(
            "rpc_refused_total", "calls", "gRPC calls that were refused: unreadable, or not fit for this run"
        )

    def observe_rpc(self, method: str, code: str, seconds: float) -> None:
        """Takes in a call of "headrace.v1.Learner/Join" or the like; leaves out methods without a label value."""
        if code in REFUSALS:
            self.rpc_refused.inc()
        name = method.rpartition("/")[2]
        if name in self._methods:
            self.rpc_seconds.labels(name, code if code in RpcCode.__members__ else RpcCode.UNKNOWN).observe(seconds)


class ActorMetrics(ServiceMetrics):
    """Metrics of one actor process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("actor", registry, (Peer.LEARNER, Peer.REPLAY))
        counter, gauge, histogram = self._family.counter, self._family.gauge, self._family.histogram

        self.env_steps = counter("env_steps_total", "steps", "Valid ticks, over all environments")
        self.env_step_seconds = histogram(
            "env_step_seconds", "seconds", "Stepping the vector environment once", FAST_SECONDS
        )
        self.inference_seconds = histogram(
            "inference_seconds", "seconds", "One forward pass for all environments", FAST_SECONDS
        )
        self.env_failures = counter(
            "env_failures_total", "failures", "Environments that misbehaved", {"reason": EnvFault}
        )

        self.unrolls_made = counter("unrolls_made_total", "unrolls", "Unrolls completed")
        self.unrolls_sent = counter("unrolls_sent_total", "unrolls", "Unrolls sent, first sendings only")
        self.unrolls_resent = counter("unrolls_resent_total", "unrolls", "Unrolls sent again after a lost message")
        self.unrolls_acknowledged = counter("unrolls_acknowledged_total", "unrolls", "Unrolls that replay has stored")
        self.unrolls_held = gauge("unrolls_held", "unrolls", "Unrolls made, neither acknowledged nor dropped yet")
        self.unrolls_dropped = counter("unrolls_dropped_total", "unrolls", "Unrolls given up", {"reason": DropReason})
        self.unrolls_abandoned = counter(
            "unrolls_abandoned_total",
            "unrolls",
            "Unrolls in the making that were given up because their environment misbehaved",
            {"reason": EnvFault},
        )
        self.blocked_seconds = counter("blocked_seconds_total", "seconds", "Time spent waiting for replay's credit")
        self.sent_bytes = counter("sent_bytes_total", "bytes", "Payload bytes sent, repetitions included")

        self.weights_version = gauge("weights_version", "updates", "Version of the weights that act")
        self.weights_epoch = gauge("weights_epoch", "starts", "The learner's start that published the weights that act")
        self.weights_timestamp_seconds = gauge(
            "weights_timestamp_seconds", "seconds", "Unix time at which the weights that act were published"
        )
        self.weights_apply_seconds = histogram(
            "weights_apply_seconds", "seconds", "Decoding weights and swapping them in", FAST_SECONDS
        )

        self.episodes = counter("episodes_total", "episodes", "Episodes finished")
        self.episode_return = histogram(
            "episode_return",
            "reward",
            "Raw return of finished episodes in slots that hardly explore (no _sum: returns can be negative)",
            EPISODE_RETURN,
        )
        self.episode_length = histogram(
            "episode_length",
            "steps",
            "Length in valid ticks of finished episodes in slots that hardly explore",
            EPISODE_STEPS,
        )


class EvaluatorMetrics(ServiceMetrics):
    """Metrics of an evaluator: an actor process that makes no unrolls, and so is none of the actors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("evaluator", registry, (Peer.LEARNER,))
        counter, gauge, histogram = self._family.counter, self._family.gauge, self._family.histogram

        self.env_steps = counter("env_steps_total", "steps", "Valid ticks, over all environments")
        self.env_failures = counter(
            "env_failures_total", "failures", "Environments that misbehaved", {"reason": EnvFault}
        )
        self.evaluations = counter("evaluations_total", "evaluations", "Evaluations played and reported")
        self.evaluation_seconds = histogram(
            "evaluation_seconds", "seconds", "Playing the episodes of one evaluation", SLOW_SECONDS
        )
        self.weights_version = gauge("weights_version", "updates", "Version of the weights that play")
        self.weights_epoch = gauge(
            "weights_epoch", "starts", "The learner's start that published the weights that play"
        )


class ReplayMetrics(ServerMetrics):
    """Metrics of one replay shard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("replay", registry, (Peer.ACTOR,), ReplayMethod)
        counter, gauge, histogram = self._family.counter, self._family.gauge, self._family.histogram

        self.items = gauge("items", "items", "Items in the tables")
        self.max_items = gauge("max_items", "items", "Most items that the tables hold")
        self.min_items = gauge("min_items", "items", "Items to be in the tables before any is drawn: 0 in a fifo table")
        self.bytes = gauge("bytes", "bytes", "Payload bytes in the tables, compressed if they came so")
        self.max_bytes = gauge("max_bytes", "bytes", "Most payload bytes that the tables hold")
        self.resident_bytes = gauge("resident_bytes", "bytes", "Memory that the process uses, all in all")
        self.memory_limit_bytes = gauge(
            "memory_limit_bytes", "bytes", "Memory that it may use, of its container or the machine, or as it was told"
        )

        self.received = counter("received_total", "items", "Items received, in whatever state")
        self.stored = counter("stored_total", "items", "Items put into a table")
        self.duplicate = counter("duplicate_total", "items", "Items ignored because they had come before")
        self.rejected = counter("rejected_total", "items", "Items refused", {"reason": RejectReason})
        self.waiting = gauge("waiting", "items", "Items received that the rate limiter has not admitted yet")
        self.removed = counter("removed_total", "items", "Items that left their table", {"reason": RemoveReason})
        self.insert_wait_seconds = histogram(
            "insert_wait_seconds",
            "seconds",
            "From receipt until admitted by the rate limiter, the longest of each turn",
            SLOW_SECONDS,
        )

        self.sampled = counter("sampled_total", "items", "Items drawn, each time anew")
        self.batches = counter("batches_total", "batches", "Batches sent, repetitions left out")
        self.refused_requests = counter(
            "refused_requests_total", "requests", "Requests of the learner that were refused", {"reason": RefusalReason}
        )
        self.sample_wait_seconds = histogram(
            "sample_wait_seconds", "seconds", "From a sample request until its batch was sent", SLOW_SECONDS
        )
        self.item_age_seconds = histogram(
            "item_age_seconds", "seconds", "Age of the oldest item of each batch when drawn", SLOW_SECONDS
        )
        self.evicted_age_seconds = self._family.histogram_of_many(
            "evicted_age_seconds", "seconds", "Age of items when newer ones took their room", AGE_SECONDS
        )
        self.evicted_times_sampled = self._family.histogram_of_many(
            "evicted_times_sampled",
            "draws",
            "How often items were drawn until newer ones took their room",
            TIMES_SAMPLED,
        )
        self.samples_per_insert = gauge(
            "samples_per_insert", "ratio", "Items drawn per item stored since the tables had their least size"
        )
        self.samples_per_insert_target = gauge(
            "samples_per_insert_target", "ratio", "Where the rate limiter holds it: 1 in a fifo table"
        )

        self.priority = self._family.histogram_of_many(
            "priority", "priority", "Priorities that items came with or were given, without the exponent", PRIORITIES
        )
        self.priorities_applied = counter("priorities_applied_total", "items", "New priorities that items were given")
        self.priorities_missing = counter(
            "priorities_missing_total",
            "items",
            "New priorities that meant no item here any more",
            {"reason": MissReason},
        )
        self.effective_sample_share = gauge(
            "effective_sample_share",
            "ratio",
            "(sum w)^2 / (N sum w^2) of the weights that items are drawn by: 1 if all are equal, 1/N if one has all",
        )

        self.peers = gauge("peers", "actors", "Actors that replay hears from")
        self.connections = gauge("connections", "connections", "Open connections to the two ZeroMQ ports")
        self.connections_failed = counter(
            "connections_failed_total",
            "connections",
            "Connections to the two ZeroMQ ports that came to nothing",
            {"reason": ConnectionFault},
        )
        self.worker_seconds = counter(
            "worker_seconds_total", "seconds", "What the worker thread's time went to", {"state": WorkerState}
        )

    def observe_evicted(self, ages_s: npt.NDArray[np.float64], times_sampled: npt.NDArray[np.int64]) -> None:
        """Takes in the items [n] that left at once."""
        self.evicted_age_seconds.observe_all(ages_s)
        self.evicted_times_sampled.observe_all(times_sampled)


class LearnerMetrics(ServerMetrics):
    """Metrics of the learner, and of the run as a whole where only the learner knows it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("learner", registry, (Peer.REPLAY,), LearnerMethod)
        counter, gauge, histogram = self._family.counter, self._family.gauge, self._family.histogram

        self.updates = counter("updates_total", "updates", "Optimizer steps taken")
        self.ticks_trained = counter("ticks_trained_total", "steps", "Valid ticks trained on")
        self.trained_steps = gauge(
            "trained_steps", "steps", "Valid ticks that the run has trained on, at earlier starts of the learner too"
        )
        self.steps_target = gauge(
            "steps_target", "steps", "Where trained_steps ends the run, as stop.steps says; 0: never"
        )
        self.return_goal = gauge(
            "return_goal", "reward", "Mean return that ends the run, as stop.return_ says; NaN if there is none"
        )
        self.batch_wait_seconds = histogram("batch_wait_seconds", "seconds", "Waiting for a batch", FAST_SECONDS)
        self.waiting_seconds = counter(
            "waiting_seconds_total", "seconds", "Time spent waiting for batches, also for one that has not come yet"
        )
        self.step_seconds = histogram(
            "step_seconds", "seconds", "The parts of one learner step", FAST_SECONDS, {"phase": StepPhase}
        )
        self.policy_lag_versions = histogram(
            "policy_lag_versions", "updates", "Updates between the weights that acted and those trained", LAG_VERSIONS
        )
        self.policy_lag_seconds = histogram(
            "policy_lag_seconds", "seconds", "Time from publishing the weights that acted until training", LAG_SECONDS
        )

        self.weights_version = gauge("weights_version", "updates", "Version of the newest published weights")
        self.epoch = gauge("epoch", "starts", "Starts of the learner in this run")
        self.publishes = counter("publishes_total", "versions", "Weight versions published")
        self.subscribers = gauge("subscribers", "actors", "Open weight streams of actors")

        self.loss = gauge("loss", "loss", "Loss of the last update", {"component": LossComponent})
        self.gradient_norm = gauge("gradient_norm", "norm", "Global gradient norm of the last update, before clipping")
        self.gradients_clipped = counter("gradients_clipped_total", "updates", "Updates whose gradient was clipped")
        self.nonfinite_updates = counter(
            "nonfinite_updates_total", "updates", "Updates skipped because a loss or gradient was not finite"
        )
        self.entropy = gauge("entropy", "nats", "Mean policy entropy of the last batch")
        self.learning_rate = gauge("learning_rate", "rate", "Learning rate of the last update")
        self.clipped_rho_share = gauge(
            "clipped_rho_share", "ratio", "Share of importance ratios clipped in the last batch"
        )
        self.td_error = gauge("td_error", "value", "Mean size of the TD errors of the last batch, of Q-learning")
        self.q_value = gauge("q_value", "value", "Mean Q-value of the actions of the last batch, as the network has it")
        self.explained_variance = gauge(
            "explained_variance", "ratio", "1 - Var(targets - values) / Var(targets) in the last batch"
        )

        self.normalization_samples = gauge(
            "normalization_samples", "steps", "Valid ticks that normalisation goes by; 0 where it is off"
        )
        self.return_scale = gauge("return_scale", "ratio", "What rewards are multiplied by to be normalised")
        self.statistics_refused = counter(
            "statistics_refused_total", "statistics", "Statistics in actors' reports that were not taken"
        )

        self.items_drawn = counter("items_drawn_total", "items", "Items received from replay")
        self.items_trained = counter("items_trained_total", "items", "Items trained on")
        self.items_discarded = counter(
            "items_discarded_total", "items", "Items drawn but never trained on", {"reason": DiscardReason}
        )
        self.items_queued = gauge("items_queued", "items", "Items drawn that wait to be trained on")
        self.replay_fill = gauge(
            "replay_fill", "ratio", "Share of the replay tables' capacity in use, at the last progress record"
        )
        self.samples_per_insert = gauge(
            "samples_per_insert",
            "ratio",
            "Items drawn per item stored beyond the tables' least size, at the last progress record; 0 before",
        )
        self.shards = gauge("shards", "shards", "Replay shards of the run")
        self.shards_live = gauge("shards_live", "shards", "Replay shards that were heard of lately")
        self.items_lost_at_restart = counter(
            "items_lost_at_restart_total", "items", "Items that were in replay when it died"
        )

        self.checkpoint_timestamp_seconds = gauge(
            "checkpoint_timestamp_seconds", "seconds", "Unix time of the newest checkpoint; 0 before the first"
        )
        self.checkpoint_seconds = histogram("checkpoint_seconds", "seconds", "Writing a checkpoint", SLOW_SECONDS)
        self.checkpoint_failures = counter(
            "checkpoint_failures_total", "checkpoints", "Checkpoints that could not be written"
        )
        self.checkpoint_interval_seconds = gauge(
            "checkpoint_interval_seconds", "seconds", "Time between checkpoints, as learner.checkpoint_s says"
        )
        self.device_memory_bytes = gauge(
            "device_memory_bytes", "bytes", "Memory of the GPU that PyTorch has taken for itself; 0 on a CPU"
        )
        self.complete = gauge("complete", "0 or 1", "Whether training has ended")

        self.actors = gauge("actors", "actors", "Actors with a lease")
        self.actors_wanted = gauge("actors_wanted", "actors", "Actors that the run is to have, as actor.count says")
        self.leases_expired = counter(
            "leases_expired_total", "actors", "Actors that stopped reporting and did not say goodbye"
        )
        self.env_steps = counter("env_steps_total", "steps", "Valid ticks that actors reported")
        self.env_failures = counter(
            "env_failures_total", "failures", "Environments that misbehaved, as actors reported", {"reason": EnvFault}
        )
        self.unrolls_abandoned = counter(
            "unrolls_abandoned_total",
            "unrolls",
            "Unrolls in the making that actors gave up because their environment misbehaved",
            {"reason": EnvFault},
        )
        self.episodes = counter(
            "episodes_total", "episodes", "Finished episodes that actors reported, of slots that hardly explore"
        )
        self.episode_return_mean = gauge(
            "episode_return_mean", "reward", "Mean raw return of the last episodes, as many as stop.episodes says"
        )
        self.episodes_averaged = gauge(
            "episodes_averaged", "episodes", "Episodes that episode_return_mean is over; 0: there was none yet"
        )
        self.evaluations = counter("evaluations_total", "evaluations", "Evaluations that were booked")
        self.evaluation_return_mean = gauge(
            "evaluation_return_mean", "reward", "Mean raw return of the greedy episodes of the newest evaluation"
        )
        self.evaluation_version = gauge(
            "evaluation_version", "updates", "Version of the weights that the newest evaluation is of"
        )
