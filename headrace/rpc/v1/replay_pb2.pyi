from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Table(_message.Message):
    __slots__ = ("name", "sampler", "max_items", "max_bytes", "min_size", "samples_per_insert", "error_buffer", "priority_exponent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    ERROR_BUFFER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    sampler: str
    max_items: int
    max_bytes: int
    min_size: int
    samples_per_insert: float
    error_buffer: float
    priority_exponent: float
    def __init__(self, name: _Optional[str] = ..., sampler: _Optional[str] = ..., max_items: _Optional[int] = ..., max_bytes: _Optional[int] = ..., min_size: _Optional[int] = ..., samples_per_insert: _Optional[float] = ..., error_buffer: _Optional[float] = ..., priority_exponent: _Optional[float] = ...) -> None: ...

class OpenRunRequest(_message.Message):
    __slots__ = ("protocol", "run", "epoch", "tables", "schema", "payload_bytes", "window_items", "window_bytes", "codec")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_ITEMS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    epoch: int
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    schema: bytes
    payload_bytes: int
    window_items: int
    window_bytes: int
    codec: str
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., schema: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., window_items: _Optional[int] = ..., window_bytes: _Optional[int] = ..., codec: _Optional[str] = ...) -> None: ...

class OpenRunReply(_message.Message):
    __slots__ = ("boot", "items_port", "samples_port")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_PORT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PORT_FIELD_NUMBER: _ClassVar[int]
    boot: int
    items_port: int
    samples_port: int
    def __init__(self, boot: _Optional[int] = ..., items_port: _Optional[int] = ..., samples_port: _Optional[int] = ...) -> None: ...

class StatisticsRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class TableStatistics(_message.Message):
    __slots__ = ("name", "items", "bytes", "inserted", "sampled")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    name: str
    items: int
    bytes: int
    inserted: int
    sampled: int
    def __init__(self, name: _Optional[str] = ..., items: _Optional[int] = ..., bytes: _Optional[int] = ..., inserted: _Optional[int] = ..., sampled: _Optional[int] = ...) -> None: ...

class ReplayLedger(_message.Message):
    __slots__ = ("received", "stored", "duplicate", "rejected", "waiting", "present", "removed", "sampled")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RemovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    received: int
    stored: int
    duplicate: int
    rejected: _containers.ScalarMap[str, int]
    waiting: int
    present: int
    removed: _containers.ScalarMap[str, int]
    sampled: int
    def __init__(self, received: _Optional[int] = ..., stored: _Optional[int] = ..., duplicate: _Optional[int] = ..., rejected: _Optional[_Mapping[str, int]] = ..., waiting: _Optional[int] = ..., present: _Optional[int] = ..., removed: _Optional[_Mapping[str, int]] = ..., sampled: _Optional[int] = ...) -> None: ...

class StatisticsReply(_message.Message):
    __slots__ = ("boot", "run", "epoch", "ledger", "tables", "peers")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    boot: int
    run: str
    epoch: int
    ledger: ReplayLedger
    tables: _containers.RepeatedCompositeFieldContainer[TableStatistics]
    peers: int
    def __init__(self, boot: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., ledger: _Optional[_Union[ReplayLedger, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableStatistics, _Mapping]]] = ..., peers: _Optional[int] = ...) -> None: ...
