"""The wire as bytes: one example of everything that travels, for those who write the other end.

    python tests/vectors/generate.py            write the files beside this one
    python tests/vectors/generate.py --check    say whether they are what the code gives

    messages.json   each message of the ZeroMQ protocol: fields, and the header frame in hex
    payload.json    payload schemas with hash and offsets; one whole unroll with what is in it
    weights.json    parameters, their safetensors blob, and its chunks as they are streamed
    rpc.json        each gRPC message: fields in protobuf's JSON form, and the bytes in hex

A changed byte is a changed protocol: see "Versions" in docs/wire-protocol.md before writing them anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf import json_format

from headrace.agents.vtrace import behaviour_spec
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.parameters import encode_parameters
from headrace.rpc.chunks import split
from headrace.rpc.v1 import learner_pb2, replay_pb2
from headrace.unroll import UnrollWriter, pack_version, subtree, unroll_schema
from headrace.wire.messages import (
    PROTOCOL,
    UNROLLS,
    Ack,
    Batch,
    Beat,
    Credit,
    Farewell,
    Goodbye,
    Hello,
    Items,
    Message,
    Priorities,
    Refused,
    Reset,
    Sample,
    encode,
)
from headrace.wire.payload import ArraySpec, PayloadSchema

HERE = Path(__file__).resolve().parent
RUN, EPOCH, BOOT = "0123456789abcdef", 1, 0x1122334455667788
ACTOR = bytes(range(16))
ROW_BYTES = 64  # of a payload, in one line of hex

Document = dict[str, Any]

# -- payload -----------------------------------------------------------------------------------------------------------

CARTPOLE = unroll_schema(16, {"observation": ArraySpec("<f4", (4,))}, DiscreteSpec(2, 0).array, behaviour_spec(2), {})
# Four ticks of an environment with two numbers to see and two actions, by a network with a state of two numbers.
SMALL = unroll_schema(
    4,
    {"observation": ArraySpec("<f4", (2,))},
    DiscreteSpec(2, 0).array,
    behaviour_spec(2),
    {"h": ArraySpec("<f4", (2,))},
)
LOG_HALF = -0.6931471824645996  # the float32 nearest to log(0.5)

# An episode ends by its own rules after tick 1; tick 2 only shows its last observation; tick 3 begins the next one. The
# weights change from version 7 to version 8 after the first tick.
UNROLL: dict[str, Any] = {
    "observation": [[0.0, 1.0], [0.5, 1.0], [1.0, 1.0], [-1.0, 0.25], [-0.5, 0.25]],
    "first": [False, False, False, True, False],
    "action": [1, 0, 1, 1],
    "reward": [1.0, -0.5, 0.0, 2.0],
    "terminated": [False, True, False, False],
    "truncated": [False, False, False, False],
    "valid": [True, True, False, True],
    "version": [pack_version(EPOCH, 7), *[pack_version(EPOCH, 8)] * 3],
    "previous_action": 1,
    "previous_reward": 0.25,
    "behaviour/log_prob": [LOG_HALF] * 4,
    "behaviour/logits": [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [-2.0, -2.0]],
    "state/h": [0.125, -3.0],
}
NEW_TICKS, ITEM_VERSION = 3, pack_version(EPOCH, 8)


def write_unroll(schema: PayloadSchema, values: Mapping[str, Any]) -> bytes:
    """The payload, written tick by tick as an actor does."""
    arrays = {name: np.array([values[name]], spec.dtype) for name, spec in schema.fields.items()}  # [1, ...]
    writer = UnrollWriter(schema, 1)
    writer.begin(subtree(arrays, "state"), arrays["previous_action"], arrays["previous_reward"])
    for tick in range(writer.length):
        writer.observe({"observation": arrays["observation"][:, tick]}, arrays["first"][:, tick])
        behaviour = {name: leaf[:, tick] for name, leaf in subtree(arrays, "behaviour").items()}
        writer.act(arrays["action"][:, tick], behaviour, arrays["valid"][:, tick], int(arrays["version"][0, tick]))
        writer.consequence(*(arrays[name][:, tick] for name in ("reward", "terminated", "truncated")))
    rows, new_ticks = writer.finish({"observation": arrays["observation"][:, -1]}, arrays["first"][:, -1])
    assert new_ticks.tolist() == [int(np.sum(values["valid"]))]
    payload: bytes = rows[0].tobytes()
    return payload


def schema_document(schema: PayloadSchema) -> Document:
    return {
        "canonical_json": schema.to_json(),
        "hash": schema.hash.hex(),
        "fields": {
            name: {"dtype": spec.dtype, "shape": list(spec.shape), "offset": schema.offsets[name]}
            for name, spec in schema.fields.items()
        },
        "payload_bytes": schema.payload_bytes,
    }


def payload_document() -> Document:
    payload = write_unroll(SMALL, UNROLL)
    rows = [payload[start : start + ROW_BYTES].hex() for start in range(0, len(payload), ROW_BYTES)]
    return {
        "cartpole": schema_document(CARTPOLE),
        "small": schema_document(SMALL),
        "unroll": {
            "schema": "small",
            "new_ticks": NEW_TICKS,
            "version": ITEM_VERSION,
            "fields": UNROLL,
            "payload": rows,
        },
    }


# -- messages ----------------------------------------------------------------------------------------------------------

ONE_ITEM = Items(UNROLLS, 5, "none", np.array([NEW_TICKS]), np.array([ITEM_VERSION]), np.array([2.5]))
PRIORITIES = Priorities(
    PROTOCOL,
    RUN,
    EPOCH,
    update=9,
    boot=BOOT,
    table=UNROLLS,
    ids=np.array([6, 2**40 + 1]),
    priorities=np.array([0.5, 3.0]),
)
BATCH = Batch(
    boot=BOOT,
    request=2,
    codec="none",
    table_size=40,
    ids=np.array([6, 2**40 + 1]),
    probabilities=np.array([1.0, 0.25]),
    times_sampled=np.array([0, 3]),
    new_ticks=np.array([3, 16]),
    versions=np.array([ITEM_VERSION, pack_version(EPOCH, 300)]),
)
MESSAGES: dict[str, tuple[str, str, Message]] = {  # name: from, to, message
    "hello": ("actor", "replay", Hello(PROTOCOL, RUN, ACTOR, lease=0, seq=5, schema=SMALL.hash)),
    "credit": ("replay", "actor", Credit(BOOT, expected=5, window_items=32, window_bytes=64 << 20)),
    "credit_not_open": ("replay", "actor", Credit(BOOT, expected=5, window_items=0, window_bytes=0)),
    "items": ("actor", "replay", ONE_ITEM),
    "items_of_two": (
        "actor",
        "replay",
        Items(UNROLLS, 70_000, "lz4", np.array([16, 0]), np.array([2**40, ITEM_VERSION]), np.array([1.0, 0.0])),
    ),
    "ack": ("replay", "actor", Ack(6)),
    "reset": ("replay", "actor", Reset(5)),
    "reset_unknown": ("replay", "actor", Reset(None)),
    "goodbye": ("actor", "replay", Goodbye()),
    "farewell": ("replay", "actor", Farewell(6)),
    "refused": ("replay", "actor", Refused("schema", "the payload schema differs from the run's")),
    "beat": ("actor", "replay", Beat()),
    "sample": ("learner", "replay", Sample(PROTOCOL, RUN, EPOCH, request=2, oldest=1, table=UNROLLS, count=2)),
    "batch": ("replay", "learner", BATCH),
    "priorities": ("learner", "replay", PRIORITIES),
}


def plain(value: Any) -> Any:
    """A field's value in JSON."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "values": value.tolist()}
    return value


def messages_document() -> Document:
    return {
        name: {
            "from": sender,
            "to": receiver,
            "kind": message.KIND,
            "fields": {field.name: plain(getattr(message, field.name)) for field in fields(message)},
            "header": encode(message).hex(),
        }
        for name, (sender, receiver, message) in MESSAGES.items()
    }


# -- weights -----------------------------------------------------------------------------------------------------------

PARAMETERS = {
    "policy.bias": torch.tensor([0.0, -1.0]),
    "policy.weight": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "value.bias": torch.tensor([0.5]),
    "value.weight": torch.tensor([[0.25, -0.25, 8.0]]),
}
WEIGHTS_VERSION, PUBLISHED_AT, CHUNK_BYTES = 8, 1767225600.5, 128


def weights_document() -> Document:
    blob = encode_parameters(PARAMETERS)
    chunks = split(EPOCH, WEIGHTS_VERSION, blob, PUBLISHED_AT, CHUNK_BYTES)
    return {
        "epoch": EPOCH,
        "version": WEIGHTS_VERSION,
        "published_at": PUBLISHED_AT,
        "parameters": {
            name: {"dtype": "F32", "shape": list(tensor.shape), "values": tensor.tolist()}
            for name, tensor in PARAMETERS.items()
        },
        "blob": blob.hex(),
        "crc32": chunks[0].crc32,
        "chunks": [chunk.SerializeToString(deterministic=True).hex() for chunk in chunks],
    }


# -- gRPC messages -----------------------------------------------------------------------------------------------------

SPACES = Spaces(ArraySpec("<f4", (2,)), DiscreteSpec(2, 0))
TABLES = (
    replay_pb2.Table(name=UNROLLS, sampler="fifo", max_items=64, max_bytes=256 << 20),
    replay_pb2.Table(
        name="replay",
        sampler="prioritized",
        max_items=100_000,
        max_bytes=1 << 30,
        min_size=5000,
        samples_per_insert=0.8,
        error_buffer=256.0,
        priority_exponent=0.9,
    ),
)
RPC: tuple[Any, ...] = (
    learner_pb2.JoinRequest(protocol=PROTOCOL, actor=ACTOR, lease=0),
    learner_pb2.JoinReply(
        protocol=PROTOCOL, run=RUN, epoch=EPOCH, lease=0, incarnation=65537, seed=7, config_json='{"report_s": 0.5}'
    ),
    learner_pb2.DescribeRequest(actor=ACTOR, run=RUN, spaces_json=SPACES.to_json()),
    learner_pb2.DescribeReply(
        spaces_json=SPACES.to_json(), schema=SMALL.hash, replay_items=["127.0.0.1:6201"], schema_json=SMALL.to_json()
    ),
    learner_pb2.WeightsRequest(actor=ACTOR, run=RUN, epoch=EPOCH, version=7),
    learner_pb2.WeightsChunk(
        epoch=EPOCH, version=8, total_bytes=6, crc32=0xD13DE40C, offset=4, data=b"ts", published_at=PUBLISHED_AT
    ),
    learner_pb2.ReportRequest(
        actor=ACTOR,
        run=RUN,
        lease=0,
        sequence=3,
        ledger=learner_pb2.ActorLedger(made=9, acknowledged=6, held=2, dropped={"in_doubt": 1}),
        env_steps=130,
        returns=[21.0, -0.5],
        leaving=True,
    ),
    learner_pb2.ReportReply(known=True),
    learner_pb2.EvaluatedRequest(actor=ACTOR, run=RUN, epoch=EPOCH, version=8, returns=[200.0, -1.5], lengths=[200, 3]),
    learner_pb2.EvaluatedReply(booked=True),
    replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=RUN,
        epoch=EPOCH,
        tables=TABLES,
        schema=SMALL.hash,
        payload_bytes=SMALL.payload_bytes,
        window_items=32,
        window_bytes=64 << 20,
        codec="lz4",
    ),
    replay_pb2.OpenRunReply(boot=BOOT, items_port=6201, samples_port=6202),
    replay_pb2.StatisticsRequest(run=RUN),
    replay_pb2.StatisticsReply(
        boot=BOOT,
        run=RUN,
        epoch=EPOCH,
        ledger=replay_pb2.ReplayLedger(
            received=20,
            stored=16,
            duplicate=1,
            rejected={"gap": 2},
            waiting=1,
            present=4,
            removed={"sampled": 12},
            sampled=12,
        ),
        tables=[replay_pb2.TableStatistics(name=UNROLLS, items=4, bytes=3328, inserted=16, sampled=12)],
        peers=2,
    ),
)


def rpc_document() -> Document:
    return {
        type(message).__name__: {
            "fields": json_format.MessageToDict(message, preserving_proto_field_name=True),
            "bytes": message.SerializeToString(deterministic=True).hex(),
        }
        for message in RPC
    }


# -- files -------------------------------------------------------------------------------------------------------------


def text(document: Document) -> str:
    """JSON with its outer levels on lines of their own."""
    return _text(document, depth=3) + "\n"


def _text(value: Any, depth: int, indent: str = "") -> str:
    inner = indent + "  "
    if depth and isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_text(part, depth - 1, inner)}" for key, part in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + indent + "}"
    if isinstance(value, list) and value and isinstance(value[0], str) and len(value[0]) > 80:  # rows of hex
        return "[\n" + ",\n".join(inner + json.dumps(row) for row in value) + "\n" + indent + "]"
    return json.dumps(value)


def documents() -> dict[str, str]:
    return {
        "messages.json": text(messages_document()),
        "payload.json": text(payload_document()),
        "weights.json": text(weights_document()),
        "rpc.json": text(rpc_document()),
    }


def main(arguments: list[str]) -> int:
    """Writes the files, or compares them; the exit code is 1 if one differs."""
    different = []
    for name, content in documents().items():
        path = HERE / name
        if arguments != ["--check"]:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            different.append(name)
    for name in different:
        sys.stderr.write(f"tests/vectors/{name} is not what the code gives\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
