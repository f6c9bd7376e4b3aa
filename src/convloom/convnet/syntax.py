"""The text of a network file as sections of keys and values; no meaning yet.

The rules are those of Python 2's ConfigParser, which read these files in 2012: ``[section]`` in
column 0, ``key=value`` or ``key: value``, keys in any case, comments on lines of their own that
begin with ``#``, ``;`` or ``rem`` and behind a `` ;``, indented lines continue the value above,
``[DEFAULT]`` supplies every section, a repeated section adds to the first and the last value wins.

Where ``strict`` is off, what a person obviously meant is accepted as well, and noted: a byte order
mark, ``;`` inside brackets, ``%`` as itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from convloom.convnet.errors import ConfigError

_HEADER = re.compile(r"\[([^]]+)\]")
_ENTRY = re.compile(r"([^:=\s][^:=]*?)\s*[:=]\s*(.*)$")
_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_OPEN, _CLOSE = "[(", "])"


@dataclass(frozen=True)
class Entry:
    """One value as text, and the line it stands on."""

    text: str
    line: int


@dataclass(frozen=True)
class Section:
    """A section's values by lower-case key, in file order."""

    name: str
    line: int
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFile:
    """A file's sections in order.

    Attributes:
        name: what messages call the file.
        notes: what was accepted although the original would have refused or read it otherwise.
    """

    name: str
    sections: dict[str, Section]
    notes: tuple[str, ...] = ()


def read(path: str | Path, *, strict: bool = False) -> ConfigFile:
    """The sections of a file.

    Raises:
        ConfigError: the file cannot be opened, is not text, or breaks a rule of the syntax.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", str(path)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        rule = f"is not a text file in UTF-8: {error.reason}"
        raise ConfigError(rule, str(path), line=line) from error
    return parse(text, path.name, strict=strict)


def parse(text: str, name: str, *, strict: bool = False) -> ConfigFile:
    """The sections of a file's text; ``name`` is what messages call the file."""
    notes = []
    if text.startswith(_BOM):
        if strict:
            raise ConfigError("begins with a byte order mark; save it as plain text", name, line=1)
        notes.append(f"{name}: the byte order mark at its start was skipped")
        text = text.removeprefix(_BOM)
    sections: dict[str, Section] = {}
    for section in _sections(text, name, strict, notes):
        plain = section.name.strip()
        if plain != section.name and not strict:
            notes.append(
                f"{name}, line {section.line}: [{section.name}] is read without its blanks"
            )
            section = replace(section, name=plain)
        if section.name in sections:
            notes.append(
                f"{name}: [{section.name}] stands again in line {section.line}; the keys are "
                "merged, and the last value of a key wins"
            )
            section = replace(
                sections[section.name],
                entries={**sections[section.name].entries, **section.entries},
            )
        sections[section.name] = section
    default = sections.pop("DEFAULT", None)
    if default is not None:
        sections = {
            name: replace(section, entries={**default.entries, **section.entries})
            for name, section in sections.items()
        }
    return ConfigFile(name, sections, tuple(notes))


def _sections(text: str, name: str, strict: bool, notes: list[str]) -> Iterator[Section]:
    """Every section as it stands in the file; a repeated one comes again."""
    section: Section | None = None
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if _is_comment(line):
            continue
        if line[0].isspace() and section is not None and key:
            _continue(section.entries, key, line, number, name)
        elif header := _HEADER.match(line):
            if section is not None:
                yield section
            section, key = Section(header[1], number), ""
        elif section is None:
            raise ConfigError(
                f"{line.strip()!r} stands before the first [section]",
                name,
                "",
                line=number,
            )
        elif entry := _ENTRY.match(line):
            key = entry[1].lower()
            value = _without_comment(entry[2], strict)
            if strict and "%" in value:
                raise ConfigError(
                    "'%' starts an interpolation in the original",
                    name,
                    section.name,
                    key,
                    value,
                    number,
                )
            if key in section.entries:
                lines = f"{section.entries[key].line} and {number}"
                notes.append(
                    f"{name}: [{section.name}] {key} stands in lines {lines}; the last value counts"
                )
            section.entries[key] = Entry("" if value == '""' else value, number)
        else:
            raise ConfigError(
                f"{line.strip()!r} is neither [section] nor key=value",
                name,
                section.name,
                line=number,
            )
    if section is not None:
        yield section


def _is_comment(line: str) -> bool:
    words = line.split(None, 1)
    return not words or line[0] in "#;" or (words[0].lower() == "rem" and line[0] in "rR")


def _continue(entries: dict[str, Entry], key: str, line: str, number: int, name: str) -> None:
    """An indented line belongs to the value above, even where it looks like a key of its own."""
    entry = entries[key]
    entries[key] = replace(entry, text=f"{entry.text}\n{line.strip()}".lstrip("\n"))


def _without_comment(value: str, strict: bool) -> str:
    """Cut `` ; comment``. The original looks at the first ``;`` alone, and not at brackets."""
    depth = 0
    for at, character in enumerate(value):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == ";":
            if at and value[at - 1].isspace() and (strict or depth <= 0):
                return value[:at].strip()
            if strict:
                break
    return value.strip()
