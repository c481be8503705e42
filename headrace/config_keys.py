"""The keys a configuration may have, read from its JSON schema: what exists, what is expected, what is nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

KeyPath = tuple[str | int, ...]


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `word`, or None if none is alike."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)), None)


def dotted(path: Sequence[str | int]) -> str:
    """`("env", "wrappers", 0, "class")` as `env.wrappers[0].class`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class ConfigKeys:
    """The tree of keys in a JSON schema as pydantic writes it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self.names: tuple[str, ...] = tuple(dict.fromkeys(dotted(path) for path in self._leaves((), schema)))
        """All dotted keys: `learner.lr`, and `learner.lr.start` where a key may also be a mapping."""

    def exists(self, path: KeyPath) -> bool:
        return self._node(path) is not None

    def is_section(self, path: KeyPath) -> bool:
        """Whether the key is a group of keys, such as `learner`."""
        node = self._node(path)
        return node is not None and all("properties" in option for option in self._options(node))

    def is_free(self, path: KeyPath) -> bool:
        """Whether the key is a mapping that takes any key, such as `env.kwargs`."""
        node = self._node(path)
        return node is not None and (not node or bool(node.get("additionalProperties")))  # {} allows anything

    def children(self, path: KeyPath) -> list[str]:
        """The keys below `path`."""
        node = self._node(path)
        if node is None:
            return []
        return list(dict.fromkeys(key for option in self._options(node) for key in option.get("properties", ())))

    def unknown(self, values: Mapping[Any, Any], above: KeyPath = ()) -> KeyPath | None:
        """The path of the first key in `values` that does not exist."""
        for key, value in values.items():
            path = (*above, str(key))
            if not self.exists(path):
                return path
            if isinstance(value, Mapping) and not self.is_free(path) and (found := self.unknown(value, path)):
                return found
        return None

    def suggestion(self, path: KeyPath) -> str | None:
        """The existing key that was most likely meant by `path`."""
        word, parent = str(path[-1]), path[:-1]
        if self.exists(parent) and (sibling := nearest(word, self.children(parent))):
            return dotted((*parent, sibling))
        if not self.exists(path[:1]) and (section := nearest(str(path[0]), self.children(()))):
            corrected = (section, *path[1:])
            return dotted(corrected) if self.exists(corrected) else self.suggestion(corrected)
        same = nearest(word, {name.rpartition(".")[2] for name in self.names})
        matches = [name for name in self.names if name.rpartition(".")[2] == same]
        return matches[0] if len(matches) == 1 else None

    def way_out(self, path: KeyPath) -> str:
        """What to say of a key that does not exist: the one that was meant, or those there are."""
        if meant := self.suggestion(path):
            return f"did you mean {meant}?"
        parent = path[:-1] if self.exists(path[:-1]) else ()
        return f"expected one of {', '.join(self.children(parent))}"

    def expected(self, path: KeyPath) -> str:
        """What the key takes, in words: `a whole number >= 1`."""
        node = self._node(path)
        return "a known key" if node is None else self._words(node)

    def _words(self, node: Mapping[str, Any]) -> str:
        node = self._resolve(node)
        if alternatives := _alternatives(node):
            if len(alternatives) > 1 and all("properties" in option for option in self._options(node)):
                return "a mapping"
            return ", or ".join(dict.fromkeys(self._words(option) for option in alternatives))
        if "enum" in node:
            return "one of " + ", ".join(str(value) for value in node["enum"])
        if "const" in node:
            return str(node["const"])
        match node.get("type"):
            case "integer":
                return "a whole number" + _bounds(node)
            case "number":
                return "a number" + _bounds(node)
            case "boolean":
                return "true or false"
            case "null":
                return "null"
            case "string":
                return f"text such as {node['examples'][0]}" if "examples" in node else "text"
            case "array" if "prefixItems" in node:
                items = [self._words(item) for item in node["prefixItems"]]
                return f"a list of {len(items)}: {', '.join(items)}"
            case "array":
                return f"a list [...], each {self._words(node['items'])}"
            case "object" if "properties" in node:
                return "a mapping of " + ", ".join(node["properties"])
        return "a mapping of plain values" if node else "text, a finite number, true, false, null, a list or a mapping"

    def _node(self, path: KeyPath) -> Mapping[str, Any] | None:
        node: Mapping[str, Any] | None = self._resolve(self._schema)
        for part in path:
            if node is None:
                return None
            below = [found for option in self._options(node) if (found := self._below(option, part)) is not None]
            node = None if not below else below[0] if len(below) == 1 else {"anyOf": below}
        return node

    def _below(self, node: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
        if isinstance(part, int):
            items = node.get("prefixItems")
            found = items[part] if items and part < len(items) else node.get("items")
        else:
            free = not node or node.get("additionalProperties")  # {} allows anything
            found = node.get("properties", {}).get(part, {} if free else None)
        return None if found is None else self._resolve(found)

    def _options(self, node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The alternatives a value may follow: the node itself, or those of its `anyOf` or `oneOf`."""
        alternatives = _alternatives(node)
        if not alternatives:
            return [node]
        return [deep for option in alternatives for deep in self._options(self._resolve(option))]

    def _resolve(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in node:
            node = self._schema["$defs"][node["$ref"].rpartition("/")[2]]
        return node

    def _leaves(self, path: KeyPath, node: Mapping[str, Any]) -> Iterator[KeyPath]:
        node = self._resolve(node)
        if path and not all("properties" in option for option in self._options(node)):
            yield path
        for option in self._options(node):
            for key, below in option.get("properties", {}).items():
                yield from self._leaves((*path, key), below)


def _alternatives(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = node.get("anyOf", node.get("oneOf", ()))
    return found


def _bounds(node: Mapping[str, Any]) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {node[key]}" for key, sign in signs.items() if key in node]
    return f" {' and '.join(bounds)}" if bounds else ""
