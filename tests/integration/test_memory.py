"""What a memory is for: a task that no policy of the present observation alone can do learns with the LSTM."""

from __future__ import annotations

from pathlib import Path

from command import running

BEYOND_ANY_REFLEX = 120  # the best policy without memory stays at a mean return of about 50


def test_a_task_with_hidden_velocities_is_learnt_by_the_lstm(tmp_path: Path) -> None:
    goal = ["--stop.return_", str(BEYOND_ANY_REFLEX), "--stop.steps", "800000"]
    with running(tmp_path, ["train", "cartpole-memory", *goal]) as command:
        assert command.wait() == 0
