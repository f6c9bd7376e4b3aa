"""Typed values out of a section: numbers, flags, lists of one entry an input.

Every error names the file, the section, the key, the value and the rule. A section remembers what
was asked for, so that keys nobody asked for can be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from convloom.convnet.errors import ConfigError
from convloom.convnet.syntax import Section

T = TypeVar("T")

_TRUE = ("1", "yes", "true", "on")
_FALSE = ("0", "no", "false", "off")
_INTEGER = re.compile(r"[+-]?0*([0-9]+)")
#: The largest whole number, and the largest number that float32 holds.
_LARGEST_INTEGER, _LARGEST = 2**31 - 1, 3.4028234e38


def split_list(text: str, separators: str = ",") -> list[str]:
    """The parts of a list, cut at separators outside brackets; blanks around a part are dropped."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def plain_float(text: str) -> float:
    """A number as the files write it: Python's own ``1_000`` and digits of other scripts are none.

    Raises:
        ValueError: anything else.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


class Values:
    """One section's values.

    Args:
        file: what messages call the file.
        section: the section.
        strict: lists need one entry for every input, as in 2012; otherwise a single entry serves
            all of them.
    """

    def __init__(self, file: str, section: Section, *, strict: bool = False) -> None:
        self.file = file
        self.section = section
        self.strict = strict
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._asked.add(key.lower())
        return key.lower() in self.section.entries

    def unknown(self) -> Iterator[str]:
        """Keys that nobody asked for, in file order."""
        return (key for key in self.section.entries if key not in self._asked)

    def error(self, rule: str, key: str = "") -> ConfigError:
        """What is wrong with this section, or with one key of it."""
        entry = self.section.entries.get(key.lower())
        text, line = (entry.text, entry.line) if entry else ("", self.section.line)
        if "\n" in text:
            rule += "; indented lines below belong to it, keys begin in the first column"
        return ConfigError(rule, self.file, self.section.name, key, text, line)

    def text(self, key: str, default: str | None = None) -> str:
        """A value as it stands; without a default the key is required."""
        if key in self:
            return self.section.entries[key.lower()].text
        if default is None:
            raise self.error("is missing", key)
        return default

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names, at least one."""
        names = tuple(split_list(self.text(key)))
        if not all(names):
            raise self.error("needs names, separated by commas", key)
        return names

    def integer(self, key: str, default: int | None = None, least: int | None = None) -> int:
        """A whole number, at least ``least``."""
        return self._one(key, default, lambda text: self._integer(key, text, least))

    def number(self, key: str, default: float | None = None, least: float | None = None) -> float:
        """A finite number, at least ``least``."""
        return self._one(key, default, lambda text: self.as_number(key, text, least))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """1, yes, true, on; or 0, no, false, off."""
        return self._one(key, default, lambda text: self._flag(key, text))

    def integers(
        self, key: str, count: int, default: int | None = None, least: int | None = None
    ) -> tuple[int, ...]:
        """A whole number for each of ``count`` inputs."""
        return self._list(key, count, default, lambda text: self._integer(key, text, least))

    def numbers(
        self, key: str, count: int, default: float | None = None, least: float | None = None
    ) -> tuple[float, ...]:
        """A finite number for each of ``count`` inputs."""
        return self._list(key, count, default, lambda text: self.as_number(key, text, least))

    def flags(self, key: str, count: int, default: bool | None = None) -> tuple[bool, ...]:
        """A flag for each of ``count`` inputs."""
        return self._list(key, count, default, lambda text: self._flag(key, text))

    def texts(self, key: str, count: int, default: str | None = None) -> tuple[str, ...]:
        """A text for each of ``count`` inputs, cut at commas outside brackets."""
        return self._list(key, count, default, str)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; case counts."""
        word = self.text(key, default)
        if word not in choices:
            raise self.error(f"must be one of {', '.join(choices)}", key)
        return word

    def _one(self, key: str, default: T | None, read: Callable[[str], T]) -> T:
        if key not in self and default is not None:
            return default
        return read(self.text(key))

    def as_number(self, key: str, text: str, least: float | None = None) -> float:
        """A text that is (a part of) a key's value as a finite number, at least ``least``."""
        try:
            value = plain_float(text)
        except ValueError:
            raise self.error(f"must be a number, not {text!r}", key) from None
        if not abs(value) <= _LARGEST:
            raise self.error("must be a finite number, at most 3.4e38 in size", key)
        return self._at_least(key, value, least)

    def _list(
        self, key: str, count: int, default: T | None, read: Callable[[str], T]
    ) -> tuple[T, ...]:
        if key not in self and default is not None:
            return (default,) * count
        parts = split_list(self.text(key))
        if len(parts) == 1 and not self.strict:
            parts *= count
        if len(parts) != count:
            alone = "" if self.strict else ", or one for all of them"
            wanted = f"{count} values, one for each input{alone}" if count > 1 else "one value"
            raise self.error(f"needs {wanted}", key)
        return tuple(read(part) for part in parts)

    def _integer(self, key: str, text: str, least: int | None) -> int:
        match = _INTEGER.fullmatch(text)
        if match is None:
            raise self.error(f"must be a whole number, not {text!r}", key)
        if len(match[1]) > 10 or int(match[1]) > _LARGEST_INTEGER:
            raise self.error(f"must be at most {_LARGEST_INTEGER} in size", key)
        value = int(match[1]) * (-1 if text.startswith("-") else 1)
        return self._at_least(key, value, least)

    def _at_least(self, key: str, value: T, least: T | None) -> T:
        if least is not None and value < least:  # type: ignore[operator]
            raise self.error(f"must be at least {least:g}", key)
        return value

    def _flag(self, key: str, text: str) -> bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self.error(f"must be 1, yes, true, on, 0, no, false or off, not {text!r}", key)
