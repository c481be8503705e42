"""The rate limiter of a table, in Reverb's terms: it couples inserts and samples so that neither outruns the other."""

from __future__ import annotations

from dataclasses import dataclass

# The bounds are compared with so much tolerance: where both sides have just enough room, rounding must not block both.
# It is a thousandth of an item after a billion of them.
ROUNDING = 1 + 1e-12


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
    fill: int = 0  # inserts that nothing is sampled for
    inserts: int = 0
    samples: int = 0
    deletes: int = 0

    @classmethod
    def queue(cls, max_items: int) -> RateLimiter:
        """Each item is sampled once, and at most `max_items` lie between inserts and samples."""
        return cls(samples_per_insert=1.0, min_size=1, min_diff=0.0, max_diff=float(max_items))

    @classmethod
    def ratio(cls, samples_per_insert: float, min_size: int, error_buffer: float, present: int = 0) -> RateLimiter:
        """Holds samples per insert at a target once the table has filled to `min_size`.

        present: items that are there from the start; it begins as if they had been sampled at the target.
        """
        middle = samples_per_insert * min_size
        limiter = cls(samples_per_insert, min_size, middle - error_buffer, middle + error_buffer, min_size)
        limiter.inserts = present
        limiter.samples = int(samples_per_insert * max(0, present - min_size))
        return limiter

    @property
    def inserts_after_fill(self) -> int:
        """By which to divide `samples` to see the samples per insert."""
        return max(0, self.inserts - self.fill)

    def can_insert(self, count: int) -> bool:
        """Whether `count` more items may be inserted now."""
        if self.inserts + count - self.deletes <= self.min_size:
            return True
        return (self.inserts + count) * self.samples_per_insert <= (self.samples + self.max_diff) * ROUNDING

    def insertable(self, count: int) -> int:
        """How many of `count` more items may be inserted now."""
        if self.can_insert(count):
            return count
        allowed, refused = 0, count  # whatever is allowed, less is too
        while refused - allowed > 1:
            middle = (allowed + refused) // 2
            allowed, refused = (middle, refused) if self.can_insert(middle) else (allowed, middle)
        return allowed

    def can_sample(self, count: int) -> bool:
        """Whether `count` more items may be sampled now."""
        if self.inserts - self.deletes < self.min_size:
            return False
        return self.inserts * self.samples_per_insert * ROUNDING >= self.samples + count + self.min_diff
