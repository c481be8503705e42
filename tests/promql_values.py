"""Evaluates PromQL over samples in memory as Prometheus does, as far as the recorded signals of autoscaling use it."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

import promql_parser as promql

LOOKBACK_S = 300.0
"""For how long a series without a newer sample has its last value."""

STALE = None
"""The sample of a series that has ended."""

T = TypeVar("T")
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "avg": lambda values: sum(values) / len(values),
    "count": len,
    "group": lambda values: 1.0,
    "max": max,
    "min": min,
    "sum": sum,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


class Samples:
    """Time series: for each name and set of labels, times in seconds and values. Times only ever grow."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, tuple[list[float], list[float | None]]]] = {}

    def add(self, at: float, name: str, labels: Mapping[str, str] | Labels, value: float | None) -> None:
        """Appends a sample; STALE ends the series until it has another one."""
        key = labels if isinstance(labels, frozenset) else frozenset(labels.items())
        times, values = self._series.setdefault(name, {}).setdefault(key, ([], []))
        times.append(at)
        values.append(value)

    def record(self, at: float, name: str, vector: Vector) -> None:
        """Appends what a recording rule found, and ends the series that it did not find any more."""
        for gone in set(self._series.get(name, {})) - set(vector):
            self.add(at, name, gone, STALE)
        for labels, value in vector.items():
            self.add(at, name, labels, value)

    def at(self, name: str, time: float) -> Vector:
        """Each series' newest value."""
        found = {}
        for labels, (times, values) in self._series.get(name, {}).items():
            newest = bisect_right(times, time) - 1
            if newest >= 0 and times[newest] > time - LOOKBACK_S and (value := values[newest]) is not None:
                found[labels] = value
        return found

    def within(self, name: str, start: float, end: float) -> dict[Labels, list[tuple[float, float]]]:
        """Each series' times and values from `start` to `end`."""
        found = {}
        for labels, (times, values) in self._series.get(name, {}).items():
            span = range(bisect_left(times, start), bisect_right(times, end))
            points = [(times[i], value) for i in span if (value := values[i]) is not None]
            if points:
                found[labels] = points
        return found


def evaluate(expression: str, samples: Samples, time: float) -> Vector:
    """The vector that an expression has at `time`. NotImplementedError names what is not known here."""
    value = _Evaluation(samples, time).value(_parse(expression))
    assert isinstance(value, dict)
    return value


_parse = functools.cache(promql.parse)


def increase_per_second(points: list[tuple[float, float]], start: float, end: float) -> float | None:
    """Prometheus' rate: extrapolated to the ends of the range if the first and last sample are near them."""
    if len(points) < 2:
        return None
    (first_at, first), (last_at, last) = points[0], points[-1]
    grown = last - first
    for (_, before), (_, after) in pairwise(points):
        grown += before if after < before else 0.0  # the counter began anew
    sampled, mean = last_at - first_at, (last_at - first_at) / (len(points) - 1)
    before, after = first_at - start, end - last_at
    if grown > 0:
        before = min(before, sampled * first / grown)  # it was not below 0
    extended = sampled + sum(gap if gap < 1.1 * mean else mean / 2 for gap in (before, after))
    return grown * extended / sampled / (end - start)


class _Evaluation:
    def __init__(self, samples: Samples, time: float) -> None:
        self._samples, self._time = samples, time

    def value(self, node: promql.Expr) -> Vector | float:
        match node:
            case promql.NumberLiteral():
                return float(node.val)
            case promql.ParenExpr():
                return self.value(node.expr)
            case promql.VectorSelector():
                return _matching(node, self._samples.at(str(node.name), self._time))
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.Call():
                return self._call(node)
            case promql.BinaryExpr():
                return self._combine(node)
        raise NotImplementedError(node.prettify())

    def vector(self, node: promql.Expr) -> Vector:
        value = self.value(node)
        assert isinstance(value, dict), node.prettify()
        return value

    def _aggregate(self, node: promql.AggregateExpr) -> Vector:
        by = () if node.modifier is None else node.modifier.labels
        groups: dict[Labels, list[float]] = {}
        for labels, value in self.vector(node.expr).items():
            groups.setdefault(_only(labels, by), []).append(value)
        return {labels: _AGGREGATES[str(node.op)](values) for labels, values in groups.items()}

    def _call(self, call: promql.Call) -> Vector:
        name, (over, *rest) = call.func.name, call.args
        if name == "avg_over_time":
            return self._average(over)
        if name in ("rate", "last_over_time"):
            start = self._time - over.range.total_seconds()
            series = _matching(over.vector_selector, self._samples.within(over.vector_selector.name, start, self._time))
            if name == "last_over_time":
                return {labels: points[-1][1] for labels, points in series.items()}
            rates = {labels: increase_per_second(points, start, self._time) for labels, points in series.items()}
            return {labels: value for labels, value in rates.items() if value is not None}
        low, high = -math.inf, math.inf
        if name == "clamp":
            low, high = (float(limit.val) for limit in rest)
        elif name == "clamp_min":
            low = float(rest[0].val)
        elif name == "clamp_max":
            high = float(rest[0].val)
        else:
            raise NotImplementedError(call.prettify())
        return {labels: max(low, min(high, value)) for labels, value in self.vector(over).items()}

    def _average(self, over: promql.SubqueryExpr) -> Vector:
        step_s, span_s = over.step.total_seconds(), over.range.total_seconds()
        found: dict[Labels, list[float]] = {}
        at = step_s * math.ceil((self._time - span_s) / step_s)
        while at <= self._time:
            for labels, value in _Evaluation(self._samples, at).vector(over.expr).items():
                found.setdefault(labels, []).append(value)
            at += step_s
        return {labels: sum(values) / len(values) for labels, values in found.items()}

    def _combine(self, node: promql.BinaryExpr) -> Vector | float:
        op, left, right = str(node.op), self.value(node.lhs), self.value(node.rhs)
        matching = None if node.modifier is None else node.modifier.matching

        def key(labels: Labels) -> Labels:
            return labels if matching is None else _only(labels, matching.labels)

        if isinstance(left, dict) and isinstance(right, dict):
            keys, theirs = {key(labels) for labels in left}, {key(labels): value for labels, value in right.items()}
            if op == "or":
                return left | {labels: value for labels, value in right.items() if key(labels) not in keys}
            if op in ("and", "unless"):
                return {labels: value for labels, value in left.items() if (key(labels) in theirs) == (op == "and")}
            pairs = {labels: (value, theirs[key(labels)]) for labels, value in left.items() if key(labels) in theirs}
        elif isinstance(left, dict):
            pairs = {labels: (value, right) for labels, value in left.items()}
        elif isinstance(right, dict):
            pairs = {labels: (left, value) for labels, value in right.items()}
        else:
            return _ARITHMETIC[op](left, right)
        if op in _COMPARISONS:
            return {labels: a for labels, (a, b) in pairs.items() if _COMPARISONS[op](a, b)}
        return {labels: _ARITHMETIC[op](a, b) for labels, (a, b) in pairs.items()}


def _matching(selector: promql.VectorSelector, series: dict[Labels, T]) -> dict[Labels, T]:
    if any(matcher.op != promql.MatchOp.Equal for matcher in selector.matchers.matchers):
        raise NotImplementedError(selector.prettify())
    wanted = {(matcher.name, matcher.value) for matcher in selector.matchers.matchers}
    return {labels: found for labels, found in series.items() if wanted <= labels}


def _only(labels: Labels, names: Iterable[str]) -> Labels:
    names = set(names)
    return frozenset((name, value) for name, value in labels if name in names)
