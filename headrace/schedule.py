"""A number that may change over the run: the learning rate, the entropy cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator


def refuse_bool(value: Any) -> Any:
    """Validator of numbers: pydantic would read `true` as 1."""
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


Whole = Annotated[int, BeforeValidator(refuse_bool)]
Number = Annotated[float, BeforeValidator(refuse_bool)]


class Schedule(BaseModel):
    """Linear from `start` to `end` over the first `steps` trained steps, then constant.

    In YAML it is either a plain number (constant) or `{start: 0.001, end: 0, steps: 1_000_000}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    start: Number = Field(ge=0)
    """Value before the first trained step."""
    end: Number = Field(ge=0)
    """Value from `steps` trained steps on."""
    steps: Whole = Field(ge=1)
    """Length of the change, in trained steps (valid ticks that the learner consumed)."""

    @classmethod
    def constant(cls, value: float) -> Schedule:
        return cls(start=value, end=value, steps=1)

    def value(self, steps: int) -> float:
        """The value after `steps` trained steps."""
        if steps >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * max(steps, 0) / self.steps

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"start": value, "end": value, "steps": 1}
        return value

    @model_serializer(mode="plain")
    def _to_plain(self) -> Any:
        if self.start == self.end:
            return self.start
        return {"start": self.start, "end": self.end, "steps": self.steps}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "minimum": 0}, handler(core_schema)]}
