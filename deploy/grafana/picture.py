"""Draws the dashboard's first rows without Grafana, by asking Prometheus what the panels ask.

    python deploy/grafana/picture.py http://127.0.0.1:9090 --minutes 10 --out dashboard.png

Panels, expressions and legends are those of dashboards/headrace.json; namespace and run are `headrace`. An
expression without data is named, and the exit status is 1; the picture is written all the same.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray
from PIL import Image

DASHBOARD = Path(__file__).resolve().parent / "dashboards" / "headrace.json"
ROWS = ("Overview", "Throughput", "Balance")
VARIABLES = {"$namespace": "headrace", "$run": "headrace", "$__rate_interval": "1m"}
STEPS = 120
"""Points in time of a series, less one."""

COLUMNS, WIDTH, HEIGHT = 24, 0.6, 0.3
"""A dashboard's columns, and the size of a cell of its grid in inches."""

PREFIXED = EngFormatter(sep="")
FORMATS: dict[str, Callable[[float], str]] = {
    "cps": lambda value: f"{short(value)}/s",
    "percentunit": lambda value: f"{value * 100:g}%",
    "s": lambda value: f"{PREFIXED.format_eng(value)}s",
    "short": lambda value: short(value),
}
"""How a number is written, by its unit in Grafana."""

Answer = list[dict[str, Any]]
"""What Prometheus calls a matrix: series with a `metric` and `values`, pairs of a Unix time and a number as text."""


@dataclass(frozen=True)
class Range:
    """The time that is drawn."""

    end: float
    minutes: float

    @property
    def step(self) -> float:
        return self.minutes * 60 / STEPS

    @property
    def start(self) -> float:
        return self.end - self.minutes * 60

    def on_grid(self, values: list[tuple[float, str]]) -> NDArray[np.float64]:
        """float64 [STEPS + 1], NaN where the series has no value."""
        filled = np.full(STEPS + 1, np.nan)
        for at, value in values:
            filled[round((float(at) - self.start) / self.step)] = float(value)
        return filled


@dataclass
class Panel:
    """A panel of the dashboard, and its data."""

    title: str
    kind: str
    unit: str
    stacked: bool
    at: dict[str, int]
    """Its place in the grid: x, y, w, h."""
    series: list[tuple[str, NDArray[np.float64]]] = field(default_factory=list)
    """Legends and values."""


class Prometheus:
    """Answers of a Prometheus at `url`, over one range of time."""

    def __init__(self, url: str, span: Range) -> None:
        self._url, self._span = url.rstrip("/"), span

    def __call__(self, expression: str) -> Answer:
        """Raises OSError where there is no answer, and ValueError where Prometheus refuses the expression."""
        parameters = {"query": expression, "start": self._span.start, "end": self._span.end, "step": self._span.step}
        address = f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                found: Answer = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"Prometheus answers {error.code} to {expression}: {error.read(500).decode()}") from error
        return found


def load(query: Callable[[str], Answer], span: Range) -> tuple[list[Panel], list[str]]:
    """The panels of ROWS with their data, and `title: expression` of whatever has none, but for alerts."""
    panels, missing, row = [], [], ""
    for spec in json.loads(DASHBOARD.read_text())["panels"]:
        row = spec["title"] if spec["type"] == "row" else row
        if row not in ROWS:
            continue
        defaults = spec.get("fieldConfig", {}).get("defaults", {})
        stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
        panel = Panel(spec["title"], spec["type"], defaults.get("unit", ""), stacked, spec["gridPos"])
        for target in spec.get("targets", ()):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            found = [
                (legend(target["legendFormat"], one["metric"]), span.on_grid(one["values"]))
                for one in query(expression)
            ]
            found = [(name, values) for name, values in found if not np.isnan(values).all()]
            panel.series += found
            if not found and "ALERTS{" not in expression:  # there are no alerts while a run is well
                missing.append(f"{panel.title}: {expression}")
        panels.append(panel)
    return panels, missing


def legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda label: labels.get(label[1], ""), template)


def short(value: float) -> str:
    return PREFIXED.format_eng(value) if abs(value) >= 1000 else f"{value:g}"


def draw(panels: list[Panel], span: Range, file: Path) -> None:
    """Writes a PNG with the panels where they are in the dashboard."""
    rows = max(panel.at["y"] + panel.at["h"] for panel in panels)
    figure = Figure(figsize=(COLUMNS * WIDTH, rows * HEIGHT), dpi=100)
    minutes = np.linspace(-span.minutes, 0, STEPS + 1)
    for panel in panels:
        x, y, w, h = (panel.at[key] for key in "xywh")
        if panel.kind == "row":
            figure.text(0.1 / COLUMNS, 1 - (y + 0.9) / rows, panel.title, size=12, weight="bold", va="bottom")
            continue
        left, bottom, right, top = MARGINS[panel.kind]
        axes = figure.add_axes(
            (
                x / COLUMNS + left / (COLUMNS * WIDTH),
                1 - (y + h) / rows + bottom / (rows * HEIGHT),
                w / COLUMNS - (left + right) / (COLUMNS * WIDTH),
                h / rows - (bottom + top) / (rows * HEIGHT),
            )
        )
        DRAWN[panel.kind](axes, panel, minutes)
    file.parent.mkdir(parents=True, exist_ok=True)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    # A palette: half the size.
    Image.open(image).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)


def draw_graph(axes: Axes, panel: Panel, minutes: NDArray[np.float64]) -> None:
    """Lines, or areas on top of each other, with legends below."""
    axes.set_title(panel.title, size=9, loc="left")
    names, values = [name for name, _ in panel.series], [values for _, values in panel.series]
    if not values:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color="grey")
    elif panel.stacked:
        known = ~np.isnan(values).all(axis=0)
        axes.stackplot(minutes, np.where(known, np.nan_to_num(values), np.nan), labels=names, alpha=0.6)
    else:
        for name, line in panel.series:
            axes.plot(minutes, line, label=name, linewidth=1.2)
    axes.set_xlim(minutes[0], minutes[-1])
    if values and np.nanmin(values) >= 0:
        axes.axhline(0, linewidth=0)  # so that the limits are those of data with a zero
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if values else NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: FORMATS[panel.unit](value))
    axes.xaxis.set_major_formatter(lambda minute, _: f"{minute:g} min" if minute else "now")
    axes.tick_params(labelsize=7, length=2)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if any(names):
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.08, -0.1), ncols=3, fontsize=7, frameon=False,
            handlelength=1, columnspacing=1, labelspacing=0.3,
        )  # fmt: skip


def draw_number(axes: Axes, panel: Panel, minutes: NDArray[np.float64]) -> None:
    """The last value in figures, over how it came about."""
    axes.set_title(panel.title, size=9)
    axes.set_axis_off()
    axes.set_xlim(minutes[0], minutes[-1])
    shown = []
    for name, values in panel.series:
        axes.fill_between(minutes, values, alpha=0.25)
        last = float(f"{values[~np.isnan(values)][-1]:.3g}")
        shown.append(f"{FORMATS[panel.unit](last)} {name}".strip())
    text = "\n".join(shown) or "no data"
    axes.text(0.5, 0.55, text, transform=axes.transAxes, ha="center", va="center", size=14 if len(shown) < 2 else 11)


DRAWN = {"stat": draw_number, "timeseries": draw_graph}
MARGINS = {"stat": (0.1, 0.05, 0.1, 0.3), "timeseries": (0.55, 0.62, 0.15, 0.3)}
"""Around a panel's axes in inches: left, bottom, right, top."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=10, help="how far back to draw, default 10")
    parser.add_argument("--out", type=Path, required=True, help="the PNG to write")
    arguments = parser.parse_args()
    span = Range(time.time(), arguments.minutes)
    try:
        panels, missing = load(Prometheus(arguments.url, span), span)
    except (OSError, ValueError) as error:
        sys.exit(f"{arguments.url}: {error}")
    draw(panels, span, arguments.out)
    if missing:
        sys.exit("\n".join(f"no data: {one}" for one in missing))


if __name__ == "__main__":
    main()
