"""deploy/k8s/components/autoscaling-*: the number of actors settles where the learner is busy, whatever it can use.

The loop is simulated in control_loop.py, with the recording rules and the autoscalers as they are shipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from control_loop import Autoscaler, Direction, Loop, Policy, Rules, Scenario, Settings, turns
from promql_values import STALE, Labels, Samples, evaluate

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS, PROMETHEUS = ROOT / "deploy" / "k8s", ROOT / "deploy" / "prometheus"
DEMAND = "namespace_run:headrace_actor_demand:ratio_rate1m"


def load(*parts: str) -> Any:
    return yaml.safe_load(MANIFESTS.joinpath("components", *parts).read_text())


HPA = Settings.of_hpa(load("autoscaling-hpa", "autoscaler.yaml")["spec"])
KEDA = Settings.of_keda(load("autoscaling-keda", "autoscaler.yaml")["spec"])


def rules_of(record: str) -> Rules:
    """What a recorded series is made of, and it itself at the end."""
    (group,) = yaml.safe_load((PROMETHEUS / "rules" / "recording.yml").read_text())["groups"]
    recorded = {rule["record"]: rule["expr"] for rule in group["rules"]}
    parts = [name for name in recorded if name != record and re.search(rf"{re.escape(name)}\b", recorded[record])]
    return {name: recorded[name] for name in [*parts, record]}


RULES = rules_of(DEMAND)


# -- the loop ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A scenario, and from when to when in minutes how many actors there are to be."""

    scenario: Scenario
    spans: tuple[tuple[float, float, float], ...]


def needs(*actors: float, start: int = 2, within: float = 10, each: float = 30, **kwargs: Any) -> Case:
    """A learner that can use so many actors one after the other, each for as many minutes."""
    spans = tuple((i * each + within, (i + 1) * each, need) for i, need in enumerate(actors))
    last = len(actors) - 1
    scenario = Scenario(
        lambda at: actors[min(int(at // (each * 60)), last)], start, minutes=each * len(actors), **kwargs
    )
    return Case(scenario, spans)


def faults(loop: Loop, case: Case) -> list[str]:
    """How the number of actors is not as it should be: near what is needed in time, not far above on the way, steady.

    Near is 15 % or one actor. The autoscaler holds still within 10 %, and rounds up.
    """
    found = []
    for begin, end, need in case.spans:
        near = max(1.0, 0.15 * need)
        seen = loop.replicas[int(begin * 60) : int(end * 60)]
        if not need - near <= min(seen) <= max(seen) <= need + near:
            found.append(
                f"{min(seen)} to {max(seen)} actors from minute {begin:g} to {end:g}, where {need:g} are needed"
            )
    most = 1.25 * max(need for *_, need in case.spans) + 1
    if max(loop.replicas) > max(most, case.scenario.start):
        found.append(f"{max(loop.replicas)} actors at most, where {most:g} are enough")
    if turns(loop.replicas) > 2:
        found.append(f"{turns(loop.replicas)} turns")
    return found


def minutes(*spans: tuple[float, float]) -> Any:
    return lambda at: any(60 * begin <= at < 60 * end for begin, end in spans)


CASES = {
    "from 2 to 3": needs(3),
    "from 2 to 10": needs(10),
    "from 2 to 30": needs(30, within=25, each=40),
    "from 2 to 60": needs(60, within=12),
    "from 64 to 3": needs(3, start=64, within=60, each=80),
    "from 64 to 10": needs(10, start=64, within=45, each=60),
    "from 64 to 30": needs(30, start=64, within=30, each=45),
    "from 64 to 60": needs(60, start=64),
    "a learner that becomes twice as fast": needs(16, 32),
    "a learner that becomes half as fast": needs(32, 16, within=25, each=40),
    "a learner that pauses for a minute": needs(20, each=40, paused=minutes((20, 21))),
    "a learner that pauses for a minute every ten": needs(
        20, each=60, within=15, paused=minutes(*((i, i + 1) for i in range(5, 60, 10)))
    ),
    "a learner that is away for five minutes": needs(20, each=40, away=minutes((20, 25))),
    "a table with samples per insert": needs(20, each=40, within=20, buffer_s=60),
    "a table that fills for five minutes": needs(20, each=40, within=20, fill_s=600, buffer_s=60),
    "twice the noise": needs(20, each=60, noise=2.0),
    "a learner faster than all actors": Case(
        Scenario(lambda at: 100.0, minutes=30), ((12, 30, HPA.most),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_actors_settles_without_swinging(name: str) -> None:
    case = CASES[name]
    assert faults(Loop(case.scenario, RULES, HPA).run(), case) == []


def test_a_learner_that_is_away_leaves_the_number_of_actors_alone() -> None:
    loop = Loop(Scenario(lambda at: 20.0, start=20, minutes=15, away=minutes((5, 10)), noise=0.0), RULES, HPA).run()
    assert loop.demand.count(None) > 10
    assert set(loop.replicas) == {20}
    assert set(
        Loop(Scenario(lambda at: 20.0, start=5, minutes=15, away=minutes((0, 15))), RULES, HPA).run().replicas
    ) == {5}


def test_a_table_that_fills_for_the_first_draw_asks_for_no_more_actors() -> None:
    loop = Loop(Scenario(lambda at: 20.0, minutes=4, fill_s=600), RULES, HPA).run()
    assert {demand for demand in loop.demand if demand is not None} == {1.0}
    assert set(loop.replicas) == {2}


def test_a_run_that_is_complete_gives_its_actors_back() -> None:
    loop = Loop(Scenario(lambda at: 20.0, start=20, minutes=70, complete_s=600), RULES, HPA).run()
    assert max(loop.replicas[600:]) <= 23
    assert loop.replicas[-1] == HPA.least
    assert turns(loop.replicas) <= 2


def unlike(demand: str) -> Rules:
    return RULES | {DEMAND: demand.format(RULES[DEMAND])}


AT_ONCE = replace(HPA, up=replace(HPA.up, stabilization_s=0), down=replace(HPA.down, stabilization_s=0))
SPOILT: dict[str, tuple[Rules, Settings, float]] = {
    "an autoscaler without stabilization and tolerance": (RULES, AT_ONCE, 0.0),
    "a scale-up without stabilization": (RULES, replace(HPA, up=AT_ONCE.up), 0.1),
    "a signal that is inverted": (unlike("1 / ({})"), HPA, 0.1),
    "a signal that exaggerates": (unlike("({0}) * ({0})"), HPA, 0.1),
    "a signal that forgets how many actors it is of": (
        RULES | {DEMAND: RULES[DEMAND].replace("[1m:15s]", "[1s:1s]")}, HPA, 0.1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_loop_does_not_pass_for_one_that_settles(name: str) -> None:
    rules, settings, tolerance = SPOILT[name]
    assert any(
        faults(Loop(case.scenario, rules, settings, tolerance).run(), case)
        for case in (CASES["from 2 to 10"], CASES["from 2 to 30"])
    )


# -- what the simulation stands on -------------------------------------------------------------------------------------


def points(notation: str, interval_s: int) -> list[tuple[float, float | None]]:
    """Times and values of a series of promtool's tests."""
    found: list[float | None] = []
    for part in notation.split():
        if part == "stale":
            found.append(STALE)
        elif blank := re.fullmatch(r"_x(\d+)", part):
            found += [float("nan")] * int(blank[1])
        else:
            whole = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?(?:x(\d+))?", part)
            assert whole is not None, part
            found += [float(whole[1]) + i * float(whole[2] or 0) for i in range(int(whole[3] or 0) + 1)]
    return [(i * interval_s, value) for i, value in enumerate(found) if value is STALE or value == value]


SECONDS = {"s": 1, "m": 60}
PROMTOOL = [
    (case, test)
    for case in yaml.load((PROMETHEUS / "tests" / "recording.yml").read_text(), yaml.BaseLoader)[
        "tests"
    ]  # 0x20 is text
    for test in case.get("promql_expr_test", ())
    if DEMAND in test["expr"]
]


@pytest.mark.parametrize(("case", "test"), PROMTOOL, ids=[f"{c['name']}, {t['eval_time']}" for c, t in PROMTOOL])
def test_expressions_have_the_values_that_promtool_finds(case: dict[str, Any], test: dict[str, Any]) -> None:
    interval_s = int(case["interval"][:-1]) * SECONDS[case["interval"][-1]]
    added = []
    for series in case["input_series"]:
        name, labels = re.fullmatch(r"(\w+)({.*})", series["series"]).groups()  # type: ignore[union-attr]
        key = frozenset(re.findall(r'(\w+)="(\w*)"', labels))
        added += [(at, name, key, value) for at, value in points(series["values"], interval_s)]
    samples, end = Samples(), int(test["eval_time"][:-1]) * SECONDS[test["eval_time"][-1]]
    for at, name, key, value in sorted(added, key=lambda sample: sample[0]):
        samples.add(at, name, key, value)
    for at in range(0, end + 1, 15):
        for record, expression in RULES.items():
            samples.record(at, record, evaluate(expression, samples, at))
    expected: dict[Labels, float] = {
        frozenset(re.findall(r'(\w+)="(\w*)"', sample["labels"])): float(sample["value"])
        for sample in test["exp_samples"]
    }
    assert samples.at(DEMAND, end) == pytest.approx(expected, abs=1e-3)


FREE = Direction(0, (Policy(percent=True, value=1000, period_s=15), Policy(percent=False, value=1000, period_s=15)))
PLAIN = Settings(least=1, most=100, target=1.0, up=FREE, down=FREE)


def test_the_simulated_autoscaler_multiplies_ready_pods_and_holds_still_near_the_target_or_without_a_metric() -> None:
    def once(ready: int, metric: float | None, settings: Settings = PLAIN) -> int:
        return Autoscaler(settings).sync(0.0, 10, ready, metric)

    assert [once(10, metric) for metric in (0.91, 1.0, 1.09, None)] == [10, 10, 10, 10]
    assert [once(10, 1.5), once(10, 1.11), once(6, 2.0), once(10, 0.55)] == [15, 12, 12, 6]
    assert [once(10, 20.0), once(10, 0.5, replace(PLAIN, least=8))] == [100, 8]
    assert [once(10, None, replace(PLAIN, least=12)), once(10, None, replace(PLAIN, most=7))] == [12, 7]


def test_the_simulated_autoscaler_changes_no_more_than_its_policies_allow_in_their_periods() -> None:
    up = Direction(0, (Policy(True, 50, 60), Policy(False, 8, 60)))
    down = Direction(0, (Policy(True, 10, 120),))
    scaler, replicas = Autoscaler(replace(PLAIN, up=up, down=down)), 4
    seen = []
    for now in range(0, 181, 15):
        replicas = scaler.sync(float(now), replicas, replicas, 4.0)
        seen.append(replicas)
    assert [seen[0], seen[3], seen[4], seen[8], seen[12]] == [12, 12, 20, 30, 45]
    for now in range(300, 661, 15):
        replicas = scaler.sync(float(now), replicas, replicas, 0.5)
        seen.append(replicas)
    assert sorted(set(seen[13:]), reverse=True) == [40, 36, 32, 28]
    least = replace(PLAIN, up=replace(up, most=False))
    assert Autoscaler(least).sync(0.0, 4, 4, 4.0) == 6


def test_the_simulated_autoscaler_takes_the_least_or_most_that_it_wanted_within_the_window() -> None:
    scaler = Autoscaler(replace(PLAIN, up=replace(FREE, stabilization_s=60), down=replace(FREE, stabilization_s=120)))
    ups = [scaler.sync(float(now), 10, 10, 2.0) for now in range(0, 91, 15)]
    assert ups == [10, 10, 10, 10, 20, 20, 20]
    downs = [scaler.sync(float(now), 20, 20, 0.5) for now in range(105, 256, 15)]
    assert downs == [20] * 7 + [10] * 4  # at 90 s it wanted 20 for the last time


# -- the manifests -----------------------------------------------------------------------------------------------------


def test_both_autoscalers_have_the_same_numbers_and_keda_takes_no_answer_for_none() -> None:
    assert HPA == KEDA
    (trigger,) = load("autoscaling-keda", "autoscaler.yaml")["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def kustomize(folder: Path, *components: str, transformers: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A run `pong` in the namespace `team`, rendered; its kustomization has a label of its own as well."""

    def path(*parts: str) -> str:
        return os.path.relpath(MANIFESTS.joinpath(*parts), folder)

    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "team",
        "nameSuffix": "-pong",
        "labels": [{"pairs": {"run": "pong", "example.com/owner": "me"}, "includeSelectors": True}],
        "resources": [path("overlays", "gpu")],
        "components": [path("components", component) for component in components],
        "transformers": [path("components", transformer) for transformer in transformers],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    kubectl = Path(sysconfig.get_path("scripts")) / "kubectl"
    return subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)


def rendered(folder: Path, component: str, *transformers: str) -> dict[str, dict[str, Any]]:
    """By kind and name, without what kustomize appends to it."""
    done = kustomize(folder, component, transformers=transformers)
    assert (done.returncode, done.stderr) == (0, "")
    return {
        f"{each['kind']}/{each['metadata']['name'].partition('-')[0]}": each for each in yaml.safe_load_all(done.stdout)
    }


def demand_of_four_runs() -> Samples:
    samples = Samples()
    for value, (namespace, run) in enumerate([("team", "pong"), ("team", "breakout"), ("other", "pong"), ("team", "")]):
        labels = {"namespace": namespace} | ({"run": run} if run else {})
        samples.add(0.0, DEMAND, labels, 1.5 + value)
    return samples


def adapters_query(metric: dict[str, Any], namespace: str) -> str:
    """What prometheus-adapter asks for a metric of an autoscaler: its template with the labels of the selector."""
    (rule,) = load("autoscaling-hpa", "adapter-rule.yaml")["externalRules"]
    assert rule["name"]["as"] == metric["name"]
    assert DEMAND == promql_parser.parse(rule["seriesQuery"].replace('!=""', '="x"')).name
    labels = metric["selector"]["matchLabels"] | {"namespace": namespace}
    query = rule["metricsQuery"].replace("<<.Series>>", DEMAND)
    return re.sub(r'<<index \.LabelValuesByName "(\w+)">>', lambda name: labels.get(name[1], ""), query)


def test_the_hpa_asks_for_the_demand_of_its_own_run(tmp_path: Path) -> None:
    resources = rendered(tmp_path, "autoscaling-hpa")
    scaler, actors = resources["HorizontalPodAutoscaler/actor"], resources["Deployment/actor"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == actors["metadata"]["name"] == "actor-pong"
    assert "replicas" not in actors["spec"]
    (metric,) = scaler["spec"]["metrics"]
    query = adapters_query(metric["external"]["metric"], scaler["metadata"]["namespace"])
    assert evaluate(query, demand_of_four_runs(), 0.0) == {frozenset(): 1.5}


def test_keda_asks_for_the_demand_of_its_own_run_or_of_none(tmp_path: Path) -> None:
    resources = rendered(tmp_path, "autoscaling-keda", "autoscaling-keda/query")
    scaler, actors = resources["ScaledObject/actor"], resources["Deployment/actor"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == actors["metadata"]["name"] == "actor-pong"
    assert "replicas" not in actors["spec"]
    (trigger,) = scaler["spec"]["triggers"]
    assert evaluate(trigger["metadata"]["query"], demand_of_four_runs(), 0.0) == {frozenset(): 1.5}
    forgotten = rendered(tmp_path, "autoscaling-keda")["ScaledObject/actor"]["spec"]["triggers"][0]
    assert evaluate(forgotten["metadata"]["query"], demand_of_four_runs(), 0.0) == {}


@pytest.mark.parametrize("component", ["autoscaling-hpa", "autoscaling-keda"])
def test_an_autoscaled_run_alerts_below_its_least_number_of_actors(tmp_path: Path, component: str) -> None:
    settings = rendered(tmp_path, component)["ConfigMap/settings"]["data"]
    assert settings["HEADRACE_CONFIG__ACTOR__COUNT"] == str(HPA.least)
    assert settings["HEADRACE_CONFIG"] == "pong"


def test_both_autoscalers_at_once_are_refused(tmp_path: Path) -> None:
    done = kustomize(tmp_path, "autoscaling-hpa", "autoscaling-keda")
    assert done.returncode != 0
    assert "/spec/replicas" in done.stderr
