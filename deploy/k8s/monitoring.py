"""Writes the rules and the dashboard of components/monitoring; --check compares and writes nothing.

They are those of deploy/prometheus and deploy/grafana: kustomize takes no files from outside of its own folder.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
COMPONENT = DEPLOY / "k8s" / "components" / "monitoring"

_HEAD = """\
# Written by deploy/k8s/monitoring.py from deploy/prometheus/rules: `make monitoring`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: headrace
  labels:
    app.kubernetes.io/part-of: headrace
spec:
  groups:
"""


def build() -> dict[Path, str]:
    """What is to stand in which file."""
    rules = _HEAD
    for file in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml")):
        about, groups, body = file.read_text().partition("groups:\n")
        if not groups:
            sys.exit(f"{file} has no line `groups:` of its own")
        rules += textwrap.indent(about, "    ") + textwrap.indent(body, "  ")
    dashboard = (DEPLOY / "grafana" / "dashboards" / "headrace.json").read_text()
    return {COMPONENT / "rules.yaml": rules, COMPONENT / "headrace.json": dashboard}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    check = parser.parse_args().check
    for path, text in build().items():
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(DEPLOY.parent)} differs from what it is made of: run make monitoring")


if __name__ == "__main__":
    main()
