"""How the dashboard's panels look, and the PromQL that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    StackingMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN = 'namespace="$namespace", run="$run"'

Panel = stat.Panel | timeseries.Panel | heatmap.Panel
P = TypeVar("P", stat.Panel, timeseries.Panel, heatmap.Panel)
Target = tuple[str, str]
"""An expression, and the legend of its series."""


def of(name: str, matchers: str = "") -> str:
    """The series of the run that is shown."""
    return f"{name}{{{RUN}{', ' if matchers else ''}{matchers}}}"


def rate(name: str, by: str = "", matchers: str = "") -> str:
    """A counter's growth per second, summed up but for the labels `by`."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of(name, matchers)}[$__rate_interval]))"


def mean(name: str, by: str = "") -> str:
    """Mean of what a histogram observed."""
    return f"{rate(name + '_sum', by)} / {rate(name + '_count', by)}"


def quantile(q: float, name: str, by: str = "") -> str:
    """A quantile of what a histogram observed."""
    return f"histogram_quantile({q:g}, {rate(name + '_bucket', ', '.join(filter(None, (by, 'le'))))})"


def quantiles(name: str, by: str = "") -> list[Target]:
    """Median and 95th percentile of a histogram, as two targets."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return [(quantile(q, name, by), f"p{q * 100:g}{suffix}") for q in (0.5, 0.95)]


def number(title: str, description: str, unit: str, *targets: Target, decimals: int | None = None) -> stat.Panel:
    """A figure of the first row, an eighth of it wide."""
    panel = _common(stat.Panel(), title, description, unit, 3, 4).graph_mode(BigValueGraphMode.AREA)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if decimals is not None:
        panel = panel.decimals(decimals)
    return _with(panel, targets)


def graph(
    title: str, description: str, unit: str, *targets: Target, width: int = 8, stacked: bool = False, log: bool = False
) -> timeseries.Panel:
    """Lines over time."""
    panel = _common(timeseries.Panel(), title, description, unit, width, 8).fill_opacity(30 if stacked else 5)
    panel = panel.show_points(VisibilityMode.NEVER).legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if log:
        panel = panel.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))
    return _with(panel, targets)


def distribution(title: str, description: str, unit: str, name: str, width: int = 8) -> heatmap.Panel:
    """A histogram's buckets over time."""
    panel = _common(heatmap.Panel(), title, description, unit, width, 8)
    panel = panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    query = _query(rate(f"{name}_bucket", "le"), "{{le}}").format(PromQueryFormat.HEATMAP)
    return panel.with_target(query.ref_id("A"))


def _common(panel: P, title: str, description: str, unit: str, width: int, height: int) -> P:
    return panel.title(title).description(description).unit(unit).datasource(SOURCE).span(width).height(height)


def _with(panel: P, targets: Sequence[Target]) -> P:
    for letter, (expression, legend) in zip("ABCDEFGH", targets, strict=False):
        panel = panel.with_target(_query(expression, legend).ref_id(letter))
    return panel


def _query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
