"""`python -m headrace.telemetry.probe`: whether the service in this container is ready, as its exit code.

For an image's HEALTHCHECK: the port is that of HEADRACE_METRICS_BIND, and nothing is imported that takes time.
"""

from __future__ import annotations

import http.client
import os
import sys


def probe(bind: str, path: str = "/readyz", timeout_s: float = 3.0) -> tuple[bool, str]:
    """Whether GET `path` answers 200 on this machine at the port of `bind`, and what it said."""
    host, _, port = bind.rpartition(":")
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host == "0.0.0.0" else host.strip("[]"), int(port), timeout_s
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status == http.client.OK, answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"{bind}: {error}"
    finally:
        connection.close()


if __name__ == "__main__":
    ready, said = probe(os.environ["HEADRACE_METRICS_BIND"])
    sys.stdout.write(said + "\n")
    sys.exit(not ready)
