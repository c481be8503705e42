"""deploy/k8s: every overlay with every combination of components is what an API server and a reviewer would take."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jsonschema
import kubernetes_validate
import pod_security
import pytest
import references
import yaml
from kustomize import MANIFESTS, ROOT, Resource, Run, every_run, kustomize, named, render, strict_schema
from references import CLUSTER_SCOPED, WORKLOADS, Manifests, environment

from headrace.service_args import parse_actor, parse_learner, parse_replay

MINORS = ("1.31", "1.34", "1.37")
REFUSALS = (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)
RUNS = list(every_run())
EVERYTHING = Run("gpu", ("monitoring", "autoscaling-keda", "code"), name="pong")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def cluster() -> list[Resource]:
    return kustomize(MANIFESTS / "cluster")


# -- as an API server sees it ------------------------------------------------------------------------------------------


def refuse(resource: Resource, minor: str) -> str | None:
    """Why an API server of this minor version would not take it; None if it would."""
    return _refuse(json.dumps(resource), minor)


@functools.cache  # most resources are the same in many runs, and schemas are large
def _refuse(text: str, minor: str) -> str | None:
    resource = json.loads(text)
    try:
        if (schema := strict_schema(resource["kind"])) is not None:
            jsonschema.validate(resource, schema)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of a kind that is unknown, or no longer served
                kubernetes_validate.validate(resource, minor, strict=True)
    except (jsonschema.ValidationError, *REFUSALS, Warning) as refusal:
        return f"{references.title(resource)}: {refusal}"
    return None


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_it_is_valid_in_three_versions_and_nothing_hangs_in_the_air(
    run: Run, folder: Path, cluster: list[Resource]
) -> None:
    resources = render(run, folder)
    for minor in MINORS:
        assert [refused for each in resources if (refused := refuse(each, minor))] == []
    assert Manifests(resources, cluster).faults() == []
    for workload in Manifests(resources).of(*WORKLOADS):
        assert list(pod_security.violations(workload["spec"]["template"]["spec"])) == []


def test_what_a_cluster_needs_once_is_valid(cluster: list[Resource]) -> None:
    assert [refused for each in cluster for minor in MINORS if (refused := refuse(each, minor))] == []
    labels = named(cluster, "Namespace", "headrace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda r: r.update(kind="Deploymint"), id="unknown kind"),
        pytest.param(lambda r: r.update(apiVersion="extensions/v1beta1"), id="no longer served"),
        pytest.param(lambda r: r["spec"].update(replica=2), id="unknown key"),
        pytest.param(lambda r: r["spec"].update(replicas="two"), id="wrong type"),
    ],
)
def test_an_invalid_deployment_is_refused(change: Callable[[Resource], object], folder: Path) -> None:
    actor = named(render(EVERYTHING, folder), "Deployment", "actor")
    assert refuse(actor, MINORS[-1]) is None
    change(actor)
    assert refuse(actor, MINORS[-1]) is not None


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule", "ScaledObject"])
def test_an_invalid_custom_resource_is_refused(kind: str, folder: Path) -> None:
    (resource,) = (each for each in render(EVERYTHING, folder) if each["kind"] == kind)
    assert refuse(resource, MINORS[-1]) is None
    resource["spec"]["unheard"] = "of"
    assert refuse(resource, MINORS[-1]) is not None


# -- two runs ----------------------------------------------------------------------------------------------------------


def identities(resources: list[Resource]) -> set[tuple[str, str, str]]:
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in resources}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(Run(components=("monitoring",), namespace="a"), Run(components=("scraping",), namespace="b"),
                     id="a namespace each"),
        pytest.param(Run("gpu", ("monitoring", "autoscaling-hpa"), name="pong"),
                     Run("gpu", ("scraping", "autoscaling-hpa", "code"), name="breakout"), id="a suffix each"),
        pytest.param(Run(components=("scraping", "autoscaling-keda")),
                     Run(components=("scraping", "autoscaling-keda"), name="second"), id="one as shipped"),
    ],
)  # fmt: skip
def test_two_runs_share_no_name_no_selector_and_no_volume(
    first: Run, second: Run, folder: Path, cluster: list[Resource]
) -> None:
    one, other = render(first, folder), render(second, folder)
    for resources in (one, other):
        assert Manifests(resources, cluster).faults() == []
    assert not identities(one) & identities(other)
    assert claims(one)
    assert not claims(one) & claims(other)
    assert not [each for each in one + other if each["kind"] in CLUSTER_SCOPED]
    if first.namespace != second.namespace:
        return  # no selector reaches beyond its namespace
    both = Manifests(one + other, cluster)
    for resources in (one, other):
        own = Manifests(resources)
        for kind, key in SELECTORS.items():
            for each in own.of(kind):
                selector = each["spec"][key]
                selector = selector if "matchLabels" in selector else {"matchLabels": selector}
                assert both.pods(selector) == own.pods(selector), references.title(each)
        assert own.flows("ingress") <= both.flows("ingress")
    assert both.flows("ingress") == Manifests(one).flows("ingress") | Manifests(other).flows("ingress")
    assert both.flows("egress") == both.flows("ingress")


def claims(resources: list[Resource]) -> set[tuple[str, str]]:
    """(namespace, name) of the volumes that the pods of StatefulSets ask for."""
    return {
        (each["metadata"]["namespace"], f"{template['metadata']['name']}-{each['metadata']['name']}-{index}")
        for each in Manifests(resources).of("StatefulSet")
        for template in each["spec"].get("volumeClaimTemplates", [])
        for index in range(each["spec"]["replicas"])
    }


SELECTORS = {
    "Deployment": "selector",
    "StatefulSet": "selector",
    "Service": "selector",
    "PodDisruptionBudget": "selector",
    "PodMonitor": "selector",
    "NetworkPolicy": "podSelector",
}


def test_a_runs_label_and_namespace_reach_its_autoscaler(folder: Path) -> None:
    resources = render(Run("gpu", ("scraping", "autoscaling-hpa"), "team", "pong"), folder)
    (metric,) = named(resources, "HorizontalPodAutoscaler", "actor")["spec"]["metrics"]
    assert metric["external"]["metric"]["selector"]["matchLabels"]["run"] == "pong"
    resources = render(Run("gpu", ("scraping", "autoscaling-keda"), "team", "pong"), folder)
    (trigger,) = named(resources, "ScaledObject", "actor")["spec"]["triggers"]
    assert 'namespace="team"' in trigger["metadata"]["query"]
    assert 'run="pong"' in trigger["metadata"]["query"]


# -- as a reviewer sees it ---------------------------------------------------------------------------------------------


def test_pods_are_told_what_their_services_understand(folder: Path, tmp_path: Path) -> None:
    """The variables of the manifests are read as the services read them."""
    for overlay in ("cpu-dev", "gpu"):
        resources = render(Run(overlay, name="x"), folder)
        settings = named(resources, "ConfigMap", "settings")["data"]
        learner = {**settings, **environment(named(resources, "StatefulSet", "learner"))}
        learner = {name: value.replace("/runs", str(tmp_path)) for name, value in learner.items()}
        replay = environment(named(resources, "StatefulSet", "replay"))
        actor = environment(named(resources, "Deployment", "actor"))
        listens = {"HEADRACE_METRICS_BIND": "0.0.0.0:1", "HEADRACE_BIND": "0.0.0.0:2"}  # as the images have it
        args = parse_learner([], {**learner, **listens})
        assert [str(each) for each in args.replay] == ["replay-x-0.replay-x:6200"]
        assert args.config.actor.count == named(resources, "Deployment", "actor")["spec"]["replicas"]
        assert str(parse_actor([], {**actor, "HEADRACE_METRICS_BIND": "0.0.0.0:1"}).learner) == "learner-x:6100"
        assert parse_replay([], {**replay, **listens}).log_format == "json"


def test_autoscalers_ask_for_the_signal_that_is_recorded(folder: Path) -> None:
    """The same series in rules, adapter and KEDA; the same name in adapter and HPA; 1 is what it is to come to."""
    resources = render(Run("gpu", ("monitoring", "autoscaling-hpa")), folder)
    recorded = [
        rule["record"]
        for group in named(resources, "PrometheusRule", "headrace")["spec"]["groups"]
        for rule in group["rules"]
        if "actor_demand" in rule.get("record", "")
    ]
    (adapter,) = yaml.safe_load((MANIFESTS / "components/autoscaling-hpa/adapter-rule.yaml").read_text())[
        "externalRules"
    ]
    (metric,) = named(resources, "HorizontalPodAutoscaler", "actor")["spec"]["metrics"]
    (trigger,) = named(render(EVERYTHING, folder), "ScaledObject", "actor")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert [adapter["seriesQuery"].partition("{")[0]] == recorded
    assert query == f'max({recorded[0]}{{namespace="headrace", run="pong"}})'
    assert adapter["name"]["as"] == metric["external"]["metric"]["name"]
    assert set(re.findall(r'LabelValuesByName "(\w+)"', adapter["metricsQuery"])) == {"namespace", "run"}
    assert metric["external"]["metric"]["selector"]["matchLabels"].keys() >= {"run"}
    assert metric["external"]["target"] == {"type": "Value", "value": "1"}
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "1")
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_what_was_decided_stands_in_the_manifests(folder: Path) -> None:
    resources = render(EVERYTHING, folder)
    learner, replay = (named(resources, "StatefulSet", name)["spec"] for name in ("learner", "replay"))
    actor = named(resources, "Deployment", "actor")["spec"]
    pods = {
        name: each["template"]["spec"] for name, each in (("learner", learner), ("replay", replay), ("actor", actor))
    }
    graces = {name: pod["terminationGracePeriodSeconds"] for name, pod in pods.items()}
    assert graces == {"actor": 25, "replay": 120, "learner": 180}
    assert learner["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert learner["podManagementPolicy"] == replay["podManagementPolicy"] == "Parallel"
    assert pods["learner"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pods["learner"]["tolerations"]
    (term,) = pods["actor"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert {each["operator"] for each in term["matchExpressions"]} == {"DoesNotExist"}
    assert "nvidia.com/gpu.present" in {each["key"] for each in term["matchExpressions"]}
    assert {each["key"] for each in pods["actor"]["tolerations"]} >= {"cloud.google.com/gke-spot"}
    assert named(resources, "ConfigMap", "dashboard")["metadata"]["labels"]["grafana_dashboard"] == "1"
    values = {each["metadata"]["name"]: each["value"] for each in kustomize(MANIFESTS / "cluster") if "value" in each}
    assert values[pods["actor"]["priorityClassName"]] < values[pods["learner"]["priorityClassName"]]
    assert pods["learner"]["priorityClassName"] == pods["replay"]["priorityClassName"]


@pytest.mark.parametrize("overlay", ["cpu-dev", "gpu"])
def test_what_a_pod_may_use_is_asked_for(overlay: str, folder: Path) -> None:
    for workload in Manifests(render(Run(overlay), folder)).of(*WORKLOADS):
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        asked, limit = container["resources"]["requests"], container["resources"]["limits"]
        assert set(asked) == {"cpu", "memory", "ephemeral-storage"}
        assert "cpu" not in limit
        assert workload["metadata"]["name"] == "actor" or limit["memory"] == asked["memory"]
        for volume in pod["volumes"]:
            if "emptyDir" in volume:
                assert "sizeLimit" in volume["emptyDir"]
        assert ":latest" not in container["image"]
        assert ":" in container["image"]
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (10001, 10001)


@pytest.mark.waits
def test_checkov_has_nothing_to_say_beyond_what_is_explained(folder: Path, tmp_path: Path) -> None:
    checkov = shutil.which(
        "checkov", path=os.pathsep.join([str(Path(sys.prefix) / "checkov" / "bin"), os.environ["PATH"]])
    )
    if checkov is None and "CI" not in os.environ:
        pytest.skip("checkov is not installed: make checkov")
    assert checkov is not None
    for number, run in enumerate((EVERYTHING, Run(components=("monitoring", "autoscaling-hpa")))):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump_all(render(run, folder)))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all(kustomize(MANIFESTS / "cluster")))
    done = subprocess.run(
        [checkov, "--skip-download", "--framework=kubernetes", "--output=json", f"--directory={tmp_path}"],
        capture_output=True, text=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    failed = {each["check_id"] for each in report["results"]["failed_checks"]}
    assert report["summary"]["passed"] > 200
    assert failed == set(
        yaml.safe_load((MANIFESTS / "not-checked.yaml").read_text())
    )  # none more, and none for nothing


def test_rules_and_dashboard_are_those_of_compose() -> None:
    done = subprocess.run(
        [sys.executable, str(MANIFESTS / "monitoring.py"), "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_rules_of_kubernetes_are_evaluated_as_those_of_compose(folder: Path) -> None:
    rule = named(render(Run(components=("monitoring",)), folder), "PrometheusRule", "headrace")
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    assert rule["spec"]["groups"] == [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]


# -- the checks themselves ---------------------------------------------------------------------------------------------

BROKEN: dict[str, Callable[[dict[str, Resource]], object]] = {
    "a name twice": lambda r: r["Service/learner"]["metadata"].update(name="replay"),
    "another namespace": lambda r: r["Service/learner"]["metadata"].update(namespace="elsewhere"),
    "a workload's selector": lambda r: r["Deployment/actor"]["spec"]["selector"]["matchLabels"].clear(),
    "a service's selector": lambda r: r["Service/learner"]["spec"]["selector"].update(run="other"),
    "a service's target": lambda r: r["Service/learner"]["spec"]["ports"][0].update(targetPort="http"),
    "a service's port": lambda r: r["Service/learner"]["spec"]["ports"][0].update(port=80),
    "a balanced service": lambda r: r["Service/replay"]["spec"].pop("clusterIP"),
    "a service account": lambda r: pod(r["Deployment/actor"]).update(serviceAccountName="x"),
    "a priority class": lambda r: pod(r["Deployment/actor"]).update(priorityClassName="x"),
    "a config map": lambda r: container(r["StatefulSet/learner"])["envFrom"][0]["configMapRef"].update(name="x"),
    "a secret": lambda r: pod(r["Deployment/actor"])["volumes"].append({"name": "key", "secret": {"secretName": "x"}}),
    "a mount": lambda r: container(r["StatefulSet/learner"])["volumeMounts"][0].update(name="x"),
    "a volume that nobody mounts": lambda r: container(r["Deployment/actor"])["volumeMounts"].clear(),
    "a probe's port": lambda r: container(r["Deployment/actor"])["livenessProbe"]["httpGet"].update(port="x"),
    "a learner's address": lambda r: variable(r["Deployment/actor"], "LEARNER").update(value="x"),
    "an address's port": lambda r: variable(r["Deployment/actor"], "HEADRACE_LEARNER").update(value="learner:1"),
    "a shard that nobody knows": lambda r: r["StatefulSet/replay"]["spec"].update(replicas=2),
    "a shard that is not there": lambda r: variable(r["StatefulSet/learner"], "HEADRACE_REPLAY").update(
        value="replay-0.replay:6200,replay-1.replay:6200"
    ),
    "a budget": lambda r: r["PodDisruptionBudget/actor"]["spec"]["selector"]["matchLabels"].update(run="x"),
    "a policy's pods": lambda r: r["NetworkPolicy/actor"]["spec"]["podSelector"]["matchLabels"].update(run="x"),
    "a policy's port": lambda r: r["NetworkPolicy/replay"]["spec"]["ingress"][0]["ports"][0].update(port=1),
    "a flow that is let out only": lambda r: r["NetworkPolicy/learner"]["spec"]["ingress"].clear(),
    "a flow that is let in only": lambda r: r["NetworkPolicy/actor"]["spec"]["egress"].clear(),
    "what is not denied": lambda r: r["NetworkPolicy/deny"]["spec"]["podSelector"]["matchLabels"].update(run="x"),
    "an autoscaler's target": lambda r: r["HorizontalPodAutoscaler/actor"]["spec"]["scaleTargetRef"].update(name="x"),
    "replicas beside an autoscaler": lambda r: r["Deployment/actor"]["spec"].update(replicas=3),
    "a monitor's pods": lambda r: r["PodMonitor/run"]["spec"]["selector"]["matchLabels"].update(run="x"),
    "a monitor that does not tell the run": lambda r: r["PodMonitor/run"]["spec"].pop("podTargetLabels"),
    "a monitor that is not let in": lambda r: r["NetworkPolicy/scraping"]["spec"]["ingress"].clear(),
    "a name that cannot be asked for": lambda r: r["NetworkPolicy/dns"]["spec"]["egress"].clear(),
    "a name of those who are not ready": lambda r: r["Service/learner"]["spec"].pop("publishNotReadyAddresses"),
    "a monitor's port": lambda r: r["PodMonitor/run"]["spec"]["podMetricsEndpoints"][0].update(port="x"),
}  # fmt: skip


def pod(workload: Resource) -> Resource:
    found: Resource = workload["spec"]["template"]["spec"]
    return found


def container(workload: Resource) -> Resource:
    found: Resource = pod(workload)["containers"][0]
    return found


def variable(workload: Resource, name: str) -> Resource:
    (found,) = (each for each in container(workload)["env"] if each["name"] == name)
    return found


@pytest.mark.parametrize("broken", BROKEN)
def test_what_hangs_in_the_air_is_found(broken: str, folder: Path, cluster: list[Resource]) -> None:
    resources = render(Run(components=("scraping", "autoscaling-hpa")), folder)
    assert Manifests(resources, cluster).faults() == []
    BROKEN[broken]({references.title(each): each for each in resources})
    assert Manifests(resources, cluster).faults() != []


INSECURE: dict[str, Callable[[Resource], object]] = {
    "hostNetwork": lambda p: p.update(hostNetwork=True),
    "volume hostPath": lambda p: p["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    "sysctl kernel.msgmax": lambda p: p["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "privileged": lambda p: p["containers"][0]["securityContext"].update(privileged=True),
    "allowPrivilegeEscalation": lambda p: p["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
    "capabilities that are not dropped": lambda p: p["containers"][0]["securityContext"].pop("capabilities"),
    "capabilities that are added": lambda p: p["containers"][0]["securityContext"]["capabilities"].update(
        add=["NET_RAW"]
    ),
    "runAsNonRoot": lambda p: p["securityContext"].pop("runAsNonRoot"),
    "runAsUser": lambda p: p["containers"][0]["securityContext"].update(runAsUser=0),
    "runAsUser of all": lambda p: p["securityContext"].update(runAsUser=0),
    "seccompProfile": lambda p: p["securityContext"].pop("seccompProfile"),
    "seccompProfile of all": lambda p: (
        p["containers"][0]["securityContext"].update(seccompProfile={"type": "RuntimeDefault"}),
        p["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    ),
    "host": lambda p: p["containers"][0]["livenessProbe"]["httpGet"].update(host="127.0.0.1"),
    "hostPort": lambda p: p["containers"][0]["ports"][0].update(hostPort=80),
    "procMount": lambda p: p["containers"][0]["securityContext"].update(procMount="Unmasked"),
    "seLinuxOptions": lambda p: p["securityContext"].update(seLinuxOptions={"user": "root"}),
    "appArmorProfile": lambda p: p["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
}


@pytest.mark.parametrize("fault", INSECURE)
def test_what_the_restricted_profile_refuses_is_found(fault: str, folder: Path) -> None:
    spec = copy.deepcopy(pod(named(render(Run(), folder), "StatefulSet", "learner")))
    assert list(pod_security.violations(spec)) == []
    INSECURE[fault](spec)
    assert list(pod_security.violations(spec)) == [fault]
