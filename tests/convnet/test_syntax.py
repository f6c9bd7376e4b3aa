from __future__ import annotations

from pathlib import Path

import pytest

from convloom.convnet.errors import ConfigError
from convloom.convnet.syntax import parse, read


def values(text: str, *, strict: bool = False) -> dict[str, str]:
    """{key: value} of the one section of a file."""
    (section,) = parse(text, "f.cfg", strict=strict).sections.values()
    return {key: entry.text for key, entry in section.entries.items()}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_section_has_its_keys_in_lower_case_and_its_values_as_they_stand(ends: str) -> None:
    text = ends.join(["# comment", "[conv1]", "Type = conv", "initW:0.01", "", "; c", "rem x", ""])
    assert values(text) == {"type": "conv", "initw": "0.01"}


@pytest.mark.parametrize(
    ("line", "value", "strict"),
    [
        ("a=3 ; rgb", "3", "3"),
        ("a=3;4", "3;4", "3;4"),
        ("a=3 # rgb", "3 # rgb", "3 # rgb"),
        ("a=exp[base=0.01 ; tgtFactor=10]", "exp[base=0.01 ; tgtFactor=10]", "exp[base=0.01"),
        (
            "a=exp[base=0.01 ; tgtFactor=10] ; slow",
            "exp[base=0.01 ; tgtFactor=10]",
            "exp[base=0.01",
        ),
        ("a=1;2 ; c", "1;2", "1;2 ; c"),
        ("a=", "", ""),
        ('a=""', "", ""),
        ("a=b=c", "b=c", "b=c"),
    ],
)
def test_comments_behind_a_value(line: str, value: str, strict: str) -> None:
    assert values(f"[s]\n{line}\n") == {"a": value}
    assert values(f"[s]\n{line}\n", strict=True) == {"a": strict}


def test_percent_is_itself_and_an_interpolation_in_the_original() -> None:
    assert values("[s]\na=50%\n") == {"a": "50%"}
    with pytest.raises(ConfigError, match=r"f.cfg, line 2: \[s\] a=50% .*interpolation"):
        values("[s]\na=50%\n", strict=True)


def test_an_indented_line_continues_the_value_above() -> None:
    assert values("[s]\na=1,\n  2\n\tb=3\n") == {"a": "1,\n2\nb=3"}


def test_a_byte_order_mark_is_skipped_and_noted() -> None:
    file = parse("\ufeff[s]\na=1\n", "f.cfg")
    assert file.sections["s"].entries["a"].text == "1"
    assert "byte order mark" in file.notes[0]
    with pytest.raises(ConfigError, match="byte order mark"):
        parse("\ufeff[s]\na=1\n", "f.cfg", strict=True)


def test_a_repeated_section_adds_and_its_last_value_wins() -> None:
    file = parse("[a]\nx=1\ny=2\n[b]\nz=0\n[a]\nx=3\n", "f.cfg")
    assert list(file.sections) == ["a", "b"]
    assert {k: e.text for k, e in file.sections["a"].entries.items()} == {"x": "3", "y": "2"}
    assert "[a] stands again in line 6" in file.notes[0]


def test_the_last_of_a_repeated_key_counts_and_is_noted() -> None:
    file = parse("[a]\nEpsW=1\nx=2\nepsw=3\n", "f.cfg")
    assert file.sections["a"].entries["epsw"].text == "3"
    assert file.notes == ("f.cfg: [a] epsw stands in lines 2 and 4; the last value counts",)


def test_blanks_around_the_name_of_a_section_are_dropped_and_noted() -> None:
    file = parse("[ a ]\nx=1\n[a]\ny=2\n", "f.cfg")
    assert list(file.sections["a"].entries) == ["x", "y"]
    assert "f.cfg, line 1: [ a ] is read without its blanks" in file.notes
    assert list(parse("[ a ]\nx=1\n", "f.cfg", strict=True).sections) == [" a "]


def test_default_supplies_every_section() -> None:
    file = parse("[DEFAULT]\nx=1\n[a]\ny=2\n[b]\nx=3\n", "f.cfg")
    assert {n: {k: e.text for k, e in s.entries.items()} for n, s in file.sections.items()} == {
        "a": {"x": "1", "y": "2"},
        "b": {"x": "3"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ano[conv1a]\nx=1\n",
            r"f.cfg, line 1: 'ano\[conv1a\]' stands before the first \[section\]",
        ),
        (
            "[s]\nnonsense\n",
            r"f.cfg, line 2: \[s\] 'nonsense' is neither \[section\] nor key=value",
        ),
    ],
)
def test_what_is_no_config_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, "f.cfg")


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.cfg")
    (tmp_path / "bytes.cfg").write_bytes(b"[s]\na=\xff\n")
    with pytest.raises(ConfigError, match=r"bytes.cfg, line 2: is not a text file"):
        read(tmp_path / "bytes.cfg")
