"""How a Headrace process ends: the exit codes, and the exceptions that lead to them."""

from __future__ import annotations

from enum import IntEnum

from headrace.telemetry.labels import EnvFault


class ExitCode(IntEnum):
    """Exit codes of every `headrace` command and service."""

    OK = 0  # goal reached, budget used where no goal is set, or stopped by SIGTERM
    CONFIG = 2  # bad configuration: fix the input, restarting does not help
    LOST = 3  # a component was lost
    BELOW_GOAL = 4  # the budget was used up below the goal
    INTERRUPTED = 130  # Ctrl-C, after a checkpoint


class HeadraceError(Exception):
    """A failure with a one-line message for the user, and the exit code it ends the process with."""

    exit_code: ExitCode = ExitCode.LOST


class ConfigError(HeadraceError):
    """Input that cannot work. The message names the input, what was expected, and the way out."""

    exit_code = ExitCode.CONFIG


class ComponentLost(HeadraceError):
    """A peer, a worker thread or a child process is gone for good."""

    exit_code = ExitCode.LOST


class MisbehavedError(ComponentLost):
    """An environment did what it must not, and nobody here can go on without it."""

    def __init__(self, message: str, reason: EnvFault) -> None:
        super().__init__(message)
        self.reason = reason
