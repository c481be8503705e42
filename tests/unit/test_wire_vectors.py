"""The wire byte for byte: the vectors, the code, the second implementation in tests/foreign and docs/wire-protocol.md.

Whatever fails in here is a change of the protocol: see "Versions" on that page.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign import codec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from vectors import generate

from headrace.envs.spaces import Spaces
from headrace.models.parameters import decode_parameters, encode_parameters
from headrace.rpc import options
from headrace.rpc.chunks import Assembler, Blob, ChunkError, split
from headrace.rpc.v1 import learner_pb2, replay_pb2
from headrace.unroll import UnrollWriter, pack_version, subtree, unroll_schema
from headrace.wire import header, messages, payload
from headrace.wire.compression import bound, decompress_into
from headrace.wire.header import MalformedError
from headrace.wire.messages import FROM_ACTOR, FROM_LEARNER, TO_ACTOR, TO_LEARNER, decode, encode
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_replay import desk

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
PAGE = (ROOT / "docs" / "wire-protocol.md").read_text()


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((VECTORS / f"{name}.json").read_text()))


MESSAGES, PAYLOAD, WEIGHTS, RPC = load("messages"), load("payload"), load("weights"), load("rpc")
EXPECTED = {
    ("actor", "replay"): FROM_ACTOR,
    ("replay", "actor"): TO_ACTOR,
    ("learner", "replay"): FROM_LEARNER,
    ("replay", "learner"): TO_LEARNER,
}
KINDS: dict[str, Any] = {kind.KIND: kind for kinds in EXPECTED.values() for kind in kinds}


def test_the_files_are_what_the_generator_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


# -- messages --------------------------------------------------------------------------------------------------------


def value(told: Any) -> Any:
    """A field of a message from its JSON form."""
    if isinstance(told, dict) and "hex" in told:
        return bytes.fromhex(told["hex"])
    if isinstance(told, dict):
        return np.array(told["values"], told["dtype"])
    return told


def message(name: str) -> Any:
    vector = MESSAGES[name]
    return KINDS[vector["kind"]](**{field: value(told) for field, told in vector["fields"].items()})


def frame(name: str) -> bytes:
    return bytes.fromhex(MESSAGES[name]["header"])


def receivable(name: str) -> tuple[type[Any], ...]:
    return EXPECTED[MESSAGES[name]["from"], MESSAGES[name]["to"]]


def same(one: Any, other: Any) -> bool:
    """Whether two messages are equal in type and in every field, bit for bit."""
    if type(one) is not type(other):
        return False
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) if isinstance(a, np.ndarray) else a == b
        for a, b in pairs
    )


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """`data` with each of its bits turned over in turn, and which bit that is."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def test_there_is_a_vector_of_every_kind_of_message() -> None:
    assert {vector["kind"] for vector in MESSAGES.values()} == KINDS.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_encoded_to_these_bytes(name: str) -> None:
    assert encode(message(name)).hex() == MESSAGES[name]["header"]


@pytest.mark.parametrize("name", MESSAGES)
def test_these_bytes_are_decoded_to_the_message(name: str) -> None:
    assert same(decode(frame(name), receivable(name)), message(name))


@pytest.mark.parametrize("name", MESSAGES)
def test_no_bit_of_a_header_can_be_turned_over_without_notice(name: str) -> None:
    sent = message(name)
    for bit, changed in flipped(frame(name)):
        try:
            arrived = decode(changed, receivable(name))
        except MalformedError:
            continue
        assert not same(arrived, sent), f"bit {bit % 8} of byte {bit // 8}"


def foreign_value(told: Any) -> Any:
    """As `value`, as the second implementation has it."""
    return told["values"] if isinstance(told, dict) and "values" in told else value(told)


@pytest.mark.parametrize("name", MESSAGES)
def test_the_second_implementation_reads_the_same_bytes_and_writes_what_an_actor_sends(name: str) -> None:
    vector = MESSAGES[name]
    plain = {field: foreign_value(told) for field, told in vector["fields"].items()}
    assert codec.decode(frame(name)) == {"kind": vector["kind"], **plain}
    if vector["from"] == "actor":
        assert codec.encode(vector["kind"], **plain).hex() == vector["header"]


# -- payload ---------------------------------------------------------------------------------------------------------

UNROLL = PAYLOAD["unroll"]
ROWS: bytes = bytes.fromhex("".join(UNROLL["payload"]))


def schema(name: str) -> PayloadSchema:
    listed = PAYLOAD[name]["fields"]
    return PayloadSchema({field: ArraySpec(spec["dtype"], tuple(spec["shape"])) for field, spec in listed.items()})


def arrays() -> dict[str, Any]:
    """What is in the unroll, [1, *shape] each."""
    specs = schema("small").fields
    return {name: np.array([UNROLL["fields"][name]], spec.dtype) for name, spec in specs.items()}


@pytest.mark.parametrize("name", ["cartpole", "small"])
def test_a_schema_has_this_text_hash_size_and_these_offsets(name: str) -> None:
    vector, made = PAYLOAD[name], schema(name)
    assert made.to_json() == vector["canonical_json"]
    assert made.hash.hex() == vector["hash"]
    assert made.payload_bytes == vector["payload_bytes"]
    assert made.offsets == {field: spec["offset"] for field, spec in vector["fields"].items()}


def test_an_unroll_has_these_fields_in_this_order() -> None:
    behaviour = {"log_prob": ArraySpec("<f4", ()), "logits": ArraySpec("<f4", (2,))}
    action = ArraySpec("<i8", ())
    cartpole = unroll_schema(16, {"observation": ArraySpec("<f4", (4,))}, action, behaviour, {})
    small = unroll_schema(4, {"observation": ArraySpec("<f4", (2,))}, action, behaviour, {"h": ArraySpec("<f4", (2,))})
    assert (cartpole.hash.hex(), small.hash.hex()) == (PAYLOAD["cartpole"]["hash"], PAYLOAD["small"]["hash"])


def test_an_unroll_is_written_to_these_bytes() -> None:
    given = arrays()
    writer = UnrollWriter(schema("small"), 1)
    writer.begin(subtree(given, "state"), given["previous_action"], given["previous_reward"])
    for tick in range(writer.length):
        writer.observe({"observation": given["observation"][:, tick]}, given["first"][:, tick])
        behaviour = {name: leaf[:, tick] for name, leaf in subtree(given, "behaviour").items()}
        writer.act(given["action"][:, tick], behaviour, given["valid"][:, tick], int(given["version"][0, tick]))
        writer.consequence(given["reward"][:, tick], given["terminated"][:, tick], given["truncated"][:, tick])
    rows, new_ticks = writer.finish({"observation": given["observation"][:, -1]}, given["first"][:, -1])
    assert rows[0].tobytes().hex() == ROWS.hex()
    assert new_ticks.tolist() == [UNROLL["new_ticks"]]
    assert max(UNROLL["fields"]["version"]) == UNROLL["version"] == pack_version(1, 8)


def read(data: bytes) -> dict[str, bytes]:
    """The fields of a payload, as the learner reads them."""
    made = schema("small")
    buffer = made.allocate(1)
    made.fill(buffer, [data])
    return {name: view.tobytes() for name, view in made.views(buffer).items()}


def test_these_bytes_are_read_as_the_unroll() -> None:
    assert read(ROWS) == {name: array.tobytes() for name, array in arrays().items()}


def test_every_byte_of_a_payload_belongs_to_one_field_or_is_a_gap_of_zeros() -> None:
    made, before = schema("small"), read(ROWS)
    used = {made.offsets[name] + at: name for name, spec in made.fields.items() for at in range(spec.nbytes)}
    for at in range(len(ROWS)):
        changed = bytearray(ROWS)
        changed[at] ^= 0xFF
        different = [name for name, data in read(bytes(changed)).items() if data != before[name]]
        assert different == ([used[at]] if at in used else [])
        assert at in used or ROWS[at] == 0


def test_the_second_implementation_computes_the_same_layout_and_writes_the_same_unroll() -> None:
    cartpole = codec.Layout.of(codec.unroll_fields(16, "<f4", [4], 2))
    small = codec.Layout.of(codec.unroll_fields(4, "<f4", [2], 2, [("h", "<f4", [2])]))
    for name, layout in (("cartpole", cartpole), ("small", small)):
        vector = PAYLOAD[name]
        assert (layout.text, layout.hash.hex()) == (vector["canonical_json"], vector["hash"])
        assert layout.payload_bytes == vector["payload_bytes"]
        assert layout.offsets == {field: spec["offset"] for field, spec in vector["fields"].items()}
    rows = np.zeros((1, small.payload_bytes), np.uint8)
    for name, view in small.views(rows).items():
        view[0] = UNROLL["fields"][name]
    assert rows[0].tobytes().hex() == ROWS.hex()
    assert codec.packed_version(1, 8) == UNROLL["version"]


@pytest.mark.parametrize("size", [1, 14, 15, 16, 269, 270, 271, 832, 70_000])
def test_the_second_implementation_sends_a_payload_as_a_block_of_literals_that_is_read_as_it_was(size: int) -> None:
    payload, row = bytes(number % 251 for number in range(size)), np.zeros(size, np.uint8)
    frame = codec.lz4_block(payload)
    assert len(frame) <= bound(size)
    decompress_into(frame, row)
    assert row.tobytes() == payload


# -- weights and gRPC ------------------------------------------------------------------------------------------------

BLOB = bytes.fromhex(WEIGHTS["blob"])
CHUNKS = [bytes.fromhex(chunk) for chunk in WEIGHTS["chunks"]]
WHOLE = Blob(WEIGHTS["epoch"], WEIGHTS["version"], BLOB, WEIGHTS["published_at"])


def parameters() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(told["values"]).view(told["shape"]) for name, told in WEIGHTS["parameters"].items()}


def assembled(chunks: list[bytes]) -> Blob | None:
    """What a subscriber makes of these messages; None if it refuses them."""
    assembler, blob = Assembler(), None
    try:
        for chunk in chunks:
            blob = assembler.add(learner_pb2.WeightsChunk.FromString(chunk))
    except (ChunkError, DecodeError):
        return None
    return blob


def test_parameters_are_encoded_to_this_blob_and_it_to_these_chunks() -> None:
    assert encode_parameters(parameters()).hex() == WEIGHTS["blob"]
    chunks = split(WHOLE.epoch, WHOLE.version, BLOB, WHOLE.published_at, chunk_bytes=128)
    assert [chunk.SerializeToString(deterministic=True).hex() for chunk in chunks] == WEIGHTS["chunks"]
    assert chunks[0].crc32 == WEIGHTS["crc32"] == zlib.crc32(BLOB)


def test_these_chunks_are_assembled_to_the_blob_and_it_is_decoded_to_the_parameters() -> None:
    assert assembled(CHUNKS) == WHOLE
    decoded, sent = decode_parameters(BLOB), parameters()
    foreign = codec.read_safetensors(BLOB)
    assert decoded.keys() == foreign.keys() == sent.keys()
    for name, tensor in sent.items():
        assert torch.equal(decoded[name], tensor)
        assert foreign[name].tolist() == tensor.tolist()


def same_part(one: bytes, other: bytes) -> bool:
    """Whether protobuf reads the same part of the same version in both, whenever that was published."""
    chunks = [learner_pb2.WeightsChunk.FromString(chunk) for chunk in (one, other)]
    for chunk in chunks:
        chunk.published_at = 0.0
        chunk.DiscardUnknownFields()
    return chunks[0] == chunks[1]


def test_no_bit_of_a_chunk_can_be_turned_over_without_notice() -> None:
    for index, chunk in enumerate(CHUNKS):
        unnoticed = [
            changed
            for _, changed in flipped(chunk)
            if assembled([*CHUNKS[:index], changed, *CHUNKS[index + 1 :]]) == WHOLE
        ]
        # protobuf reads the 35 bits of a uint32 as 32; and the time is taken from the first chunk alone
        assert len(unnoticed) <= 3 + (80 if index else 0)
        assert all(same_part(changed, chunk) for changed in unnoticed)


@pytest.mark.parametrize("name", RPC)
def test_a_grpc_message_has_these_bytes(name: str) -> None:
    kind = getattr(learner_pb2, name, None) or getattr(replay_pb2, name)
    made = json_format.ParseDict(RPC[name]["fields"], kind())
    assert made.SerializeToString(deterministic=True).hex() == RPC[name]["bytes"]
    assert kind.FromString(bytes.fromhex(RPC[name]["bytes"])) == made


def test_there_is_a_vector_of_every_grpc_request_and_reply() -> None:
    described = [learner_pb2.DESCRIPTOR, replay_pb2.DESCRIPTOR]
    methods = [method for file in described for service in file.services_by_name.values() for method in service.methods]
    assert {kind.name for method in methods for kind in (method.input_type, method.output_type)} == RPC.keys()


# -- the page --------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```(?:hex|json) (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS: dict[str, str] = dict(BLOCK.findall(PAGE))


def hex_rows(block: str) -> Iterator[tuple[int | None, bytes]]:
    """Each line's bytes, with the offset that it begins with, if it does (`@64  00 01 | a remark`)."""
    for line in block.splitlines():
        written = line.partition("|")[0].split()
        at = int(written.pop(0)[1:]) if written and written[0].startswith("@") else None
        yield at, bytes.fromhex("".join(written))


def hex_block(block: str) -> bytes:
    return b"".join(data for _, data in hex_rows(block))


def test_the_page_shows_these_examples() -> None:
    shown = {"payload/small", "payload/small.hash", "payload/unroll", "payload/lz4"}
    assert BLOCKS.keys() == shown | {f"messages/{name}" for name in ("hello", "credit", "items", "ack")}


@pytest.mark.parametrize("name", [name for name in BLOCKS if name.startswith("messages/")])
def test_a_message_on_the_page_is_the_vectors(name: str) -> None:
    assert hex_block(BLOCKS[name]).hex() == MESSAGES[name.partition("/")[2]]["header"]


def test_the_schema_on_the_page_is_the_vectors() -> None:
    assert BLOCKS["payload/small"].replace("\n", "") == PAYLOAD["small"]["canonical_json"]
    assert hex_block(BLOCKS["payload/small.hash"]).hex() == PAYLOAD["small"]["hash"]


def test_the_payload_on_the_page_is_the_vectors() -> None:
    shown, at = bytearray(len(ROWS)), 0
    for begins_at, data in hex_rows(BLOCKS["payload/unroll"]):
        at = at if begins_at is None else begins_at
        shown[at : at + len(data)] = data
        at += len(data)
    assert shown.hex() == ROWS.hex()
    offsets = [at for at, _ in hex_rows(BLOCKS["payload/unroll"]) if at is not None]
    assert offsets == list(schema("small").offsets.values())


def test_the_compressed_payload_on_the_page_is_read() -> None:
    row = np.zeros(64, np.uint8)
    decompress_into(hex_block(BLOCKS["payload/lz4"]), row)
    assert row.tolist() == [7] * 59 + [0] * 5


def test_the_array_on_the_page_is_the_one_in_the_items_message() -> None:
    (array,) = re.findall(r"^```hex\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert hex_block(array) in frame("items")
    assert header.unpack_header(b"\x81\xa1a" + hex_block(array))["a"].tolist() == [3]


def test_the_spaces_on_the_page_can_be_described() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert Spaces.from_json(text).observation == ArraySpec("<f4", (4,))


TYPES = {
    int: "int",
    str: "text",
    bytes: "bytes",
    int | None: "int or none",
    messages.Ints: "int[n]",
    messages.Floats: "float[n]",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_lists_a_messages_fields_in_their_order_and_with_their_types(kind: str) -> None:
    (section,) = re.findall(rf"^#### {kind.title()}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    assert listed == [(name, TYPES[hint]) for name, hint in messages._TYPES[KINDS[kind]].items()]


def test_the_page_lists_every_field_of_the_grpc_messages() -> None:
    for name in RPC:
        kind = getattr(learner_pb2, name, None) or getattr(replay_pb2, name)
        tables = re.findall(rf"^\| {name} \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
        listed = {
            field
            for table in tables
            for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
            for field in re.findall(r"`(\w+)`", cell)
        }
        if tables:
            assert listed == {field.name for field in kind.DESCRIPTOR.fields}, name
        else:
            assert name in ("StatisticsRequest", "StatisticsReply")


def test_the_numbers_on_the_page_are_the_codes() -> None:
    (section,) = re.findall(r"^## Numbers\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", section, re.MULTILINE)
    assert len(listed) > 10
    for name, told in listed:
        found = [
            getattr(module, name) for module in (header, messages, payload, options, desk) if hasattr(module, name)
        ]
        assert set(found) == {float(told)}, name


def test_the_page_names_every_dtype_that_can_be_sent() -> None:
    (section,) = re.findall(r"^### Layout\n(.*?)^\*\*The schema", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`\\?([|<]\w\d)`", section)) == payload.PAYLOAD_DTYPES == header.ARRAY_DTYPES
