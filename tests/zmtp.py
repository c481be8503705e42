"""A ZeroMQ peer made by hand, that can stop, lie or babble at any point (https://rfc.zeromq.org/spec/23)."""

from __future__ import annotations

import socket
import struct

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_PROPERTIES = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = bytes([4, len(_PROPERTIES)]) + _PROPERTIES
MORE = 1


def frame(data: bytes, flags: int = 0) -> bytes:
    """One frame of a message as it travels; MORE: it is not the last."""
    return bytes([flags | 2]) + struct.pack(">Q", len(data)) + data


def connect(port: int) -> socket.socket:
    """A connection to a port of this machine; nothing is said yet."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(10.0)
    return connection


def shake_hands(connection: socket.socket) -> None:
    """Says and hears what comes before the first message."""
    connection.sendall(GREETING + READY)
    heard = b""
    while len(heard) < len(GREETING) + 2 or len(heard) < len(GREETING) + 2 + heard[len(GREETING) + 1]:
        more = connection.recv(4096)
        if not more:
            raise ConnectionError("the peer ended the handshake")
        heard += more


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection; reads what it had said before."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def name_of(connection: socket.socket) -> str:
    """What the other end calls this one."""
    host, port = connection.getsockname()
    return f"{host}:{port}"
