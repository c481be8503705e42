"""A silent peer is left soon, and one behind a slow link is given the time that its messages take."""

from __future__ import annotations

from headrace.wire.messages import SILENCE_S
from headrace.wire.silence import MOST_SILENCE_S, Silence


def test_a_peer_that_says_nothing_is_gone_after_the_limit() -> None:
    silence = Silence(100.0)
    assert not silence.is_too_long(100.0 + SILENCE_S)
    assert silence.is_too_long(100.1 + SILENCE_S)
    silence.heard(103.0)
    assert not silence.is_too_long(103.0 + SILENCE_S)


def test_each_attempt_in_vain_gets_twice_the_time_up_to_a_bound() -> None:
    silence, limits = Silence(0.0), []
    for _ in range(5):
        silence.connected_anew(0.0)
        limits.append(silence.limit_s)
    assert limits == [2 * SILENCE_S, MOST_SILENCE_S, MOST_SILENCE_S, MOST_SILENCE_S, MOST_SILENCE_S]
    assert MOST_SILENCE_S < 30  # a peer at another address is found within 30 s


def test_small_talk_does_not_bring_the_limit_down_and_fast_messages_do() -> None:
    silence = Silence(0.0)
    silence.connected_anew(0.0)
    silence.heard(0.1)
    assert silence.limit_s == 2 * SILENCE_S
    silence.progressed(8.0)  # it took 8 s: nearly the limit, so that one more must have as much
    assert silence.limit_s == 2 * SILENCE_S
    silence.progressed(11.5)
    assert silence.limit_s == 7.0
    silence.progressed(11.6)
    assert silence.limit_s == SILENCE_S


def test_a_link_on_which_each_message_takes_longer_than_the_first_limit_gets_them_through() -> None:
    """As a window of 5.5 MB at a megabyte a second, behind as much of the connection before."""
    silence, now, sent = Silence(0.0), 0.0, 0
    while sent < 5:
        takes = 9.0
        if silence.is_too_long(now + takes):
            now += silence.limit_s + 0.1
            silence.connected_anew(now)
        else:
            now += takes
            silence.progressed(now)
            sent += 1
    assert now < 5 * 9 + 2 * SILENCE_S
