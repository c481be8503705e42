"""The rate limiter of a table, in Reverb's terms: it couples inserts and samples so that neither outruns the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RateLimiter:
    """Allows an insert or a sample as long as `inserts · samples_per_insert - samples` stays within its bounds.

    min_size: no sample before the table holds this many items.
    min_diff, max_diff: the bounds of the difference.
    Source: Reverb's rate_limiter.h (Cassirer et al. 2021, arXiv 2102.04736, section 3.3).
    """

    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float
    inserts: int = 0
    samples: int = 0
    deletes: int = 0

    @classmethod
    def queue(cls, max_items: int) -> RateLimiter:
        """Each item is sampled once, and at most `max_items` lie between inserts and samples."""
        return cls(samples_per_insert=1.0, min_size=1, min_diff=0.0, max_diff=float(max_items))

    @classmethod
    def ratio(cls, samples_per_insert: float, min_size: int, error_buffer: float) -> RateLimiter:
        """Holds samples per insert at a target once the table has filled to `min_size`."""
        middle = samples_per_insert * min_size
        return cls(samples_per_insert, min_size, middle - error_buffer, middle + error_buffer)

    def can_insert(self, count: int) -> bool:
        """Whether `count` more items may be inserted now."""
        if self.inserts + count - self.deletes <= self.min_size:
            return True
        return (self.inserts + count) * self.samples_per_insert - self.samples <= self.max_diff

    def can_sample(self, count: int) -> bool:
        """Whether `count` more items may be sampled now."""
        if self.inserts - self.deletes < self.min_size:
            return False
        return self.inserts * self.samples_per_insert - self.samples - count >= self.min_diff
