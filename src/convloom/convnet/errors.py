"""What is wrong with a network file: file, section, key, rule."""

from __future__ import annotations

from convloom.ir.errors import ConvloomError

#: Characters of a value, and of a rule with what it repeats of the file, in a message.
_VALUE, _RULE = 80, 400


class ConfigError(ConvloomError, ValueError):
    """A layer or parameter file that cannot mean anything; names file, section, key and rule."""

    def __init__(
        self, rule: str, file: str, section: str = "", key: str = "", value: str = "", line: int = 0
    ) -> None:
        where = f"{file}, line {line}" if line else file
        place = f" [{section}]" if section else ""
        if key:
            place += f" {key}={_shortened(value, _VALUE)}" if value else f" {key}"
        rule = _shortened(rule, _RULE)
        self.rule = rule
        super().__init__(f"{where}:{place} {rule}" if place else f"{where}: {rule}")


def _shortened(text: str, most: int) -> str:
    """A text in one line, and the beginning of a long one."""
    line = " ".join(text.splitlines())
    return line if len(line) <= most else f"{line[: most - 2]} …"
