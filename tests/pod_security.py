"""The `restricted` profile of Kubernetes' Pod Security Standards, as the namespace enforces it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"
}  # fmt: skip
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
SECCOMP = {"RuntimeDefault", "Localhost"}
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: dict[str, Any]) -> Iterator[str]:
    """What the profile would refuse in a pod's specification, one line each."""
    context = pod.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", []):
        for kind in set(volume) - {"name"} - VOLUMES:
            yield f"volume {kind}"
    for sysctl in context.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    containers = [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]
    if context.get("runAsUser") == 0:
        yield "runAsUser of all"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in SECCOMP:
        yield "seccompProfile of all"
    for container in containers:
        own = container.get("securityContext", {})
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []):
            yield "capabilities that are not dropped"
        if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities that are added"
        if own.get("runAsNonRoot", context.get("runAsNonRoot")) is not True:
            yield "runAsNonRoot"
        if own.get("runAsUser") == 0:
            yield "runAsUser"
        if own.get("seccompProfile", context.get("seccompProfile", {})).get("type") not in SECCOMP:
            yield "seccompProfile"
        if own.get("procMount", "Default") != "Default":
            yield "procMount"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "hostPort"
        asked = [*container.get("lifecycle", {}).values(), *(container.get(probe, {}) for probe in PROBES)]
        if any(each.get(how, {}).get("host") for each in asked for how in ("httpGet", "tcpSocket")):
            yield "host"
    for each in (context, *(container.get("securityContext", {}) for container in containers)):
        options = each.get("seLinuxOptions", {})
        if options.get("type") not in SELINUX or options.get("user") or options.get("role"):
            yield "seLinuxOptions"
        if each.get("windowsOptions", {}).get("hostProcess"):
            yield "hostProcess"
        if each.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in SECCOMP:
            yield "appArmorProfile"
