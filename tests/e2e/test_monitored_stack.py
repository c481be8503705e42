"""The stack with its Prometheus: every panel has data, actors are found as they come and go, alerts fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from stack import COMPOSE_FILE, ROOT, Stack

PROMETHEUS, DASHBOARD = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana" / "dashboards" / "headrace.json"
PANELS = json.loads(DASHBOARD.read_text())["panels"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", [])]
RULES = [
    rule
    for file in sorted((PROMETHEUS / "rules").glob("*.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A run with two actors and an evaluator, and Prometheus beside it. Its learner can use two or three.

    Its alerts wait for seconds where the shipped ones wait for minutes, and its signals are of 20 seconds rather than
    one minute; they are the same otherwise.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(PROMETHEUS, folder, dirs_exist_ok=True)
    alerts = folder / "rules" / "alerts.yml"
    alerts.write_text(re.sub(r"for: (\d+)m", r"for: \1s", alerts.read_text()))
    signals = folder / "rules" / "recording.yml"
    signals.write_text(signals.read_text().replace("[1m:15s]", "[20s:5s]").replace("[1m]", "[20s]"))
    folder.chmod(0o755)
    override = folder / "compose.yml"
    override.write_text(json.dumps({"services": {"prometheus": {"volumes": [f"{folder}:/etc/prometheus:ro"]}}}))
    stack = Stack(
        "headrace-watched",
        (COMPOSE_FILE, override),
        HEADRACE_CONFIG="/code/slow.yaml",
        HEADRACE_ARGS="--evaluation.every_s 3 --model.network slow_network:SlowNetwork --replay.max_items 16",
        HEADRACE_PROMETHEUS_PORT="0",
    )
    with stack.running("replay", "learner", "actor", "evaluator"):
        stack.wait_trained()
        before = [container.id for container in stack.containers()]
        stack.up("--no-deps", "prometheus")  # as docs/containers.md has it, on a stack that runs
        assert set(before) < {container.id for container in stack.containers()}
        yield stack


def query(stack: Stack, expression: str) -> list[dict[str, Any]]:
    """The series that the expression has now."""
    address = f"http://{stack.address(stack.container('prometheus'))}:9090/api/v1/query?"
    with urllib.request.urlopen(address + urllib.parse.urlencode({"query": expression}), timeout=10) as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    result: list[dict[str, Any]] = found["data"]["result"]
    return result


def demand(stack: Stack) -> float:
    """By what the number of actors should be multiplied; 1 as long as nobody knows."""
    (series,) = query(stack, "namespace_run:headrace_actor_demand:ratio_rate1m") or [{"value": (0, "1")}]
    return float(series["value"][1])


def firing(stack: Stack) -> set[str]:
    return {series["metric"]["alertname"] for series in query(stack, 'ALERTS{alertstate="firing"}')}


@pytest.mark.parametrize("service", ["replay", "learner", "actor", "evaluator"])
def test_promtool_has_nothing_to_say_about_the_metrics(watched: Stack, service: str) -> None:
    text = watched.scrape(watched.containers(service)[0])
    prometheus = watched.container("prometheus").id
    done = subprocess.run(
        ["docker", "exec", "--interactive", prometheus, "promtool", "check", "metrics"],
        input=text, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_panel_of_the_dashboard_has_data(watched: Stack) -> None:
    watched.wait(
        "two minutes of samples", lambda: query(watched, "namespace_run:headrace_episode_return:avg10m"), 180, 2
    )

    def empty() -> list[tuple[str, str]]:
        return [
            (title, expression)
            for title, expression in EXPRESSIONS
            if "ALERTS" not in expression and not query(watched, fill(expression))
        ]

    deadline = time.monotonic() + 60
    while empty() and time.monotonic() < deadline:
        time.sleep(5)
    assert empty() == []


def fill(expression: str) -> str:
    """The dashboard's variables as Grafana would fill them in."""
    return expression.replace("$namespace", "headrace").replace("$run", "headrace").replace("$__rate_interval", "1m")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_every_rule_can_be_evaluated(watched: Stack, rule: dict[str, Any]) -> None:
    query(watched, rule["expr"])
    for metric in set(re.findall(r"(?<!:)\bheadrace_\w+", rule["expr"])):
        name = re.sub(r"_(bucket|count|sum)$", "", metric)
        assert query(watched, f'count({{__name__=~"{name}(_bucket|_count|_sum)?"}})'), name


def test_a_run_that_is_well_raises_no_critical_alert(watched: Stack) -> None:
    critical = {rule["alert"] for rule in RULES if rule.get("labels", {}).get("severity") == "critical"}
    assert not firing(watched) & critical


def test_actors_that_come_and_go_are_found_asked_for_and_missed(watched: Stack) -> None:
    def up(actors: int) -> bool:
        return len(query(watched, 'up{job="headrace-actor"} == 1')) == actors

    watched.wait("two actors", lambda: up(2), 60, 1)
    watched.wait("a demand for more", lambda: demand(watched) > 1.1, 60, 1)
    watched.up("actor", actor=4)
    watched.wait("four actors", lambda: up(4), 60, 1)
    watched.wait("a demand for fewer", lambda: demand(watched) < 0.9, 60, 1)
    watched.up("actor", actor=1)
    watched.wait("one actor", lambda: up(1), 60, 1)
    watched.wait("a demand for twice as many", lambda: demand(watched) > 1.8, 60, 1)
    watched.wait("the alert for missing actors", lambda: "HeadraceActorsMissing" in firing(watched), 120, 1)
    watched.up("actor", actor=2)
    watched.wait("its end", lambda: "HeadraceActorsMissing" not in firing(watched), 120, 1)


def test_a_learner_that_is_gone_is_told(watched: Stack) -> None:
    watched.docker.api.update_container(watched.container("learner").id, restart_policy={"Name": "no"})
    watched.kill(watched.container("learner"))
    watched.wait("the alert", lambda: "HeadraceTargetAbsent" in firing(watched), 120, 1)
    watched.container("learner").start()
    watched.wait("its end", lambda: "HeadraceTargetAbsent" not in firing(watched), 120, 1)
