"""The first weights: a resumed learner's are those of its checkpoint, and no actor acts before it has some."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import torch
from harness import (
    EPOCH,
    RUN,
    START_S,
    Deadline,
    LearnerParts,
    Processes,
    learner_parts,
    metric,
    replay_shard,
    seeded_network,
    until,
)

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.models.parameters import decode_parameters
from headrace.rpc.chunks import Assembler, Blob
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2
from headrace.unroll import pack_version
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import ArraySpec
from headrace_learner.front import Opened
from headrace_learner.loader import Loader, Source
from headrace_learner.replay_link import open_request
from headrace_learner.run_folder import RunFolder
from headrace_learner.trainer import Trainer

UPDATES = 5
CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "agent": {"unroll_length": 5},
        "learner": {"batch_size": 2, "min_publish_s": 0, "device": "cpu"},
        "telemetry": {"tensorboard": False},
    }
)


def stopped_run(path: Path) -> str:
    """Makes the folder of a run that was stopped after some updates; returns the run's id."""
    folder = RunFolder.open(path, CONFIG, "auto")
    spaces = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
    folder.write_spaces(spaces)
    network = seeded_network(lambda: build_network(CONFIG.model, spaces), 99)
    trainer = Trainer(network, make_agent(CONFIG.agent, spaces, {}), CONFIG, torch.device("cpu"))
    tensors, facts = trainer.state()
    facts |= {"updates": UPDATES, "trained_steps": 50, "episodes": 0, "returns": []}
    folder.checkpoints.save(UPDATES, tensors, facts)
    folder.close()
    return folder.run


def first_blob(address: str, run: str) -> Blob | None:
    """The first whole version that a new subscriber gets; None if nobody answers yet."""
    client = LearnerClient(address)  # a new one each time, that does not pause between attempts to connect
    assembler = Assembler()
    try:
        for chunk in client.weights(learner_pb2.WeightsRequest(run=run, actor=bytes(16))):
            if (blob := assembler.add(chunk)) is not None:
                return blob
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
    finally:
        client.close()
    return None


def test_a_resumed_learner_never_publishes_other_weights_than_its_checkpoints(processes: Processes) -> None:
    run_dir = processes.folder / "run"
    run = stopped_run(run_dir)
    bind, nobody = (f"127.0.0.1:{processes.ports.take()}" for _ in range(2))
    where = ["--run-dir", str(run_dir), "--resume", "must", "--bind", bind, "--replay", nobody]
    learner = processes.service("learner", str(run_dir / "config.yaml"), *where)
    blob = until(lambda: first_blob(bind, run), "the first weights", START_S)
    assert isinstance(blob, Blob)
    assert (blob.epoch, blob.version) == (2, UPDATES)
    checkpoint = CheckpointFolder(run_dir / "checkpoints", keep=3).newest()
    assert checkpoint is not None
    published = decode_parameters(blob.data)
    assert published.keys() == {name.removeprefix("network/") for name in checkpoint.tensors if "network/" in name}
    for name, tensor in published.items():
        assert torch.equal(tensor, checkpoint.tensors[f"network/{name}"])
    learner.terminate()
    assert learner.wait() == 0


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5.0) as reply:
            return bool(reply.status == 200)
    except HTTPError as error:
        if error.code != 503:
            raise
        return False


def test_an_actor_makes_nothing_and_is_not_ready_before_its_first_weights(processes: Processes) -> None:
    port = processes.ports.take()
    with replay_shard(processes) as replay, learner_parts(CONFIG, replay.address) as learner:
        processes.service("actor", "--learner", learner.address, metrics_port=port)
        spaces = learner.definition.wait(learner.stopping, Deadline(START_S, "the actor to describe itself").check)
        assert spaces is not None
        schema = make_agent(CONFIG.agent, spaces, {}).schema
        replay.open(open_request(RUN, EPOCH, CONFIG, schema))
        learner.definition.opened.set_result(Opened(schema, [replay.items]))
        # From here on it may deliver, and the learner has published nothing.
        until(lambda: replay.statistics(RUN).peers == 1, "the actor at replay")
        until(lambda: subscribers(learner) == 1, "the actor to subscribe")
        for _ in range(20):
            assert metric(port, "headrace_actor_unrolls_made_total") == 0
            assert not is_ready(port)
        assert replay.statistics(RUN).ledger.received == 0

        assert learner.publisher.publish(build_network(CONFIG.model, spaces), 3)
        until(lambda: is_ready(port), "the actor to be ready")
        source = Source([replay.samples], RUN, EPOCH, UNROLLS, CONFIG.learner.batch_size, prefetch=1)
        loader = Loader(source, schema, learner.metrics)
        try:
            batch = until(lambda: loader.next(0.1), "a batch")
            assert (batch.views["version"] == pack_version(EPOCH, 3)).all()
        finally:
            loader.close()


def subscribers(learner: LearnerParts) -> float:
    (family,) = learner.metrics.subscribers.collect()
    return float(family.samples[0].value)
