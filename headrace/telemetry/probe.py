"""`python -m headrace.telemetry.probe`: whether the service in this container is alive and ready, as its exit code.

For an image's HEALTHCHECK: the port is that of HEADRACE_METRICS_BIND, and nothing is imported that takes time.
"""

from __future__ import annotations

import http.client
import os
import sys

_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}


def probe(bind: str, timeout_s: float = 3.0) -> tuple[bool, str]:
    """Whether /healthz and /readyz of the service that listens at `bind` answer 200, and what the last one said."""
    host, _, port = bind.rpartition(":")
    said = ""
    for path in ("/healthz", "/readyz"):
        connection = http.client.HTTPConnection(_ANY.get(host, host.strip("[]")), int(port), timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return False, f"{bind}: {error}"
        finally:
            connection.close()
        if answer.status != http.client.OK:
            return False, said
    return True, said


if __name__ == "__main__":
    ready, said = probe(os.environ["HEADRACE_METRICS_BIND"])
    sys.stdout.write(said + "\n")
    sys.exit(not ready)
