"""Checks PromQL expressions against the metric catalogue: names, types, and the labels that series have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import promql_parser as promql
from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.telemetry.catalogue import ActorMetrics, EvaluatorMetrics, LearnerMetrics, ReplayMetrics
from headrace.telemetry.families import Declaration

SERVICES = (ActorMetrics, EvaluatorMetrics, ReplayMetrics, LearnerMetrics)
RUN = {"namespace", "run"}  # what tells runs apart, and all that recorded series have
TARGET = RUN | {"job", "instance"}  # what scraping adds
ALERTS = Declaration("ALERTS", "gauge", "", "", {"alertname": (), "alertstate": ("pending", "firing")})
COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
SETS = {"and", "or", "unless"}
GROWTH = {"rate", "increase"}


class Unfit(Exception):
    """An expression that the catalogue does not fit."""


def catalogue() -> dict[str, Declaration]:
    """Every metric that a scrape can show, by name."""
    declared = {d.name: d for metrics in SERVICES for d in metrics(CollectorRegistry()).declarations}
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        declared[name] = Declaration(name, family.type, "", family.documentation, {})
    return declared | {ALERTS.name: ALERTS}


class Checker:
    """Knows the catalogue and the series that recording rules make, which have the labels of RUN."""

    def __init__(self, recorded: set[str]) -> None:
        self._declared = catalogue()
        self._recorded = recorded

    def labels(self, expression: str) -> set[str]:
        """The labels of an expression's series. Raises Unfit, ValueError if it does not parse."""
        return self._labels(promql.parse(expression.replace("$__rate_interval", "1m")))

    def _labels(self, node: promql.Expr, inside: str = "") -> set[str]:
        """inside: the function or comparison of which this is an operand."""
        match node:
            case promql.NumberLiteral() | promql.StringLiteral():
                return set()
            case promql.ParenExpr() | promql.UnaryExpr():
                return self._labels(node.expr, inside)
            case promql.SubqueryExpr():
                return self._labels(node.expr)
            case promql.MatrixSelector():
                return self._selected(node.vector_selector, inside)
            case promql.VectorSelector():
                return self._selected(node, inside)
            case promql.AggregateExpr():
                have = self._labels(node.expr)
                kept = set() if node.modifier is None else set(node.modifier.labels)
                if kept - have:
                    raise Unfit(f"by {sorted(kept - have)}: no such label in {node.expr}")
                return kept
            case promql.Call():
                return self._called(node)
            case promql.BinaryExpr():
                return self._combined(node)
        raise Unfit(f"{type(node)} is not known here")

    def _called(self, call: promql.Call) -> set[str]:
        name = call.func.name
        if name in ("time", "scalar"):
            for argument in call.args:
                self._labels(argument, name)
            return set()
        have = set().union(*(self._labels(argument, name) for argument in call.args))
        if name == "histogram_quantile":
            if "le" not in have:
                raise Unfit(f"no le in {call}")
            return have - {"le"}
        return have | {call.args[1].val} if name == "label_replace" else have

    def _combined(self, node: promql.BinaryExpr) -> set[str]:
        op = str(node.op)
        inside = op if op in COMPARISONS else ""
        left, right = self._labels(node.lhs, inside), self._labels(node.rhs, inside)
        matching = None if node.modifier is None else node.modifier.matching
        if matching is not None:
            on = set(matching.labels)
            if on - left or on - right:
                raise Unfit(f"on {sorted(on)}: one side has {sorted(left)}, the other {sorted(right)}")
        elif left and right and left != right:  # they would not match, or not always
            raise Unfit(f"{node}: one side has {sorted(left)}, the other {sorted(right)}")
        if op == "or":
            return left | right
        return left or right

    def _selected(self, selector: promql.VectorSelector, inside: str) -> set[str]:
        name = selector.name
        if name in self._recorded:
            declaration, part = Declaration(name, "gauge", "", "", {}), ""
            target = RUN
        else:
            declaration, part = self._find(name)
            target = TARGET
        grows = declaration.kind in ("counter", "histogram")
        if grows and inside not in GROWTH | COMPARISONS:
            raise Unfit(f"{name} only ever grows: rate or increase tells something")
        if not grows and inside in GROWTH:
            raise Unfit(f"{name} is a {declaration.kind}: it has no {inside}")
        labels = set(declaration.labels) | target | ({"le"} if part == "_bucket" else set())
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                raise Unfit(f"{name} has no label {matcher.name}")
            values = declaration.labels.get(matcher.name, ())
            exact = matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual)
            pattern = re.escape(matcher.value) if exact else matcher.value
            if values and not any(re.fullmatch(pattern, value) for value in values):
                raise Unfit(f"{name}: no {matcher.name} is {matcher.value!r}")
        return labels

    def _find(self, name: str) -> tuple[Declaration, str]:
        """The declaration that a series' name belongs to, and the part of a histogram that it is."""
        declaration = self._declared.get(name)
        if declaration is not None and declaration.kind != "histogram":
            return declaration, ""
        for part in ("_bucket", "_count", "_sum"):
            declaration = self._declared.get(name.removesuffix(part))
            if name.endswith(part) and declaration is not None and declaration.kind == "histogram":
                if part == "_sum" and min(declaration.buckets) < 0:
                    raise Unfit(f"{name} does not exist, because what it sums up can be negative")
                return declaration, part
        raise Unfit(f"there is no metric {name}")


def names(expression: str) -> Iterator[str]:
    """Names of the series in an expression, as far as they are written out."""
    yield from re.findall(r"\b(?:namespace_run:)?headrace_\w+(?::\w+)*", expression)
