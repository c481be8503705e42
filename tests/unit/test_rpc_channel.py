"""What a client makes of errors: wait for a peer that may come back, stop at once at one that says no."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import grpc
import pytest

from headrace.errors import ComponentLost, ExitCode
from headrace.rpc import channel
from headrace.rpc.channel import RefusedError, Unary, details, is_transient, retrying

Code = grpc.StatusCode


class FakeError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, text: str | None = "went\n wrong") -> None:
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._text


class FakeMethod:
    """Answers each call with the next of `outcomes`; None never answers."""

    def __init__(self, *outcomes: str | FakeError | None) -> None:
        self.outcomes = list(outcomes)
        self.timeouts: list[float] = []
        self.cancelled = False

    def future(self, request: str, timeout: float) -> FakeMethod:
        self.timeouts.append(timeout)
        return self

    def result(self, timeout: float) -> str:
        outcome = self.outcomes[0]
        if outcome is None:
            time.sleep(timeout)
            raise grpc.FutureTimeoutError
        if len(self.outcomes) > 1:
            self.outcomes.pop(0)
        if isinstance(outcome, FakeError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        self.cancelled = True


def unary(method: Any, deadline_s: float = 5.0) -> Unary[str, str]:
    return Unary(method, "Join", "learner at here:1", deadline_s)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "RECONNECT_INITIAL_S", 0.001)
    monkeypatch.setattr(channel, "RECONNECT_MAX_S", 0.004)


@pytest.mark.parametrize(
    ("transient", "codes"),
    [
        (True, [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED]),
        (True, [Code.UNKNOWN, Code.INTERNAL, Code.CANCELLED, Code.ABORTED]),
        (False, [Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS]),
        (False, [Code.UNIMPLEMENTED, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.OUT_OF_RANGE, Code.DATA_LOSS]),
    ],
)
def test_codes_are_told_apart(transient: bool, codes: list[grpc.StatusCode]) -> None:
    assert [is_transient(FakeError(code)) for code in codes] == [transient] * len(codes)


def test_details_are_one_line() -> None:
    assert details(FakeError(Code.UNAVAILABLE)) == "UNAVAILABLE: went wrong"
    assert details(FakeError(Code.UNAVAILABLE, None)) == "UNAVAILABLE: no details"


def test_a_peer_that_comes_back_is_waited_for_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    method = FakeMethod(*[FakeError(Code.UNAVAILABLE)] * 3, "hello")
    assert retrying(unary(method), "?", limit_s=5.0, stop=threading.Event()) == "hello"
    assert "waiting for learner at here:1 (Join) since 0 s: UNAVAILABLE: went wrong" in caplog.text
    assert "learner at here:1 answered Join" in caplog.text


def test_waiting_is_logged_again_and_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOG_EVERY_S", 0.02)
    with pytest.raises(ComponentLost):
        retrying(unary(FakeMethod(FakeError(Code.UNAVAILABLE))), "?", limit_s=0.2, stop=threading.Event())
    assert 3 <= caplog.text.count("waiting for") <= 11


def test_the_limit_ends_the_wait_with_one_line() -> None:
    started = time.monotonic()
    with pytest.raises(ComponentLost) as lost:
        retrying(unary(FakeMethod(FakeError(Code.UNAVAILABLE))), "?", limit_s=0.1, stop=threading.Event())
    assert str(lost.value) == "learner at here:1 did not answer Join within 0.1 s: UNAVAILABLE: went wrong"
    assert 0.1 <= time.monotonic() - started < 2.0


def test_a_refusal_is_raised_at_once() -> None:
    method = FakeMethod(FakeError(Code.FAILED_PRECONDITION), "never asked")
    with pytest.raises(RefusedError) as refused:
        retrying(unary(method), "?", limit_s=60.0, stop=threading.Event())
    assert str(refused.value) == "learner at here:1 refused Join: FAILED_PRECONDITION: went wrong"
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert refused.value.exit_code is ExitCode.CONFIG
    assert len(method.timeouts) == 1


def test_stop_ends_a_wait_between_tries_and_a_call_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "RECONNECT_INITIAL_S", 60.0)
    for method in (FakeMethod(FakeError(Code.UNAVAILABLE)), FakeMethod(None)):
        stop = threading.Event()
        timer = threading.Timer(0.05, stop.set)
        timer.start()
        started = time.monotonic()
        assert retrying(unary(method), "?", limit_s=60.0, stop=stop) is None
        assert time.monotonic() - started < 2.0
        timer.join()
    assert method.cancelled


def test_no_try_gets_more_time_than_its_deadline_or_what_is_left_of_the_limit() -> None:
    patient = FakeMethod("hello")
    retrying(unary(patient, deadline_s=5.0), "?", limit_s=60.0, stop=threading.Event())
    hurried = FakeMethod("hello")
    retrying(unary(hurried, deadline_s=5.0), "?", limit_s=1.0, stop=threading.Event())
    assert patient.timeouts == [5.0]
    assert 0.0 < hurried.timeouts[0] <= 1.0
