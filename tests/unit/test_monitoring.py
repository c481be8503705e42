"""deploy/prometheus, deploy/grafana: rules do what their cases say, and nobody asks for a metric that is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS, GRAFANA = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"
CASE_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


CASES = [case for file in CASE_FILES for case in load(file)["tests"]]
GROUPS = [group for file in sorted((PROMETHEUS / "rules").glob("*.yml")) for group in load(file)["groups"]]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"]: rule for rule in RULES if "record" in rule}
DASHBOARD = json.loads((GRAFANA / "dashboards" / "headrace.json").read_text())
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
CHECKER = promql.Checker(set(RECORDED))


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("CI has no promtool: see .ci/run")
    if found is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt-get install prometheus)")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration_and_rules(promtool: str) -> None:
    run(promtool, "check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("cases", CASE_FILES, ids=lambda path: path.stem)
def test_alerts_and_signals_do_what_their_cases_say(promtool: str, cases: Path) -> None:
    run(promtool, "test", "rules", cases)


@pytest.mark.parametrize("cases", CASE_FILES, ids=lambda path: path.stem)
def test_they_do_the_same_for_runs_that_have_a_namespace_each_and_no_label_run(
    promtool: str, cases: Path, tmp_path: Path
) -> None:
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    text = cases.read_text()
    for labelled, unlabelled in (
        (r'namespace="rl", run="(\w)"', r'namespace="\1"'),
        (r"namespace: rl, run: (\w)", r"namespace: \1"),
        (r"\brl/(\w)\b", r"\1/"),
    ):
        text = re.sub(labelled, unlabelled, text)
    assert not re.search(r"\brl\b|\brun[=:] ", text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / cases.name).write_text(text)
    run(promtool, "test", "rules", tmp_path / "tests" / cases.name)


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in ALERTS}))
def test_every_alert_has_cases_in_which_it_fires_not_yet_not_elsewhere_and_not_after_the_run(name: str) -> None:
    cases = [(case, rule) for case in CASES for rule in case.get("alert_rule_test", ()) if rule["alertname"] == name]
    fired = {alert["exp_labels"].get("service") for _, rule in cases for alert in rule["exp_alerts"]}
    assert fired == {rule["labels"].get("service") for rule in ALERTS if rule["alert"] == name}
    for case, _ in cases:
        expected = [rule["exp_alerts"] for rule in case["alert_rule_test"]]
        assert [] in expected
        inputs = " ".join(series["series"] for series in case["input_series"])
        assert 'namespace="rl", run="b"' in inputs
        assert 'headrace_learner_complete{namespace="rl", run="c"' in inputs
        assert not any(alert["exp_labels"]["run"] in "bc" for alerts in expected for alert in alerts)


def test_every_recorded_signal_has_a_case_with_a_value() -> None:
    cases = [case for group in CASES for case in group.get("promql_expr_test", ()) if case["exp_samples"]]
    assert {name for case in cases for name in promql.names(case["expr"])} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_signal_is_made_of_metrics_that_exist_and_is_one_series_per_run(name: str) -> None:
    assert CHECKER.labels(RECORDED[name]["expr"]) == promql.RUN


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_made_of_metrics_that_exist_and_tells_what_to_do(rule: dict[str, Any]) -> None:
    labels = CHECKER.labels(rule["expr"])
    assert promql.RUN <= labels
    assert "for" in rule
    assert rule["labels"]["severity"] in ("warning", "critical")
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook"}
    assert set(re.findall(r"\$labels\.(\w+)", annotations["description"])) <= labels
    assert annotations["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOKS.read_text()


def test_every_runbook_is_of_an_alert() -> None:
    headings = re.findall(r"^## (Headrace\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted({rule["alert"] for rule in ALERTS})


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[f"{title} {t['refId']}" for title, t in TARGETS])
def test_a_panel_asks_for_metrics_of_the_run_and_names_labels_that_they_have(
    title: str, target: dict[str, Any]
) -> None:
    expression = target["expr"]
    labels = CHECKER.labels(expression)
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
    selectors = re.findall(r"\b(?:headrace_|process_|namespace_run:|ALERTS)[\w:]*({[^}]*)?", expression)
    assert selectors
    assert all('namespace="$namespace", run="$run"' in matchers for matchers in selectors)


def test_the_dashboard_asks_for_a_run_of_the_namespace_that_was_chosen() -> None:
    source, namespace, run_name = DASHBOARD["templating"]["list"]
    assert source["type"] == "datasource"
    assert (namespace["name"], namespace["query"]) == ("namespace", "label_values(headrace_learner_ready, namespace)")
    of_namespace = 'label_values(headrace_learner_ready{namespace="$namespace"}, run)'
    assert (run_name["name"], run_name["query"]) == ("run", of_namespace)


def test_the_dashboards_rows_fill_its_width_and_no_panels_overlap() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert {x for x, _ in taken} == set(range(24))
    assert len(taken) == 24 * len({y for _, y in taken})
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("headrace_learner_updates", "no metric"),
        ("rate(headrace_learner_batch_wait_seconds[1m])", "no metric"),
        ("rate(headrace_actor_episode_return_sum[1m])", "negative"),
        ("headrace_learner_updates_total", "grows"),
        ("rate(headrace_learner_actors[1m])", "has no rate"),
        ('rate(headrace_replay_rejected_total{reason="mood"}[1m])', "no reason"),
        ('headrace_learner_actors{phase="copy"}', "no label phase"),
        ("sum by (reason) (headrace_learner_actors)", "by"),
        ("headrace_learner_actors < max by (namespace) (headrace_learner_actors_wanted)", "one side"),
        ("histogram_quantile(0.5, sum(rate(headrace_learner_batch_wait_seconds_bucket[1m])))", "no le"),
    ],
)
def test_an_expression_that_the_catalogue_does_not_fit_is_found(expression: str, complaint: str) -> None:
    with pytest.raises(promql.Unfit, match=complaint):
        CHECKER.labels(expression)


def test_the_configuration_scrapes_every_service_at_its_port_and_tells_the_run() -> None:
    from headrace import service_args

    jobs = {job["job_name"]: job for job in load(PROMETHEUS / "prometheus.yml")["scrape_configs"]}
    ports = {
        "learner": service_args.LEARNER_METRICS,
        "replay": service_args.REPLAY_METRICS,
        "actor": service_args.ACTOR_METRICS,
        "evaluator": service_args.ACTOR_METRICS,
    }
    assert set(jobs) == {f"headrace-{service}" for service in ports}
    for service, address in ports.items():
        job = jobs[f"headrace-{service}"]
        (found,) = job["dns_sd_configs"]
        assert found["names"] == [service]
        assert address.endswith(f":{found['port']}")
        for label in promql.RUN:
            assert {"target_label": label, "replacement": "headrace"} in job["relabel_configs"]
