"""What manifests refer to: names, labels and ports that must be those of something that is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from kustomize import Resource

CLUSTER_SCOPED = {"Namespace", "PriorityClass"}
WORKLOADS = {"Deployment", "StatefulSet"}
SCALERS = {"HorizontalPodAutoscaler", "ScaledObject"}


class Manifests:
    """Rendered resources, and what is said about them.

    resources: of one run or of several. cluster: what is in the cluster besides.
    """

    def __init__(self, resources: Iterable[Resource], cluster: Iterable[Resource] = ()) -> None:
        self.resources = list(resources)
        self.cluster = list(cluster)

    def of(self, *kinds: str) -> list[Resource]:
        return [each for each in self.resources if each["kind"] in kinds]

    def has(self, kind: str, name: str) -> bool:
        return any(each["metadata"]["name"] == name for each in self.of(kind))

    def pods(self, selector: dict[str, Any]) -> list[Resource]:
        """The workloads whose pods a selector means."""
        assert set(selector) == {"matchLabels"}, f"not understood here: {selector}"
        wanted = selector["matchLabels"].items()
        return [each for each in self.of(*WORKLOADS) if wanted <= labels_of_pods(each).items()]

    def faults(self) -> list[str]:
        """One line for everything that hangs in the air; none if all is well."""
        checks = (
            self._names, self._selectors, self._services, self._pods, self._addresses, self._budgets, self._policies,
            self._flows, self._dns, self._scalers, self._monitors,
        )  # fmt: skip
        return [fault for check in checks for fault in check()]

    # -- who is who ----------------------------------------------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        namespaces = {
            each["metadata"].get("namespace") for each in self.resources if each["kind"] not in CLUSTER_SCOPED
        }
        if None in namespaces or len(namespaces) > 1:
            yield f"namespaces {namespaces}"
        for (kind, name), number in Counter((r["kind"], r["metadata"]["name"]) for r in self.resources).items():
            if number > 1:
                yield f"{number} times {kind}/{name}"

    def _selectors(self) -> Iterator[str]:
        for workload in self.of(*WORKLOADS):
            if self.pods(workload["spec"]["selector"]) != [workload]:
                yield f"{title(workload)}: its selector means other pods than its own"

    def _services(self) -> Iterator[str]:
        for service in self.of("Service"):
            means = self.pods({"matchLabels": service["spec"]["selector"]})
            if len(means) != 1:
                yield f"{title(service)}: its selector means {[title(each) for each in means]}"
                continue
            if service["spec"].get("clusterIP") == "None" and not service["spec"].get("publishNotReadyAddresses"):
                yield f"{title(service)}: a pod that is not ready yet, or for a moment, has no name"
            ports = {port["name"] for port in ports_of(means[0])}
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    yield f"{title(service)}: {title(means[0])} has no port {port['targetPort']}"
                elif port["port"] != number_of(means[0], port["targetPort"]):
                    yield f"{title(service)}: a headless service does not translate port {port['port']}"
        for workload in self.of("StatefulSet"):
            name = workload["spec"]["serviceName"]
            if not any(
                each["metadata"]["name"] == name and each["spec"].get("clusterIP") == "None"
                for each in self.of("Service")
            ):
                yield f"{title(workload)}: no headless Service {name}"

    # -- what pods need ------------------------------------------------------------------------------------------------

    def _pods(self) -> Iterator[str]:
        classes = {each["metadata"]["name"] for each in self.cluster if each["kind"] == "PriorityClass"}
        for workload in self.of(*WORKLOADS):
            pod, at = workload["spec"]["template"]["spec"], title(workload)
            if not self.has("ServiceAccount", pod.get("serviceAccountName", "default")):
                yield f"{at}: no ServiceAccount {pod.get('serviceAccountName')}"
            if "priorityClassName" in pod and pod["priorityClassName"] not in classes:
                yield f"{at}: no PriorityClass {pod['priorityClassName']}"
            for spread in pod.get("topologySpreadConstraints", []):
                if self.pods(spread["labelSelector"]) != [workload]:
                    yield f"{at}: spreads other pods than its own"
            for kind, name in referred(pod):
                if not self.has(kind, name):
                    yield f"{at}: no {kind} {name}"
            claims = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
            volumes = {each["name"] for each in pod.get("volumes", [])} | claims
            for container in pod["containers"]:
                mounted = {each["name"] for each in container.get("volumeMounts", [])}
                for name in sorted(mounted ^ volumes):
                    yield f"{at}: volume {name} is not both there and mounted"
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    port = container[probe]["httpGet"]["port"]
                    if number_of(workload, port) is None:
                        yield f"{at}: {probe} asks port {port}, which it has not"

    def _addresses(self) -> Iterator[str]:
        """HEADRACE_LEARNER and HEADRACE_REPLAY: the learner by its service, each replay shard by its own name."""
        services = {each["metadata"]["name"]: each for each in self.of("Service")}
        shards = {
            f"{each['metadata']['name']}-{index}.{each['spec']['serviceName']}": each["spec"]["serviceName"]
            for each in self.of("StatefulSet")
            for index in range(each["spec"]["replicas"])
        }
        for workload in self.of(*WORKLOADS):
            at, variables = title(workload), environment(workload)
            for variable in ("HEADRACE_LEARNER", "HEADRACE_REPLAY"):
                for address in filter(None, variables.get(variable, "").split(",")):
                    host, _, port = address.partition(":")
                    service = services.get(shards.get(host, host))
                    if service is None:
                        yield f"{at}: {variable} names {host}, which is nobody"
                    elif int(port) not in [each["port"] for each in service["spec"]["ports"]]:
                        yield f"{at}: {variable} names port {port}, which {title(service)} has not"
            if "HEADRACE_REPLAY" in variables:
                named = set(re.findall(r"([^,:]+):", variables["HEADRACE_REPLAY"]))
                for shard in {name for name in shards if "replay" in name} ^ named:
                    yield f"{at}: shard {shard} is either not there or not in HEADRACE_REPLAY"

    # -- who stands around them ----------------------------------------------------------------------------------------

    def _budgets(self) -> Iterator[str]:
        budgets = [self.pods(each["spec"]["selector"]) for each in self.of("PodDisruptionBudget")]
        for workload in self.of(*WORKLOADS):
            if budgets.count([workload]) != 1:
                yield f"{title(workload)}: has {budgets.count([workload])} PodDisruptionBudgets"

    def _policies(self) -> Iterator[str]:
        denied = {"Ingress": [], "Egress": []}  # type: dict[str, list[Resource]]
        for policy in self.of("NetworkPolicy"):
            means = self.pods(policy["spec"]["podSelector"])
            if not means:
                yield f"{title(policy)}: means no pod"
            for direction in policy["spec"]["policyTypes"]:
                denied[direction] += means
            for rule in policy["spec"].get("ingress", []):
                for port in rule["ports"]:
                    for workload in means:
                        if number_of(workload, port["port"]) is None:
                            yield f"{title(policy)}: {title(workload)} has no port {port['port']}"
        for workload in self.of(*WORKLOADS):
            for direction, means in denied.items():
                if workload not in means:
                    yield f"{title(workload)}: {direction} is not denied"

    def _flows(self) -> Iterator[str]:
        """What one side lets out, the other must let in, and the other way round."""
        for flow in self.flows("egress") ^ self.flows("ingress"):
            yield f"{' to '.join(map(str, flow))} is let out and not in, or in and not out"

    def _dns(self) -> Iterator[str]:
        """Names are asked for at addresses that differ from cluster to cluster: port 53 is open to all of them."""
        asked = [
            self.pods(policy["spec"]["podSelector"])
            for policy in self.of("NetworkPolicy")
            for rule in policy["spec"].get("egress", [])
            if "to" not in rule
            and {(port["protocol"], port["port"]) for port in rule["ports"]} == {("UDP", 53), ("TCP", 53)}
        ]
        for workload in self.of(*WORKLOADS):
            if not any(workload in means for means in asked):
                yield f"{title(workload)}: may not ask for names"

    def flows(self, direction: str) -> set[tuple[str, str, int]]:
        """(from, to, port) of workloads, as the policies of one direction have them."""
        found = set()
        for policy in self.of("NetworkPolicy"):
            for rule in policy["spec"].get(direction, []):
                for peer in rule.get("from" if direction == "ingress" else "to", []):
                    if set(peer) != {"podSelector"}:
                        continue  # somebody from elsewhere: _dns, _monitors
                    for here in self.pods(policy["spec"]["podSelector"]):
                        for there in self.pods(peer["podSelector"]):
                            source, target = (there, here) if direction == "ingress" else (here, there)
                            for port in rule["ports"]:
                                found.add((title(source), title(target), number_of(target, port["port"]) or -1))
        return found

    def _scalers(self) -> Iterator[str]:
        if len(self.of(*SCALERS)) > 1:
            yield "more than one autoscaler"
        for scaler in self.of(*SCALERS):
            target = scaler["spec"]["scaleTargetRef"]
            means = [each for each in self.of(target["kind"]) if each["metadata"]["name"] == target["name"]]
            if not means:
                yield f"{title(scaler)}: no {target['kind']} {target['name']}"
            elif "replicas" in means[0]["spec"]:
                yield f"{title(scaler)}: {title(means[0])} has replicas of its own"
        for workload in self.of(*WORKLOADS):
            if "replicas" not in workload["spec"] and not self.of(*SCALERS):
                yield f"{title(workload)}: neither replicas nor an autoscaler"

    def _monitors(self) -> Iterator[str]:
        for monitor in self.of("PodMonitor"):
            means = self.pods(monitor["spec"]["selector"])
            if means != self.of(*WORKLOADS):
                yield f"{title(monitor)}: means {[title(each) for each in means]}"
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                for workload in means:
                    if number_of(workload, endpoint["port"]) is None:
                        yield f"{title(monitor)}: {title(workload)} has no port {endpoint['port']}"
                    elif workload not in self._open_to_others(endpoint["port"]):
                        yield f"{title(monitor)}: Prometheus may not ask {title(workload)}"
            if "run" not in monitor["spec"].get("podTargetLabels", []):
                yield f"{title(monitor)}: series do not tell their run"

    def _open_to_others(self, port: str) -> list[Resource]:
        """The workloads that pods of some other namespace may reach at a port."""
        return [
            workload
            for policy in self.of("NetworkPolicy")
            for rule in policy["spec"].get("ingress", [])
            if any("namespaceSelector" in peer for peer in rule["from"])
            and port in [each["port"] for each in rule["ports"]]
            for workload in self.pods(policy["spec"]["podSelector"])
        ]


def title(resource: Resource) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def labels_of_pods(workload: Resource) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def ports_of(workload: Resource) -> list[dict[str, Any]]:
    return [port for each in workload["spec"]["template"]["spec"]["containers"] for port in each["ports"]]


def number_of(workload: Resource, port: str | int) -> int | None:
    """The number of a container port that is named, or numbered, `port`."""
    return next(
        (each["containerPort"] for each in ports_of(workload) if port in (each["name"], each["containerPort"])), None
    )


def referred(pod: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, name) of the ConfigMaps, Secrets and claims that a pod's specification names."""
    for volume in pod.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for container in pod["containers"]:
        sources = [*container.get("envFrom", []), *(each.get("valueFrom", {}) for each in container.get("env", []))]
        for source in sources:
            for kind, keys in (
                ("ConfigMap", ("configMapRef", "configMapKeyRef")),
                ("Secret", ("secretRef", "secretKeyRef")),
            ):
                for key in keys:
                    if key in source:
                        yield kind, source[key]["name"]


def environment(workload: Resource) -> dict[str, str]:
    """The first container's variables with $(NAME) put in as a kubelet does: from those further up, else left alone."""
    variables: dict[str, str] = {}
    for each in workload["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in each:
            put = re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), each["value"])
            variables[each["name"]] = put
    return variables
