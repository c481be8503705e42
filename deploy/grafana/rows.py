"""The dashboard's rows, from the run as a whole down to its processes. docs/monitoring.md explains them."""

from __future__ import annotations

from grafana_foundation_sdk.models import units
from panels import Panel, distribution, graph, mean, number, of, quantile, quantiles, rate

SECONDS, BYTES, RATIO, SHORT = units.Seconds, units.BytesIEC, units.PercentUnit, units.Short
RATE = units.CountsPerSecond


def overview() -> list[Panel]:
    """By the recorded signals, where there is one: deploy/prometheus/rules/recording.yml."""
    checkpoint_age = f"time() - ({of('headrace_learner_checkpoint_timestamp_seconds')} > 0)"
    return [
        number("Env steps", "Steps per second.", RATE, (of("namespace_run:headrace_env_steps:rate1m"), "")),
        number("Updates", "Updates per second.", RATE, (of("namespace_run:headrace_updates:rate1m"), "")),
        number(
            "Learner waits",
            "Share of the learner's time without a batch.",
            RATIO,
            (of("namespace_run:headrace_learner_wait:ratio_rate1m"), ""),
        ),
        number(
            "Samples per insert",
            "Of its target.",
            RATIO,
            (of("namespace_run:headrace_samples_per_insert:ratio_to_target"), ""),
        ),
        number(
            "Policy lag, p95",
            "Updates since the weights that acted.",
            SHORT,
            (of("namespace_run:headrace_policy_lag_versions:p95_rate5m"), ""),
        ),
        number(
            "Actors",
            "Actors that are scraped, and those that are wanted.",
            SHORT,
            (of("namespace_run:headrace_actors_up:count"), "up"),
            (f"max({of('headrace_learner_actors_wanted')})", "wanted"),
        ),
        number(
            "Return",
            "Mean raw return of the last episodes.",
            SHORT,
            (of("namespace_run:headrace_episode_return:avg"), ""),
            decimals=1,
        ),
        number("Checkpoint", "Age of the newest checkpoint.", SECONDS, (f"min({checkpoint_age})", "")),
        graph(
            "Return",
            "Mean raw return of the last training episodes, and of the newest greedy evaluation.",
            SHORT,
            (of("namespace_run:headrace_episode_return:avg"), "training"),
            (f"{of('headrace_learner_evaluation_return_mean')} and {evaluated()}", "evaluation"),
        ),
        graph(
            "Alerts",
            "Alerts that fire.",
            SHORT,
            (f"count by (alertname) ({FIRING})", "{{alertname}}"),
        ),
        graph(
            "State",
            "Whether services are ready, and whether training has ended.",
            SHORT,
            (f"sum by (job) ({any_of('ready')})", "{{job}} ready"),
            (f"max({of('headrace_learner_complete')})", "complete"),
        ),
    ]


def throughput() -> list[Panel]:
    return [
        graph(
            "Env steps",
            "Valid ticks per second: all actors, the fastest and the slowest one.",
            RATE,
            (rate("headrace_actor_env_steps_total"), "all"),
            (f"max({per_actor('env_steps_total')})", "fastest actor"),
            (f"min({per_actor('env_steps_total')})", "slowest actor"),
        ),
        graph(
            "Steps trained",
            "Valid ticks per second that the learner trains on for the first time.",
            RATE,
            (rate("headrace_learner_ticks_trained_total"), "trained"),
            (rate("headrace_learner_env_steps_total"), "reported by actors"),
        ),
        graph("Updates", "Optimizer steps per second.", RATE, (rate("headrace_learner_updates_total"), "updates")),
        graph(
            "The learner's time",
            "What each second goes to. The rest is bookkeeping.",
            SECONDS,
            (rate("headrace_learner_step_seconds_sum", "phase"), "{{phase}}"),
            (rate("headrace_learner_waiting_seconds_total"), "waiting for a batch"),
            stacked=True,
        ),
        graph(
            "An actor's time",
            "What each second of the mean actor goes to. The rest is writing and sending unrolls.",
            SECONDS,
            *((f"avg({per_actor(name)})", legend) for name, legend in ACTORS_TIME),
            stacked=True,
        ),
        graph(
            "Unrolls",
            "Unrolls per second.",
            RATE,
            (rate("headrace_actor_unrolls_made_total"), "made"),
            (rate("headrace_actor_unrolls_acknowledged_total"), "stored"),
            (rate("headrace_learner_items_trained_total"), "trained on"),
        ),
    ]


def balance() -> list[Panel]:
    return [
        graph(
            "Who waits for whom",
            "Shares of time: the learner without a batch, the mean actor without credit.",
            RATIO,
            (of("namespace_run:headrace_learner_wait:ratio_rate1m"), "learner waits"),
            (of("namespace_run:headrace_actor_blocked:ratio_rate1m"), "actors are held up"),
        ),
        graph(
            "Actors to ask for",
            "By what the number of actors should be multiplied: an autoscaler holds it at 1.",
            SHORT,
            (of("namespace_run:headrace_actor_demand:ratio_rate1m"), "x actors"),
        ),
        graph(
            "Samples per insert",
            "Items drawn per item stored, by shard.",
            SHORT,
            (of("headrace_replay_samples_per_insert"), "{{instance}}"),
            (f"max({of('headrace_replay_samples_per_insert_target')})", "target"),
        ),
        graph(
            "Replay's time",
            "What each second of the shards' worker threads goes to.",
            SECONDS,
            (rate("headrace_replay_worker_seconds_total", "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "Waits in replay",
            "Until an item is admitted, and until a request is answered.",
            SECONDS,
            *((query, f"insert {legend}") for query, legend in quantiles("headrace_replay_insert_wait_seconds")),
            *((query, f"sample {legend}") for query, legend in quantiles("headrace_replay_sample_wait_seconds")),
        ),
        graph(
            "Queues",
            "Items that actors hold, that wait to be admitted, and that the learner has drawn ahead.",
            SHORT,
            (f"sum({of('headrace_actor_unrolls_held')})", "held by actors"),
            (f"sum({of('headrace_replay_waiting')})", "waiting at replay"),
            (f"sum({of('headrace_learner_items_queued')})", "queued at the learner"),
        ),
    ]


def staleness() -> list[Panel]:
    weights_age = f"time() - ({of('headrace_actor_weights_timestamp_seconds')} > 0)"
    behind = f"scalar(max({of('headrace_learner_weights_version')})) - {of('headrace_actor_weights_version')}"
    return [
        distribution(
            "Policy lag",
            "Updates between the weights that acted and those that were trained, by batch.",
            SHORT,
            "headrace_learner_policy_lag_versions",
        ),
        graph(
            "Policy lag in updates",
            "The same, as quantiles. Beyond 256 it is shown as 256.",
            SHORT,
            *quantiles("headrace_learner_policy_lag_versions"),
        ),
        graph(
            "Policy lag in seconds",
            "From publishing the oldest weights that acted until training on what they did.",
            SECONDS,
            *quantiles("headrace_learner_policy_lag_seconds"),
        ),
        graph(
            "Age of the actors' weights",
            "Since they were published.",
            SECONDS,
            (f"max({weights_age})", "oldest"),
            (f"quantile(0.5, {weights_age})", "median"),
        ),
        graph(
            "Actors behind the learner",
            "Updates between the newest published weights and those that act.",
            SHORT,
            (f"max({behind})", "furthest"),
            (f"quantile(0.5, {behind})", "median"),
        ),
        graph(
            "Publishing",
            "Weight versions per second, and how long an actor takes to apply one.",
            RATE,
            (rate("headrace_learner_publishes_total"), "published"),
            (f"avg({per_actor('weights_apply_seconds_count')})", "applied by the mean actor"),
        ),
    ]


def replay() -> list[Panel]:
    return [
        graph(
            "Items",
            "In the tables, and the most that they hold.",
            SHORT,
            (of("headrace_replay_items"), "{{instance}}"),
            (f"sum({of('headrace_replay_max_items')})", "most, all shards"),
        ),
        graph(
            "Payload",
            "In the tables, and the most that they hold.",
            BYTES,
            (of("headrace_replay_bytes"), "{{instance}}"),
            (f"sum({of('headrace_replay_max_bytes')})", "most, all shards"),
        ),
        graph(
            "Coming and going",
            "Items per second.",
            RATE,
            (rate("headrace_replay_stored_total"), "stored"),
            (rate("headrace_replay_sampled_total"), "drawn"),
            (rate("headrace_replay_removed_total", "reason"), "removed: {{reason}}"),
        ),
        graph(
            "Age of items",
            "Of the oldest item of each batch, and of items that newer ones replaced.",
            SECONDS,
            *((query, f"drawn {legend}") for query, legend in quantiles("headrace_replay_item_age_seconds")),
            *((query, f"evicted {legend}") for query, legend in quantiles("headrace_replay_evicted_age_seconds")),
            log=True,
        ),
        graph(
            "Times drawn",
            "How often items were drawn until newer ones replaced them.",
            SHORT,
            *quantiles("headrace_replay_evicted_times_sampled"),
        ),
        graph(
            "Effective sample share",
            "1 if all items are drawn alike, 1/N if one has all the weight.",
            RATIO,
            (of("headrace_replay_effective_sample_share"), "{{instance}}"),
        ),
        distribution(
            "Priorities",
            "That items came with or were given, without the exponent.",
            SHORT,
            "headrace_replay_priority",
            width=12,
        ),
        graph(
            "Priority updates",
            "Per second; those that came too late by reason.",
            RATE,
            (rate("headrace_replay_priorities_applied_total"), "applied"),
            (rate("headrace_replay_priorities_missing_total", "reason"), "missed: {{reason}}"),
            width=12,
        ),
    ]


def learning() -> list[Panel]:
    updates = rate("headrace_learner_updates_total")
    return [
        distribution(
            "Returns",
            "Raw returns of finished episodes, in slots that hardly explore.",
            SHORT,
            "headrace_actor_episode_return",
        ),
        graph(
            "Episode length",
            "In valid ticks, in slots that hardly explore.",
            SHORT,
            *quantiles("headrace_actor_episode_length"),
        ),
        graph(
            "Loss",
            "Terms of the last update, times their costs.",
            SHORT,
            (of("headrace_learner_loss"), "{{component}}"),
        ),
        graph(
            "Gradient norm",
            "Of the last update, before clipping.",
            SHORT,
            (of("headrace_learner_gradient_norm"), "norm"),
            log=True,
        ),
        graph(
            "Clipped and skipped updates",
            "Shares of all updates: with a clipped gradient, and with one that was not finite.",
            RATIO,
            (f"{rate('headrace_learner_gradients_clipped_total')} / {updates}", "clipped"),
            (f"{rate('headrace_learner_nonfinite_updates_total')} / {updates}", "skipped"),
        ),
        graph("Learning rate", "Of the last update.", SHORT, (of("headrace_learner_learning_rate"), "rate")),
        graph(
            "Policy",
            "V-trace: mean entropy of the last batch.",
            SHORT,
            (of("headrace_learner_entropy"), "entropy (nats)"),
        ),
        graph(
            "Fit and correction",
            "V-trace: what the values explain of their targets, and the share of ratios that were clipped.",
            RATIO,
            (of("headrace_learner_explained_variance"), "explained variance"),
            (of("headrace_learner_clipped_rho_share"), "clipped ratios"),
        ),
        graph(
            "Q-learning",
            "Mean Q-value and mean size of the TD errors of the last batch.",
            SHORT,
            (of("headrace_learner_q_value"), "Q-value"),
            (of("headrace_learner_td_error"), "TD error"),
        ),
    ]


def transport() -> list[Panel]:
    return [
        graph(
            "Reconnects",
            "Connections that were lost and made again, in 5 minutes.",
            SHORT,
            *((f"sum by (peer) (increase({of(name)}[5m]))", f"{who} to {{{{peer}}}}") for who, name in RECONNECTS),
        ),
        graph(
            "Who is connected",
            "Leases and weight streams at the learner, actors that replay hears, live shards.",
            SHORT,
            (f"max({of('headrace_learner_actors')})", "leases"),
            (f"max({of('headrace_learner_subscribers')})", "weight streams"),
            (f"sum({of('headrace_replay_peers')})", "heard by replay"),
            (f"max({of('headrace_learner_shards_live')})", "live shards"),
            (f"max({of('headrace_learner_shards')})", "shards"),
        ),
        graph(
            "Actors lost",
            "Leases that expired without a goodbye, in 5 minutes.",
            SHORT,
            (f"sum(increase({of('headrace_learner_leases_expired_total')}[5m]))", "expired"),
        ),
        graph(
            "Lost and repeated",
            "Unrolls and items per second.",
            RATE,
            (rate("headrace_actor_unrolls_dropped_total", "reason"), "dropped: {{reason}}"),
            (rate("headrace_actor_unrolls_resent_total"), "sent again"),
            (rate("headrace_replay_duplicate_total"), "duplicates ignored"),
            (rate("headrace_learner_items_discarded_total", "reason"), "discarded: {{reason}}"),
        ),
        graph(
            "Refused",
            "By replay's ports and by gRPC, per second.",
            RATE,
            (rate("headrace_replay_rejected_total", "reason"), "items: {{reason}}"),
            (rate("headrace_replay_refused_requests_total", "reason"), "requests: {{reason}}"),
            (rate("headrace_replay_connections_failed_total", "reason"), "connections: {{reason}}"),
            (rate("headrace_replay_rpc_refused_total"), "calls to replay"),
            (rate("headrace_learner_rpc_refused_total"), "calls to the learner"),
        ),
        graph(
            "Payload sent",
            "By all actors, repetitions included.",
            units.BytesPerSecondIEC,
            (rate("headrace_actor_sent_bytes_total"), "sent"),
        ),
        graph(
            "gRPC calls",
            "Per second, by outcome.",
            RATE,
            (rate("headrace_learner_rpc_seconds_count", "method, code"), "learner {{method}} {{code}}"),
            (rate("headrace_replay_rpc_seconds_count", "method, code"), "replay {{method}} {{code}}"),
        ),
        graph(
            "gRPC latency, p95",
            "Answering a call.",
            SECONDS,
            (quantile(0.95, "headrace_learner_rpc_seconds", "method"), "learner {{method}}"),
            (quantile(0.95, "headrace_replay_rpc_seconds", "method"), "replay {{method}}"),
        ),
        graph(
            "Applying weights",
            "Decoding them and swapping them in.",
            SECONDS,
            *quantiles("headrace_actor_weights_apply_seconds"),
        ),
    ]


def resources() -> list[Panel]:
    return [
        graph(
            "Processor",
            "Cores used, by service; processes that an environment starts are not in it.",
            SHORT,
            (rate("process_cpu_seconds_total", "job"), "{{job}}"),
        ),
        graph(
            "Memory",
            "Resident, by service: the largest process of each.",
            BYTES,
            (f"max by (job) ({of('process_resident_memory_bytes')})", "{{job}}"),
        ),
        graph(
            "Replay's memory",
            "Of what it may use.",
            RATIO,
            (f"{of('headrace_replay_resident_bytes')} / {of('headrace_replay_memory_limit_bytes')}", "{{instance}}"),
        ),
        graph(
            "GPU memory",
            "That PyTorch has taken for the learner.",
            BYTES,
            (of("headrace_learner_device_memory_bytes"), "learner"),
        ),
        graph(
            "Open files",
            "The most of any process of a service.",
            SHORT,
            (f"max by (job) ({of('process_open_fds')})", "{{job}}"),
        ),
        graph(
            "Checkpoints",
            "How long one takes to write, and failures in 10 minutes.",
            SECONDS,
            (mean("headrace_learner_checkpoint_seconds"), "writing"),
            (f"sum(increase({of('headrace_learner_checkpoint_failures_total')}[10m]))", "failures"),
        ),
    ]


FIRING = of("ALERTS", 'alertname=~"Headrace.+", alertstate="firing"')
ACTORS_TIME = (
    ("env_step_seconds_sum", "environments"),
    ("inference_seconds_sum", "inference"),
    ("blocked_seconds_total", "held up by replay"),
)
SERVICES = ("actor", "evaluator", "replay", "learner")
RECONNECTS = tuple((service, f"headrace_{service}_reconnects_total") for service in SERVICES)
ROWS = (
    ("Overview", overview),
    ("Throughput", throughput),
    ("Balance", balance),
    ("Staleness", staleness),
    ("Replay", replay),
    ("Learning", learning),
    ("Transport", transport),
    ("Resources", resources),
)


def per_actor(name: str) -> str:
    """Growth per second, one series for each actor."""
    return f"rate({of(f'headrace_actor_{name}')}[$__rate_interval])"


def any_of(name: str) -> str:
    """The series of all services."""
    return " or ".join(of(f"headrace_{service}_{name}") for service in SERVICES)


def evaluated() -> str:
    """Before the first evaluation its result is 0."""
    return f"{of('headrace_learner_evaluations_total')} > 0"
