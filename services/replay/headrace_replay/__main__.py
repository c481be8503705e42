"""A replay shard: listens for actors and the learner, and serves until it is told to leave."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial

from headrace.errors import ConfigError
from headrace.service import Lifetime, leave, run_service
from headrace.service_args import ReplayArgs, parse_replay


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service; returns its exit code."""
    try:
        args = parse_replay(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"headrace replay: error: {error}\n")
        return int(error.exit_code)
    return run_service("replay", partial(serve, args), lifeline=args.lifeline)


def serve(args: ReplayArgs, lifetime: Lifetime) -> None:
    """The shard's life."""
    from prometheus_client import CollectorRegistry

    from headrace.memory import memory_limit
    from headrace.rpc.options import REPLAY_SERVICE
    from headrace.rpc.server import Server
    from headrace.rpc.v1 import replay_pb2_grpc
    from headrace.telemetry import health as health_endpoints
    from headrace.telemetry import logs
    from headrace.telemetry.catalogue import ReplayMetrics
    from headrace_replay.control import ReplayControl
    from headrace_replay.desk import SampleDesk
    from headrace_replay.metering import observers
    from headrace_replay.serving import ShardSockets
    from headrace_replay.shard import Shard

    logs.configure("replay", args.log_format, args.log_level)
    registry = CollectorRegistry()
    metrics = ReplayMetrics(registry)
    health = health_endpoints.Health(ready_gauge=metrics.ready)
    health_endpoints.serve(args.metrics_bind.host, args.metrics_bind.port, registry, health)

    memory = memory_limit(args.memory_bytes)
    metrics.memory_limit_bytes.set(memory.nbytes)
    shard = Shard(observers=observers(metrics), memory=memory)
    lock = threading.Lock()  # guards the shard: its sockets' thread and the control take it in turn
    sockets = ShardSockets(shard, SampleDesk(shard), lock, metrics)
    items_port, samples_port = sockets.bind(args.bind.host, args.items_port, args.samples_port)
    control = ReplayControl(shard, lock, items_port, samples_port)
    server = Server(
        str(args.bind),
        partial(replay_pb2_grpc.add_ReplayServicer_to_server, control),
        lifetime.fail,
        services=[REPLAY_SERVICE],
        observe=metrics.observe_rpc,
    )
    try:
        server.start()
        server.set_serving(True)
        health.ready(True)
        sockets.run(lifetime.stopping, health.beat)
    finally:
        health.ready(False)
        server.stop(grace_s=1.0)
        sockets.close()


if __name__ == "__main__":
    leave(main())
