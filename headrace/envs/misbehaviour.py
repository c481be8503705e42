"""What environments raise, as one line and a traceback."""

from __future__ import annotations

import traceback

from headrace.errors import MisbehavedError
from headrace.telemetry.labels import EnvFault

MAX_LINE, MAX_TRACEBACK = 400, 20_000  # characters: an exception may carry whole arrays


def one_line(error: BaseException) -> str:
    """`RuntimeError: the arm is stuck`."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} ..."


def full_traceback(error: BaseException) -> str:
    """All of it, without the last line break; of a very long one the end."""
    return "".join(traceback.format_exception(error)).rstrip()[-MAX_TRACEBACK:]


def raised(name: str, error: BaseException) -> MisbehavedError:
    """What to raise from `error` when environment `name` raised it."""
    if isinstance(error, SystemExit):
        return MisbehavedError(f"env.id: {name} asked for an exit with code {error.code}", EnvFault.EXITED)
    return MisbehavedError(f"env.id: {name} raised {one_line(error)}", EnvFault.RAISED)
