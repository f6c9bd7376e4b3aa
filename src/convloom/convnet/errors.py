"""What is wrong with a network file: file, section, key, rule."""

from __future__ import annotations

from convloom.ir.errors import ConvloomError


class ConfigError(ConvloomError, ValueError):
    """A layer or parameter file that cannot mean anything; names file, section, key and rule."""

    def __init__(
        self, rule: str, file: str, section: str = "", key: str = "", value: str = "", line: int = 0
    ) -> None:
        where = f"{file}, line {line}" if line else file
        place = f" [{section}]" if section else ""
        if key:
            place += f" {key}={value}" if value else f" {key}"
        self.rule = rule
        super().__init__(f"{where}:{place} {rule}" if place else f"{where}: {rule}")
