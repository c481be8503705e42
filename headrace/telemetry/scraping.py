"""Reading what a service serves at /metrics."""

from __future__ import annotations

from http import HTTPStatus
from http.client import HTTPException, IncompleteRead
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headrace.arguments import Address

TIMEOUT_S = 5.0  # for a service to answer


class NoMetricsError(ValueError):
    """Somebody answers, but not with metrics; the message says with what."""


def scrape(url: str) -> list[Sample]:
    """All samples at an http or https URL. Loopback is asked without the proxy that other hosts may need.

    Raises:
        ConnectionError: nobody answers in time, or a gateway says so; the message is the reason alone.
        NoMetricsError: whoever answers serves something else.
    """
    is_loopback = Address(urlsplit(url).hostname or "", 0).is_loopback
    opener = build_opener(ProxyHandler({})) if is_loopback else build_opener()
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except HTTPError as error:
        error.close()
        said = f"HTTP status {error.code} ({error.reason})"
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ConnectionError(said) from None
        raise NoMetricsError(f"it answers with {said}") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        raise ConnectionError(_reason(error)) from error
    except IncompleteRead as error:
        raise ConnectionError("it left in the middle of its answer") from error
    except HTTPException as error:
        raise NoMetricsError("it does not speak HTTP") from error
    try:
        return [sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples]
    except (ValueError, IndexError) as error:  # what the parser raises for other text
        raise NoMetricsError("what it serves are no metrics in Prometheus' format") from error


def _reason(error: Exception) -> str:
    """In a few words; urllib wraps what happened while it connected."""
    cause = error.reason if isinstance(error, URLError) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
