"""Every gRPC option, limit and deadline of Headrace, for both ends, in one place.

They belong together: a client that pings more often than its server allows is sent away (`too_many_pings`), and a
message limit that was raised on one end only is no limit at all.
"""

from __future__ import annotations

from typing import Final

from headrace.descriptors import most_connections

Options = tuple[tuple[str, int], ...]
"""Channel or server options as grpc takes them."""

# Names of the services on the wire, as the health service answers for them.
LEARNER_SERVICE: Final = "headrace.v1.Learner"
REPLAY_SERVICE: Final = "headrace.v1.Replay"

# Largest message, at both ends: of a reply, and of a request. What may be larger (weights) is sent in chunks.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 256 * 1024
WEIGHTS_CHUNK_BYTES: Final = 1024 * 1024
MAX_WEIGHTS_BYTES: Final = 16 * 1024**3  # what a subscriber is willing to assemble
MAX_CONCURRENT_CALLS: Final = 4096  # of one server, streams included; one more gets RESOURCE_EXHAUSTED at once
HANDSHAKE_S: Final = 5.0  # for a client that connected to speak HTTP/2

# A peer that vanished without a word is noticed after KEEPALIVE_S + KEEPALIVE_TIMEOUT_S by both ends, also by an open
# stream, which has no deadline.
KEEPALIVE_S: Final = 10.0
KEEPALIVE_TIMEOUT_S: Final = 5.0

# Between attempts of a channel to connect. An attempt that hangs is given up after the longest of them.
RECONNECT_INITIAL_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0

# Deadline of one try of each unary call.
JOIN_DEADLINE_S: Final = 5.0
DESCRIBE_DEADLINE_S: Final = 10.0  # the first one makes the learner build its model
REPORT_DEADLINE_S: Final = 2.0
EVALUATED_DEADLINE_S: Final = 2.0
OPEN_RUN_DEADLINE_S: Final = 5.0
STATISTICS_DEADLINE_S: Final = 2.0


def channel_options(keepalive_s: float = KEEPALIVE_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S) -> Options:
    """Options of every client channel."""
    return (
        *_both_ends(keepalive_s, keepalive_timeout_s),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", _ms(RECONNECT_INITIAL_S)),
        ("grpc.max_reconnect_backoff_ms", _ms(RECONNECT_MAX_S)),
        # In spite of its name, the time that one attempt to connect may take (20 s otherwise).
        ("grpc.min_reconnect_backoff_ms", _ms(RECONNECT_MAX_S)),
        # A peer restarted in a new container has a new address: look its name up again at each reconnect, not every
        # 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", _ms(RECONNECT_MAX_S)),
        # http_proxy of the environment must not capture calls between our services, least of all on loopback.
        ("grpc.enable_http_proxy", 0),
    )


def server_options(keepalive_s: float = KEEPALIVE_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S) -> Options:
    """Options of every server. The clients ping every `keepalive_s` too; twice as often is allowed."""
    return (
        *_both_ends(keepalive_s, keepalive_timeout_s),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(keepalive_s / 2)),
        # Without this, two servers share one port and each gets some of the calls.
        ("grpc.so_reuseport", 0),
    )


def _both_ends(keepalive_s: float, keepalive_timeout_s: float) -> Options:
    return (
        ("grpc.keepalive_time_ms", _ms(keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(keepalive_timeout_s)),
        ("grpc.http2.ping_timeout_ms", _ms(keepalive_timeout_s)),  # the one that counts: 60 s otherwise (measured)
        ("grpc.keepalive_permit_without_calls", 1),  # so an idle channel is known to be dead before its next call
        ("grpc.http2.max_pings_without_data", 0),  # no limit
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
