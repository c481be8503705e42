"""What an algorithm may tell of an update, and the metric that shows it. Other names go into the run's files only."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import LossComponent


def show(diagnostics: Mapping[str, float], metrics: LearnerMetrics) -> None:
    """Sets the gauges of the names that are known."""
    gauges = {
        "loss": metrics.loss.labels(LossComponent.TOTAL),
        "loss_policy": metrics.loss.labels(LossComponent.POLICY),
        "loss_baseline": metrics.loss.labels(LossComponent.BASELINE),
        "loss_entropy": metrics.loss.labels(LossComponent.ENTROPY),
        "loss_td": metrics.loss.labels(LossComponent.TD),
        "entropy": metrics.entropy,
        "clipped_rho_share": metrics.clipped_rho_share,
        "explained_variance": metrics.explained_variance,
        "td_error": metrics.td_error,
        "q_value": metrics.q_value,
        "gradient_norm": metrics.gradient_norm,
        "lr": metrics.learning_rate,
    }
    for name, value in diagnostics.items():
        if name in gauges:
            gauges[name].set(value)
