"""The learner: opens the run, meets the first actor, trains, publishes, and goes on serving when it is done."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.arguments import Address
from headrace.errors import ConfigError
from headrace.memory import require_memory
from headrace.service import Lifetime, leave, run_service
from headrace.service_args import LearnerArgs, parse_learner

if TYPE_CHECKING:
    import grpc.aio

    from headrace_learner.loader import Loader
    from headrace_learner.replay_link import ReplayLinks

logger = logging.getLogger(__name__)

LEAST_MEMORY_BYTES = 256 << 20  # PyTorch, and a small network


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service; returns its exit code."""
    try:
        args = parse_learner(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"headrace learner: error: {error}\n")
        return int(error.exit_code)
    return run_service("learner", partial(serve, args), lifeline=args.lifeline)


def serve(args: LearnerArgs, lifetime: Lifetime) -> None:
    """The learner's life. It accepts actors before it has imported PyTorch: they make their environments meanwhile."""
    require_memory("a learner", LEAST_MEMORY_BYTES)
    from prometheus_client import CollectorRegistry

    from headrace.rpc.options import LEARNER_SERVICE
    from headrace.rpc.server import Server
    from headrace.rpc.v1 import learner_pb2_grpc
    from headrace.run_dir import new_run_dir
    from headrace.telemetry import health as health_endpoints
    from headrace.telemetry import logs
    from headrace.telemetry.catalogue import LearnerMetrics
    from headrace.telemetry.recorder import Recorder
    from headrace_learner.evaluations import Evaluations
    from headrace_learner.front import Definition, LearnerFront, Opened
    from headrace_learner.normalizers import Normalizers
    from headrace_learner.publisher import WeightPublisher
    from headrace_learner.replay_link import ReplayLinks, open_request, settings_of
    from headrace_learner.roster import Roster
    from headrace_learner.run_folder import RunFolder

    logs.configure("learner", args.log_format, args.log_level)
    config = args.config
    registry = CollectorRegistry()
    metrics = LearnerMetrics(registry)
    health = health_endpoints.Health(ready_gauge=metrics.ready)
    metrics_port = health_endpoints.serve(args.metrics_bind.host, args.metrics_bind.port, registry, health)
    folder = RunFolder.open(args.run_dir or new_run_dir(config.name), config, args.resume)
    health.beat()  # after each part of the start that may take long
    if folder.epoch > 1 and folder.checkpoint is None:
        logger.warning("%s holds no valid checkpoint: training begins anew", folder.path)
    metrics.epoch.set(folder.epoch)
    metrics.actors_wanted.set(config.actor.count)
    metrics.steps_target.set(config.stop.steps or 0)
    metrics.return_goal.set(math.nan if config.stop.return_ is None else config.stop.return_)
    metrics.checkpoint_interval_seconds.set(config.learner.checkpoint_s)
    logger.info("run %s in %s", folder.run, folder.path, extra={"epoch": folder.epoch})

    def register(grpc_server: grpc.aio.Server) -> None:
        learner_pb2_grpc.add_LearnerServicer_to_server(front, grpc_server)

    server = Server(str(args.bind), register, lifetime.fail, services=[LEARNER_SERVICE], observe=metrics.observe_rpc)
    normalizers = Normalizers(metrics.statistics_refused.inc)
    roster = Roster(folder.epoch, config.learner.lease_s, config.stop, metrics)
    definition = Definition(folder.spaces)
    publisher = WeightPublisher(folder.epoch, config.learner.min_publish_s, server.call_soon, metrics)
    evaluations = None if config.evaluation.every_s is None else Evaluations(metrics)
    front = LearnerFront(folder.run, folder.epoch, config, roster, definition, publisher, evaluations, normalizers)
    replay = ReplayLinks(args.replay, lifetime.stopping, metrics)
    server.start()
    server.set_serving(True)
    health.ready(True)
    try:
        folder.write_metrics_address(Address(args.metrics_bind.host, metrics_port))
        import torch

        from headrace.agents.registry import make_agent
        from headrace.malformed import malformed
        from headrace.models.build import build_network, state_spec
        from headrace.wire.messages import UNROLLS
        from headrace_learner.account import Account
        from headrace_learner.loader import Loader, Source
        from headrace_learner.trainer import Trainer, check_precision, choose_device
        from headrace_learner.training import Training, init_from, resume

        device = choose_device(config.learner.device)
        check_precision(config.learner.precision, device)
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        health.beat()
        spaces = definition.wait(lifetime.stopping, health.beat)
        if spaces is None:
            return
        folder.write_spaces(spaces)
        network = build_network(config.model, spaces)
        health.beat()
        agent = make_agent(config.agent, spaces, state_spec(network))
        schema = agent.schema
        trainer = Trainer(network, agent, config, device, normalizers)
        if folder.checkpoint is not None:
            resume(folder.checkpoint, trainer, roster)
        elif args.init_from is not None:
            init_from(args.init_from, trainer)
        health.beat()
        publisher.publish(network, trainer.updates, trainer.return_scale)
        if not replay.open(open_request(folder.run, folder.epoch, config, schema), health.beat):
            return
        definition.opened.set_result(Opened(schema, [link.items_address for link in replay.shards]))
        settings = settings_of(config)
        source = Source(
            addresses=[link.samples_address for link in replay.shards],
            run=folder.run,
            epoch=folder.epoch,
            table=UNROLLS,
            batch_size=config.learner.batch_size,
            prefetch=config.learner.prefetch,
            codec=config.replay.codec,
            prioritized=settings.sampler == "prioritized",
            importance_exponent=settings.importance_exponent,
        )
        check = partial(malformed, spaces=spaces)
        loader = Loader(source, schema, metrics, check, pinned=device.type == "cuda")
        for link in replay.shards:
            lifetime.thread(f"link to {link.address}", partial(link.run, loader.ledger.drawn_from))
        account = Account(config, trainer, roster, replay, loader.ledger, evaluations)
        recorder = Recorder(folder.path, config.telemetry.tensorboard)
        training = Training(
            config=config,
            trainer=trainer,
            source=loader,
            publisher=publisher,
            roster=roster,
            account=account,
            recorder=recorder,
            checkpoints=folder.checkpoints,
            metrics=metrics,
            health=health,
            lifetime=lifetime,
            run=folder.run,
            spaces=spaces,
            evaluations=evaluations,
        )
        outcome = training.train()
        trained_until = time.monotonic()
        loader.finish(timeout_s=0.0)
        if outcome != "stopped":
            metrics.complete.set(1)
            logger.info("complete (%s): serving weights and metrics until told to leave", outcome)
        while not lifetime.stopping.is_set():
            loader.finish(timeout_s=0.1)
            lifetime.stopping.wait(0.1)
            health.beat()
            roster.expire()
            training.keep_best()  # evaluators go on
        lifetime.check()
        settle(replay, loader)
        summary = account.summary(folder.run, folder.epoch, outcome, trained_until)
        if args.summary_json is not None:
            args.summary_json.write_text(json.dumps(summary, indent=1) + "\n")
        recorder.close()
        loader.close()
    finally:
        health.ready(False)
        folder.forget_metrics_address()
        publisher.close()
        server.stop(grace_s=0.5)
        replay.close()


def settle(replay: ReplayLinks, loader: Loader, limit_s: float = 2.0) -> None:
    """Waits until what replay dealt out has arrived here, so that the ledger is exact."""
    deadline = time.monotonic() + limit_s
    while replay.poll() and time.monotonic() < deadline:
        ledger = replay.ledger()
        if loader.ledger.drawn >= ledger.sampled + ledger.unknown:
            break
        loader.finish(timeout_s=0.02)


if __name__ == "__main__":
    leave(main())
