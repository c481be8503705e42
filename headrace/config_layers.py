"""Where a configuration comes from: presets, YAML files, environment variables and flags, merged in that order."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from headrace.config_keys import ConfigKeys, nearest
from headrace.errors import ConfigError

ENVIRONMENT_PREFIX = "HEADRACE_CONFIG__"
SHORTHANDS = {"actors": "actor.count", "seed": "seed"}
"""Keys that also have a short flag (`--actors`) and a short environment variable (`HEADRACE_ACTORS`)."""

_FLOAT = re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$")  # YAML 1.1 would take 1e-3 for text


class _Loader(yaml.SafeLoader):
    """The safe loader; refuses a key that is given twice, and reads 1e-3 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(name or id(key))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as the same value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _yaml_class in (_Loader, _Dumper):
    _yaml_class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def parse_yaml(text: str) -> Any:
    """The plain value that YAML text means; raises ValueError with a one-line message."""
    try:
        value = yaml.load(text, Loader=_Loader)
        _walk(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(where + " ".join((error.problem or "syntax error").split())) from None
    except RecursionError:
        raise ValueError("a value contains itself, or lies too deep") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _walk(value: Any) -> None:
    """RecursionError for a value that contains itself by a YAML alias."""
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _walk(below)


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=2**31, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


@dataclass(frozen=True)
class Layer:
    """Values from one place."""

    origin: str
    """`preset cartpole`, a file's path, `HEADRACE_CONFIG__SEED` or `--learner.lr`."""
    values: Mapping[str, Any]
    single: bool = False
    """Whether it is one key, from a variable or flag, which is said of whatever the files come to."""


@dataclass
class Origins:
    """Where each value came from."""

    places: dict[tuple[str, ...], str] = field(default_factory=dict)

    def of(self, path: tuple[str, ...]) -> str:
        """The origin of the value at `path`, of the mapping that it is in, or of a value in it; else `default`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return next((place for key, place in self.places.items() if key[: len(path)] == path), "default")

    def replace(self, path: tuple[str, ...], origin: str) -> None:
        for key in [key for key in self.places if key[: len(path)] == path]:
            del self.places[key]
        self.places[path] = origin


def merge(layers: Sequence[Layer], keys: ConfigKeys) -> tuple[dict[str, Any], Origins]:
    """Later layers win. Mappings merge key by key; lists, like all other values, are replaced."""
    values: dict[str, Any] = {}
    origins = Origins()

    def put(target: dict[str, Any], given: Mapping[Any, Any], origin: str, above: tuple[str, ...]) -> None:
        for key, value in given.items():
            path = (*above, str(key))
            if value is None and keys.is_section(path):
                continue  # `learner:` with nothing below it
            if isinstance(value, Mapping) and (value or isinstance(target.get(str(key)), dict)):
                if not isinstance(target.get(str(key)), dict):
                    target[str(key)] = {}
                    origins.replace(path, origin)
                    del origins.places[path]
                put(target[str(key)], value, origin, path)
            else:
                target[str(key)] = copy.deepcopy(value)
                origins.replace(path, origin)

    for layer in layers:
        put(values, layer.values, layer.origin, ())
    return values, origins


def of_one_algorithm(layers: Sequence[Layer]) -> list[Layer]:
    """The layers without what those below the last change of agent.name say of another algorithm.

    So a file that starts from a preset, or a flag, can name another algorithm and has its defaults.
    """

    def agent(layer: Layer) -> Mapping[str, Any]:
        given = layer.values.get("agent")
        return given if isinstance(given, Mapping) else {}

    names: list[Any] = []
    for layer in layers:
        names.append(agent(layer).get("name", names[-1] if names else "vtrace"))
    kept = []
    for layer, name in zip(layers, names, strict=True):
        if agent(layer) and not layer.single and name != names[-1]:
            layer = Layer(layer.origin, {key: value for key, value in layer.values.items() if key != "agent"})
        kept.append(layer)
    return kept


def read_layers(
    source: str | Path, flags: Sequence[tuple[str, str]], environ: Mapping[str, str], keys: ConfigKeys
) -> list[Layer]:
    """All layers of a configuration, the weakest first; unknown keys are refused here."""
    layers = list(_source_layers(source))
    for layer in layers:
        if unknown := keys.unknown(layer.values):
            raise ConfigError(f"{'.'.join(map(str, unknown))}: unknown key in {layer.origin}; {keys.way_out(unknown)}")
    return [*layers, *_environment_layers(environ, keys), *_flag_layers(flags, keys)]


def presets() -> dict[str, str]:
    """The presets that come with Headrace: name and one-line description, the file's first comment line."""
    found = {}
    for entry in sorted(resources.files("headrace.presets").iterdir(), key=lambda e: e.name.removesuffix(".yaml")):
        if entry.name.endswith(".yaml"):
            first = entry.read_text(encoding="utf-8").partition("\n")[0]
            found[entry.name.removesuffix(".yaml")] = first.lstrip("# ").rstrip()
    return found


def _source_layers(source: str | Path) -> Iterator[Layer]:
    known = presets()
    if isinstance(source, str) and source in known:
        yield Layer(f"preset {source}", {"name": source})
        yield _preset_layer(source)
        return
    path = Path(source)
    if not path.exists() and path.suffix not in {".yaml", ".yml"} and len(path.parts) <= 1:
        meant = nearest(str(source), known)
        hint = f'did you mean "{meant}"? ' if meant else ""
        raise ConfigError(f"{str(source)!r} is neither a preset nor a file; {hint}`headrace presets` lists the presets")
    values = _read_file(path)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")
    yield Layer(str(path), {"name": name} if name else {})
    preset = values.pop("preset", None)
    if preset is not None:
        if not isinstance(preset, str) or preset not in known:
            meant = nearest(str(preset), known)
            hint = f'did you mean "{meant}"?' if meant else f"expected one of {', '.join(known)}"
            raise ConfigError(f"preset: {preset!r} in {path} is no preset; {hint}")
        yield _preset_layer(preset)
    yield Layer(str(path), values)


def _preset_layer(name: str) -> Layer:
    text = resources.files("headrace.presets").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return Layer(f"preset {name}", parse_yaml(text))


def _read_file(path: Path) -> dict[Any, Any]:
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; expected a YAML file, such as {str(path / 'config.yaml')!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}; expected a YAML file") from None
    except ValueError:
        raise ConfigError(f"{str(path)!r} is not UTF-8 text; expected a YAML file") from None
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        what = "empty" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{str(path)!r} is {what}; expected a mapping of settings, such as env: {{id: CartPole-v1}}")
    return values


def _environment_layers(environ: Mapping[str, str], keys: ConfigKeys) -> Iterator[Layer]:
    """One layer per variable that is not empty; an empty one counts as not set."""
    for variable in sorted(environ):
        short = variable.removeprefix("HEADRACE_").lower()
        if variable.startswith(ENVIRONMENT_PREFIX):
            path = tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        elif short in SHORTHANDS and variable == f"HEADRACE_{short.upper()}":
            path = tuple(SHORTHANDS[short].split("."))
            twin = environment_variable(path)
            if environ.get(twin) and environ[variable] not in ("", environ[twin]):
                raise ConfigError(f"{variable} and {twin} differ and set the same key; unset one of them")
        else:
            continue
        if not all(path):
            raise ConfigError(f"{variable}: names no key; expected such as {ENVIRONMENT_PREFIX}LEARNER__LR")
        if not keys.exists(path):
            meant = keys.suggestion(path)
            hint = f"did you mean {environment_variable(tuple(meant.split('.')))}?" if meant else keys.way_out(path)
            raise ConfigError(f"{'.'.join(path)}: unknown key from {variable}; {hint}")
        if environ[variable] != "":
            yield _text_layer(variable, path, environ[variable], keys)


def _flag_layers(flags: Sequence[tuple[str, str]], keys: ConfigKeys) -> Iterator[Layer]:
    for key, text in flags:
        path = tuple(SHORTHANDS.get(key, key).split("."))
        if not keys.exists(path):
            meant = keys.suggestion(path)
            hint = f"did you mean --{meant}?" if meant else keys.way_out(path)
            raise ConfigError(f"{key}: unknown key from --{key}; {hint}")
        yield _text_layer(f"--{key}", path, text, keys)


def _text_layer(origin: str, path: tuple[str, ...], text: str, keys: ConfigKeys) -> Layer:
    try:
        value = parse_yaml(text)
    except ValueError as error:
        message = f"{'.'.join(path)}: got {text!r} from {origin}, which is not valid YAML ({error}); "
        raise ConfigError(message + f"expected {keys.expected(path)}") from None
    nested: Any = value
    for part in reversed(path):
        nested = {part: nested}
    if unknown := keys.unknown(nested):
        raise ConfigError(f"{'.'.join(map(str, unknown))}: unknown key from {origin}; {keys.way_out(unknown)}")
    return Layer(origin, nested, single=True)


def environment_variable(path: Sequence[str]) -> str:
    """`HEADRACE_CONFIG__LEARNER__LR` for `("learner", "lr")`."""
    return ENVIRONMENT_PREFIX + "__".join(path).upper()
