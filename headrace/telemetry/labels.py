"""The label values of every metric. All are known in advance, so that a series exists from the start and with 0.

The reasons are also the keys of the ledgers (DropReason: actor; RejectReason, RemoveReason: replay; DiscardReason:
learner), hence each item that leaves a service has exactly one of them.
"""

from __future__ import annotations

from enum import StrEnum


class Peer(StrEnum):
    """The service at the other end of a connection."""

    ACTOR = "actor"
    REPLAY = "replay"
    LEARNER = "learner"


class DropReason(StrEnum):
    """Why an actor gave an unroll up."""

    IN_DOUBT = "in_doubt"  # its shard stayed away for longer than replay.shard_patience_s
    STOPPED = "stopped"  # not acknowledged when the actor had to leave


class RejectReason(StrEnum):
    """Why replay did not take an item that it received."""

    MALFORMED = "malformed"  # the message could not be decoded
    SCHEMA = "schema"  # made for another payload schema
    RUN = "run"  # of another run
    SIZE = "size"  # the payload has the wrong length
    UNKNOWN_PEER = "unknown_peer"  # sent without a Hello
    OVERFLOW = "overflow"  # beyond the credit window
    GOODBYE = "goodbye"  # still waiting when its actor left, or gave it up
    GAP = "gap"  # not the next in sequence
    PRIORITY = "priority"  # its first priority is negative or not finite
    BUDGET = "budget"  # so large that its table could not hold enough of them to be drawn from


class ConnectionFault(StrEnum):
    """Why a connection to one of replay's ZeroMQ ports came to nothing."""

    HANDSHAKE = "handshake"  # it ended before a message had come over it
    SILENT = "silent"  # no message came over it in time
    ENDLESS = "endless"  # more came over it than a message has, and no end
    CROWD = "crowd"  # one too many


class RemoveReason(StrEnum):
    """Why an item left its table."""

    SAMPLED = "sampled"  # drawn as often as the table allows
    EVICTED = "evicted"  # the oldest, where newer ones needed its room


class RefusalReason(StrEnum):
    """Why replay refused a request of the learner."""

    EPOCH = "epoch"  # of an earlier start of the learner
    RUN = "run"  # of another run
    MALFORMED = "malformed"  # could not be decoded
    OVERFLOW = "overflow"  # too many outstanding, or too large
    TABLE = "table"  # no such table
    PRIORITY = "priority"  # a priority that is negative or not finite
    BUDGET = "budget"  # for more items than the table's limits ever allow


class MissReason(StrEnum):
    """Why replay did not apply a new priority."""

    DEPARTED = "departed"  # the item has left
    BOOT = "boot"  # the item was drawn before replay was restarted
    STALE = "stale"  # a later update came first


class WorkerState(StrEnum):
    """What replay's worker thread spends its time on."""

    INSERTING = "inserting"
    SAMPLING = "sampling"
    WAITING_FOR_INSERTS = "waiting_for_inserts"  # the learner waits: too little was inserted for what it asks
    WAITING_FOR_SAMPLES = "waiting_for_samples"  # actors wait: too little was sampled for what they sent
    IDLE = "idle"


class StepPhase(StrEnum):
    """The parts of one learner step."""

    COPY = "copy"  # payloads into the batch buffer and onto the device
    COMPUTE = "compute"  # forward, loss and backward
    OPTIMIZER = "optimizer"
    PUBLISH = "publish"  # encoding and handing over new weights


class LossComponent(StrEnum):
    """The terms of the loss, each already multiplied by its cost, and their sum."""

    POLICY = "policy"
    BASELINE = "baseline"
    ENTROPY = "entropy"
    TD = "td"
    TOTAL = "total"


class DiscardReason(StrEnum):
    """Why the learner did not train on an item that it had drawn."""

    STOPPED = "stopped"  # not yet trained when the learner stopped
    NONFINITE = "nonfinite"  # its batch's loss or gradient was not finite
    MALFORMED = "malformed"  # the batch could not be decoded, or the item breaks the sequence contract


class LearnerMethod(StrEnum):
    """The timed gRPC methods of the learner. Weights is not among them: its stream lives as long as its actor."""

    JOIN = "Join"
    DESCRIBE = "Describe"
    REPORT = "Report"
    EVALUATED = "Evaluated"


class ReplayMethod(StrEnum):
    """The timed gRPC methods of replay."""

    OPEN_RUN = "OpenRun"
    STATISTICS = "Statistics"


class RpcCode(StrEnum):
    """The gRPC status codes, by the names of `grpc.StatusCode`."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"


# Status codes by which a server says no for good: asking again does not help.
REFUSALS = frozenset({RpcCode.INVALID_ARGUMENT, RpcCode.FAILED_PRECONDITION})
