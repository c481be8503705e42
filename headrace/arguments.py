"""Command-line arguments: every flag has an environment variable, and every mistake is one line.

A parser declares its flags, collects their text from the command line, the environment or the default, and converts
each with a function of this module, so that an error names the flag or the variable that the text came from.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.config_keys import nearest
from headrace.config_layers import SHORTHANDS
from headrace.errors import ConfigError, HeadraceError

TOP_LEVEL_KEYS = ("name", "seed", "imports")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Address:
    """Where a service listens or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def from_this_machine(self) -> Address:
        """Where a process of this machine reaches what listens here: all interfaces are on loopback, too."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)


@dataclass(frozen=True)
class Given:
    """The text of one argument, and where it came from: `--bind`, `HEADRACE_BIND` or `the default of --bind`."""

    text: str
    origin: str

    def refuse(self, expected: str) -> ConfigError:
        return ConfigError(f"{self.origin}: got {self.text!r}; expected {expected}")

    def address(self, *, lowest_port: int = 0) -> Address:
        """`host:port` or `[ipv6]:port`."""
        host, colon, port_text = self.text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise self.refuse("host:port, an IPv6 host in brackets, such as [::1]:6100")
        if not colon or not host or any(char.isspace() or char == "/" for char in host):
            raise self.refuse("host:port, such as 127.0.0.1:6100")
        return Address(host, self._port(port_text, lowest_port))

    def port(self) -> int:
        return self._port(self.text, 0)

    def _port(self, digits: str, lowest: int) -> int:
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else -1
        if not lowest <= number <= 65535:
            raise self.refuse(f"a port from {lowest} to 65535")
        return number

    def choice(self, options: Sequence[str]) -> str:
        if self.text not in options:
            meant = nearest(self.text, options)
            hint = f'; did you mean "{meant}"?' if meant else ""
            raise self.refuse(f"one of {', '.join(options)}{hint}")
        return self.text

    def whole(self, lowest: int, highest: int) -> int:
        return self._whole(self.text, lowest, highest, "a whole number")

    def wholes(self, lowest: int, highest: int) -> tuple[int, ...]:
        """Numbers with commas between them."""
        parts = self.text.split(",")
        return tuple(self._whole(part, lowest, highest, "whole numbers with commas between them,") for part in parts)

    def _whole(self, digits: str, lowest: int, highest: int, what: str) -> int:
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else -1
        if not lowest <= number <= highest:
            raise self.refuse(f"{what} from {lowest} to {highest}")
        return number

    def positive(self) -> float:
        try:
            number = float(self.text)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise self.refuse("a number of seconds > 0")
        return number

    def folder(self) -> Path:
        """A folder that exists or may be made."""
        path = Path(self.text)
        blocking = next((part for part in (path, *path.parents) if part.exists()), None)
        if blocking is not None and not blocking.is_dir():
            what = "it is a file" if blocking == path else f"{str(blocking)!r} is a file"
            raise self.refuse(f"a folder, but {what}; name another path")
        return path

    def file(self) -> Path:
        """A file that can be written."""
        path = Path(self.text)
        if path.is_dir():
            raise self.refuse("a file to write, but it is a folder; name a file in it")
        if not path.parent.is_dir():
            raise self.refuse(f"a file to write, but the folder {str(path.parent)!r} is missing; make it first")
        return path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


class Arguments:
    """The arguments of one command."""

    def __init__(self, prog: str, description: str, environ: Mapping[str, str] = os.environ, epilog: str = "") -> None:
        self._parser = _Parser(
            prog=prog,
            description=description,
            epilog=epilog or None,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._environ = environ
        self._defaults: dict[str, str | None] = {}
        self._switches: set[str] = set()
        self._implied: dict[str, str] = {}
        self._origins: dict[str, str] = {}
        self._found: argparse.Namespace = argparse.Namespace()

    def positional(self, name: str, help_text: str, *, metavar: str) -> None:
        """An argument without a flag, such as the preset."""
        text = f"{help_text} [{_variable(name)}]"
        self._parser.add_argument(name, nargs="?", metavar=metavar, help=text.replace("%", "%%"))
        self._declare(name, metavar, None)

    def option(
        self, name: str, help_text: str, *, metavar: str, default: str | None = None, implied: str | None = None
    ) -> None:
        """A flag with a value: `run-dir` is `--run-dir` and `HEADRACE_RUN_DIR`.

        implied: its value where it is given without one; then only a whole number after it is taken for its value.
        """
        told = [f"default {default}"] if default is not None else []
        told += [f"{implied} without {metavar}"] if implied is not None else []
        text = help_text + (f" ({', '.join(told)})" if told else "") + f" [{_variable(name)}]"
        nargs = None if implied is None else "?"
        self._parser.add_argument(f"--{name}", metavar=metavar, nargs=nargs, help=text.replace("%", "%%"))
        if implied is not None:
            self._implied[f"--{name}"] = implied
        self._declare(name, f"--{name}", default)

    def switch(self, name: str, help_text: str, *, hidden: bool = False) -> None:
        """A flag without a value; its variable takes 1 or 0. A hidden one has neither help nor variable."""
        text = argparse.SUPPRESS if hidden else f"{help_text} [{_variable(name)}=1]".replace("%", "%%")
        self._parser.add_argument(f"--{name}", action="store_true", help=text)
        if not hidden:
            self._switches.add(name)
        self._declare(name, f"--{name}", None)

    def parse(self, argv: Sequence[str], known: Iterable[str] = ()) -> None:
        """Read `argv`; `known` are the configuration's keys, for the hint when a flag is misspelt."""
        words = list(argv)
        for index, word in enumerate(words):
            if word in self._implied and not "".join(words[index + 1 : index + 2]).isdecimal():
                words[index] = f"{word}={self._implied[word]}"  # what follows is a positional, not its value
        self._found, rest = self._parser.parse_known_args(words)
        if rest:
            first = rest[0].partition("=")[0]
            declared = [origin for origin in self._origins.values() if origin.startswith("--")]
            flags = [*declared, *(f"--{key}" for key in known)]
            meant = nearest(first, flags) if first.startswith("-") else None
            hint = f"did you mean {meant}?" if meant else f"see {self._parser.prog} --help"
            raise ConfigError(f"unknown argument {first!r}; {hint}")

    def get(self, name: str) -> Given | None:
        """The argument's text: from the command line, else from its variable, else the default, else None."""
        text = getattr(self._found, name.replace("-", "_"))
        if isinstance(text, str):
            return Given(text, self._origins[name])
        if from_environment := self._environ.get(_variable(name)):  # an empty variable counts as not set
            return Given(from_environment, _variable(name))
        default = self._defaults[name]
        return None if default is None else Given(default, f"the default of {self._origins[name]}")

    def need(self, name: str) -> Given:
        """As `get`, for an argument that has a default or must be given."""
        given = self.get(name)
        if given is None:
            origin = self._origins[name]
            raise ConfigError(f"{origin} is missing (or {_variable(name)}); see {self._parser.prog} --help")
        return given

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        if getattr(self._found, name.replace("-", "_")):
            return True
        text = self._environ.get(_variable(name), "").lower() if name in self._switches else ""
        if text and text not in (*_TRUE, *_FALSE):
            raise ConfigError(f"{_variable(name)}: got {text!r}; expected 1 or 0")
        return text in _TRUE

    def _declare(self, name: str, origin: str, default: str | None) -> None:
        self._defaults[name] = default
        self._origins[name] = origin


def _variable(name: str) -> str:
    return "HEADRACE_" + name.replace("-", "_").upper()


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Take the configuration's flags out of a command line: the other arguments, and pairs of dotted key and text.

    `--learner.lr 0.1` and `--learner.lr=0.1`, top-level keys (`--seed 3`) and shorthands (`--actors 2`). A value may be
    a negative number; one that starts with `--` needs the form with `=`.
    """
    others: list[str] = []
    overrides: list[tuple[str, str]] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        key, equals, text = token.removeprefix("--").partition("=")
        if not token.startswith("--") or not ("." in key or key in TOP_LEVEL_KEYS or key in SHORTHANDS):
            others.append(token)
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{key} needs a value: --{key} VALUE or --{key}=VALUE")
            text = rest.pop(0)
        overrides.append((key, text))
    return others, overrides


def report_error(error: HeadraceError, prog: str = "headrace") -> int:
    """Tell the user in one line on stderr; returns the exit code."""
    sys.stderr.write(f"{prog}: error: {' '.join(str(error).split())}\n")
    return int(error.exit_code)
