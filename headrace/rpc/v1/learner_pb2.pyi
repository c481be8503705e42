from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "actor", "lease", "evaluator")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    actor: bytes
    lease: int
    evaluator: bool
    def __init__(self, protocol: _Optional[int] = ..., actor: _Optional[bytes] = ..., lease: _Optional[int] = ..., evaluator: bool = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("protocol", "run", "epoch", "lease", "incarnation", "seed", "config_json")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    epoch: int
    lease: int
    incarnation: int
    seed: int
    config_json: str
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., lease: _Optional[int] = ..., incarnation: _Optional[int] = ..., seed: _Optional[int] = ..., config_json: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("actor", "run", "spaces_json")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SPACES_JSON_FIELD_NUMBER: _ClassVar[int]
    actor: bytes
    run: str
    spaces_json: str
    def __init__(self, actor: _Optional[bytes] = ..., run: _Optional[str] = ..., spaces_json: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("spaces_json", "schema", "replay_items", "schema_json")
    SPACES_JSON_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    spaces_json: str
    schema: bytes
    replay_items: _containers.RepeatedScalarFieldContainer[str]
    schema_json: str
    def __init__(self, spaces_json: _Optional[str] = ..., schema: _Optional[bytes] = ..., replay_items: _Optional[_Iterable[str]] = ..., schema_json: _Optional[str] = ...) -> None: ...

class WeightsRequest(_message.Message):
    __slots__ = ("actor", "run", "epoch", "version", "pin")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    actor: bytes
    run: str
    epoch: int
    version: int
    pin: bool
    def __init__(self, actor: _Optional[bytes] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., pin: bool = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("epoch", "version", "total_bytes", "crc32", "offset", "data", "published_at", "return_scale")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    RETURN_SCALE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    total_bytes: int
    crc32: int
    offset: int
    data: bytes
    published_at: float
    return_scale: float
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., total_bytes: _Optional[int] = ..., crc32: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., published_at: _Optional[float] = ..., return_scale: _Optional[float] = ...) -> None: ...

class ActorLedger(_message.Message):
    __slots__ = ("made", "acknowledged", "held", "dropped")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MADE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    made: int
    acknowledged: int
    held: int
    dropped: _containers.ScalarMap[str, int]
    def __init__(self, made: _Optional[int] = ..., acknowledged: _Optional[int] = ..., held: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Moments(_message.Message):
    __slots__ = ("count", "mean", "m2")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    M2_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: bytes
    m2: bytes
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[bytes] = ..., m2: _Optional[bytes] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("actor", "run", "lease", "sequence", "ledger", "env_steps", "returns", "leaving", "env_failures", "unrolls_abandoned", "observations", "discounted_returns")
    class EnvFailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UnrollsAbandonedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ENV_FAILURES_FIELD_NUMBER: _ClassVar[int]
    UNROLLS_ABANDONED_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    DISCOUNTED_RETURNS_FIELD_NUMBER: _ClassVar[int]
    actor: bytes
    run: str
    lease: int
    sequence: int
    ledger: ActorLedger
    env_steps: int
    returns: _containers.RepeatedScalarFieldContainer[float]
    leaving: bool
    env_failures: _containers.ScalarMap[str, int]
    unrolls_abandoned: _containers.ScalarMap[str, int]
    observations: Moments
    discounted_returns: Moments
    def __init__(self, actor: _Optional[bytes] = ..., run: _Optional[str] = ..., lease: _Optional[int] = ..., sequence: _Optional[int] = ..., ledger: _Optional[_Union[ActorLedger, _Mapping]] = ..., env_steps: _Optional[int] = ..., returns: _Optional[_Iterable[float]] = ..., leaving: bool = ..., env_failures: _Optional[_Mapping[str, int]] = ..., unrolls_abandoned: _Optional[_Mapping[str, int]] = ..., observations: _Optional[_Union[Moments, _Mapping]] = ..., discounted_returns: _Optional[_Union[Moments, _Mapping]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class EvaluatedRequest(_message.Message):
    __slots__ = ("actor", "run", "epoch", "version", "returns", "lengths")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    actor: bytes
    run: str
    epoch: int
    version: int
    returns: _containers.RepeatedScalarFieldContainer[float]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actor: _Optional[bytes] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., returns: _Optional[_Iterable[float]] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class EvaluatedReply(_message.Message):
    __slots__ = ("booked",)
    BOOKED_FIELD_NUMBER: _ClassVar[int]
    booked: bool
    def __init__(self, booked: bool = ...) -> None: ...
