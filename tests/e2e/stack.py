"""One stack of containers under test: brought up by the compose file that users get, watched from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
CODE = Path(__file__).parent / "code"
COMPOSE_FILE = ROOT / "deploy" / "docker-compose.yml"
PROFILES = ("--profile=monitoring", "--profile=evaluator")  # else `down` of Compose v2 leaves their containers
METRICS_PORTS = {"learner": 6101, "replay": 6203, "actor": 6301, "evaluator": 6301}
GENERATIONS = {"v1": ["docker-compose"], "v2": ["docker", "compose"]}


def skip_without(generation: str) -> None:
    """Skips a test that needs a generation of Compose that is not here; CI has both."""
    command = GENERATIONS[generation]
    here = shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0
    if not here and "CI" not in os.environ:
        pytest.skip(f"Compose {generation} is not installed")


def compose_command() -> list[str]:
    """COMPOSE, or what there is: the plugin, else the program of its own."""
    if given := os.environ.get("COMPOSE"):
        return given.split()
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    assert shutil.which("docker-compose"), "neither `docker compose` nor docker-compose was found: install one"
    return ["docker-compose"]


class Stack:
    """A project of compose. `variables` are those that the compose file lists at its head."""

    def __init__(
        self,
        project: str,
        files: tuple[Path, ...] = (COMPOSE_FILE,),
        command: Sequence[str] | None = None,
        **variables: str,
    ) -> None:
        self.project = project
        self.docker = docker.from_env()
        named = ["--project-name", project, *(f"--file={path}" for path in files)]
        self._command = [*(command or compose_command()), *named]
        self.variables = {"HEADRACE_CODE": str(CODE), **variables}

    # -- compose -------------------------------------------------------------------------------------------------------

    def compose(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            env={**os.environ, **self.variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        assert done.returncode == 0, f"compose {' '.join(arguments)}:\n{done.stdout}\n{self.logs()}"
        return done.stdout

    def up(self, *arguments: str, **scale: int) -> None:
        scales = (f"--scale={service}={number}" for service, number in scale.items())
        self.compose("up", "--detach", "--no-build", *scales, *arguments)

    def down(self) -> None:
        try:
            self.compose(*PROFILES, "down", "--volumes", "--remove-orphans", "--timeout=5")
        except AssertionError as error:
            # Docker 20.10 miscounts who is in a network when many containers of it come and go at once, and keeps an
            # empty one until the daemon is started anew. The next `up` takes it as it is.
            if "has active endpoints" not in str(error) or self.containers(all=True):
                raise

    @contextmanager
    def running(self, *arguments: str, **scale: int) -> Iterator[Stack]:
        """From `up` to `down`; what the services said is shown if the test fails."""
        try:
            self.up(*arguments, **scale)
            yield self
        except BaseException:
            print(self.logs())  # noqa: T201
            raise
        finally:
            self.down()

    # -- containers ----------------------------------------------------------------------------------------------------

    def containers(self, service: str | None = None, *, all: bool = False) -> list[Container]:
        labels = [f"com.docker.compose.project={self.project}"]
        if service is not None:
            labels.append(f"com.docker.compose.service={service}")
        found = self.docker.containers.list(all=all, filters={"label": labels})
        return sorted(found, key=lambda container: int(container.labels["com.docker.compose.container-number"]))

    def container(self, service: str) -> Container:
        (container,) = self.containers(service, all=True)
        return container

    def address(self, container: Container) -> str:
        container.reload()
        networks = container.attrs["NetworkSettings"]["Networks"]
        return next((network["IPAddress"] for network in networks.values() if network["IPAddress"]), "")

    def kill(self, container: Container) -> None:
        """`kill -9` of the service's own process from outside, as the kernel does it when memory runs out.

        `docker kill` counts as a wish to stop: no restart policy answers it.
        """
        container.reload()
        tini = container.attrs["State"]["Pid"]
        children = Path(f"/proc/{tini}/task/{tini}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)

    def logs(self, service: str | None = None) -> str:
        return "\n".join(
            f"--- {container.name} ({container.status})\n{container.logs(tail=60).decode(errors='replace')}"
            for container in self.containers(service, all=True)
        )

    # -- metrics -------------------------------------------------------------------------------------------------------

    def scrape(self, container: Container) -> str:
        """The text of /metrics; raises OSError if it does not answer."""
        port = METRICS_PORTS[container.labels["com.docker.compose.service"]]
        with urllib.request.urlopen(f"http://{self.address(container)}:{port}/metrics", timeout=3) as answer:
            return str(answer.read().decode())

    def metric(self, service: str, name: str, **labels: str) -> float:
        """The sum over the service's containers, and over labels that are not named; 0 where nothing answers."""
        total = 0.0
        for container in self.containers(service):
            try:
                text = self.scrape(container)
            except (OSError, ValueError):
                continue
            total += sample(text, f"headrace_{service}_{name}", **labels)
        return total

    def wait(self, what: str, condition: Callable[[], Any], limit_s: float = 60.0, every_s: float = 0.25) -> Any:
        """Until `condition` is true; what it returned."""
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s\n{self.logs()}"
            time.sleep(every_s)
        return value

    def wait_trained(self, updates: int = 5, limit_s: float = 60.0) -> None:
        """Until that many updates more were made than now, or since the learner began anew."""
        before = self.metric("learner", "updates_total")

        def trained() -> bool:
            nonlocal before
            now = self.metric("learner", "updates_total")
            before = min(before, now)
            return now >= before + updates

        self.wait(f"{updates} more updates", trained, limit_s)


def sample(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )
