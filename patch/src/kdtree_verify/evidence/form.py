"""Takes values out of a JSON document that may hold anything: what is not as it must be is one ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_TEXT = 4096
_LARGEST = 1 << 63


class Form:
    """One JSON object, and where it stands in its file.

    Every method raises ValueError, with the place of the value, where it is missing or is something else.
    """

    def __init__(self, value: Any, place: str = ""):
        if not isinstance(value, Mapping):
            raise ValueError(f"{place or 'the file'} is no object")
        self._value, self._place = value, place

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def count(self, name: str) -> int:
        """A whole number, 0 to 2^63."""
        value = self._value.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
            raise self._wrong(name, "no count")
        return value

    def number(self, name: str) -> float:
        """A number that is not negative; NaN and infinity are numbers, of something that went wrong."""
        value = self._value.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0 or abs(value) > 1e300:
            if isinstance(value, float) and (value != value or value == float("inf")):
                return value
            raise self._wrong(name, "no number")
        return float(value)

    def finite(self, name: str) -> float:
        """A number that is neither NaN nor infinite: times."""
        value = self.number(name)
        if not value < 1e18:
            raise self._wrong(name, "no number")
        return value

    def time(self, name: str) -> float:
        """Seconds since the epoch, before the year 5138: the calendar's functions take it."""
        value = self.finite(name)
        if not value < 1e11:
            raise self._wrong(name, "no time")
        return value

    def flag(self, name: str) -> bool:
        value = self._value.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "neither true nor false")
        return value

    def text(self, name: str) -> str:
        """At most 4,096 characters, none of them half of one, which could not be written again."""
        value = self._value.get(name)
        if not isinstance(value, str) or len(value) > _MOST_TEXT or any("\ud800" <= c <= "\udfff" for c in value):
            raise self._wrong(name, "no text")
        return value

    def maybe_count(self, name: str) -> int | None:
        return self.count(name) if name in self else None

    def maybe_number(self, name: str) -> float | None:
        return self.number(name) if name in self else None

    def maybe_text(self, name: str) -> str | None:
        return self.text(name) if name in self else None

    def form(self, name: str) -> Form:
        return Form(self._value.get(name), self._at(name))

    def forms(self, name: str) -> list[Form]:
        """Of a list of objects."""
        return [Form(each, f"{self._at(name)}[{i}]") for i, each in enumerate(self.sequence(name))]

    def sequence(self, name: str) -> Sequence[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "no list")
        return value

    def counts(self, name: str) -> dict[str, int]:
        """An object of counts, which may be missing."""
        inner = Form(self._value.get(name) or {}, self._at(name))
        return {str(key): inner.count(key) for key in inner._value}

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers, which may be missing."""
        inner = Form(self._value.get(name) or {}, self._at(name))
        return {str(key): inner.number(key) for key in inner._value}

    def maybe_numbers(self, name: str) -> list[float | None]:
        """A list of numbers and nulls."""
        items = self.sequence(name)
        if all(item is None or (type(item) is float and 0.0 <= item < 1e300) for item in items):
            return list(items)  # as it nearly always is, and there are millions
        inner = Form({str(i): value for i, value in enumerate(items)}, self._at(name))
        return [inner.maybe_number(str(i)) for i in range(len(items))]

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}".lstrip(".")

    def _wrong(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self._at(name)} is {'missing' if name not in self else what}")
