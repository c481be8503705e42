"""`headrace.train`: what the command does, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from headrace.arguments import Given
from headrace.config import RunConfig, config_keys, load_config, presets
from headrace.config_errors import explain
from headrace.config_layers import Layer, merge, read_layers
from headrace.errors import ConfigError, ExitCode
from headrace.run_dir import new_run_dir
from headrace.service_args import Resume, TrainOptions

_GIVEN = "the given mapping"


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run_dir: Path
    """The run's folder, which `headrace.load_policy` takes."""
    exit_code: int
    """The command's: 0 goal reached, or no goal set, or stopped by SIGTERM; 4 budget used below the goal."""
    solved: bool
    """Whether the goal was reached."""
    summary: Mapping[str, Any]
    """The final facts, as `--summary-json` has them."""


def train(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: Resume = "auto",
    init_from: str | os.PathLike[str] | None = None,
    serial: bool = False,
    summary_json: str | os.PathLike[str] | None = None,
) -> TrainResult:
    """Trains on this machine as `headrace train` does, with the same services as processes of their own.

    config: the name of a preset or the path of a YAML file, read as the command reads it, variables included; or a
        mapping as such a file has it (it may name a `preset`), or a `RunConfig`, both taken as they stand.
    The other arguments are those of the command. Progress goes to stdout. The working directory is where the services
    look for modules that the configuration names, besides what is installed and PYTHONPATH.

    Raises `ConfigError` for what cannot work, `ComponentLost` if a service is gone for good, and KeyboardInterrupt
    after an orderly stop by Ctrl-C. Outside the main thread signals are left to whoever handles them there.
    """
    resolved = config_of(config)
    options = _options(run_dir, resume, init_from)
    written = None if summary_json is None else Given(os.fspath(summary_json), "summary_json").file()
    folder = options.run_dir or new_run_dir(resolved.name)
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        summary_file = Path(scratch) / "summary.json"  # not the caller's, which may hold an earlier run's
        options = dataclasses.replace(options, run_dir=folder, summary_json=summary_file)
        code = _serial(resolved, options) if serial else _launch(resolved, options, folder)
        summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
        if written is not None and summary:
            shutil.copyfile(summary_file, written)
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return TrainResult(folder, code, bool(summary.get("solved")), summary)


def config_of(source: str | os.PathLike[str] | Mapping[str, Any] | RunConfig) -> RunConfig:
    """The configuration that `train` was given. Raises `ConfigError`."""
    if isinstance(source, RunConfig):
        return source
    if not isinstance(source, Mapping):
        return load_config(source if isinstance(source, str) else Path(source))
    keys = config_keys()
    given = {str(key): value for key, value in source.items()}
    preset = given.pop("preset", None)
    if preset is not None and preset not in list(presets()):
        raise ConfigError(f"preset: {preset!r} in {_GIVEN} is no preset; expected one of {', '.join(presets())}")
    layers = [] if preset is None else read_layers(str(preset), (), {}, keys)
    if unknown := keys.unknown(given):
        raise ConfigError(f"{'.'.join(map(str, unknown))}: unknown key in {_GIVEN}; {keys.way_out(unknown)}")
    values, origins = merge([*layers, Layer(_GIVEN, given)], keys)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, values, origins, keys, _GIVEN)) from None


def _options(
    run_dir: str | os.PathLike[str] | None, resume: str, init_from: str | os.PathLike[str] | None
) -> TrainOptions:
    """Checked as the command's flags are."""
    given = Given(resume, "resume")
    given.choice(("auto", "never", "must"))
    if resume == "must" and run_dir is None:
        raise given.refuse("auto or never without run_dir; name the run's folder to resume it")
    if init_from is not None and not Path(init_from).is_dir():
        raise Given(os.fspath(init_from), "init_from").refuse(
            "a checkpoint's folder or a run's; there is no such folder"
        )
    return TrainOptions(
        run_dir=None if run_dir is None else Given(os.fspath(run_dir), "run_dir").folder(),
        resume=cast(Resume, resume),
        init_from=None if init_from is None else Path(init_from),
        insecure=False,
        summary_json=None,
    )


def _launch(config: RunConfig, options: TrainOptions, run_dir: Path) -> int:
    """As `headrace.launch.train`, but what goes wrong is raised."""
    from headrace.launch import Launcher, signals_noted

    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    launcher = Launcher(config, options, run_dir)
    noted: contextlib.AbstractContextManager[list[int]]
    noted = signals_noted() if _in_main_thread() else contextlib.nullcontext([])
    try:
        with noted as signals:
            return launcher.run(signals)
    finally:
        launcher.kill()


def _serial(config: RunConfig, options: TrainOptions) -> int:
    """As `headrace.serial.train`, but what goes wrong is raised, and the process is left as it was."""
    import torch

    from headrace.serial import train_under
    from headrace.service import Lifetime

    lifetime = Lifetime()
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]), _handlers_kept():
            if _in_main_thread():
                lifetime.watch_signals()
            return train_under(lifetime, config, options)
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """The handlers of SIGINT and SIGTERM are afterwards what they were before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if _in_main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
