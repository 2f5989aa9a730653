"""The offsets file, and rows for a terminal, a spreadsheet or a program."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator

import pytest

from zkconsumer.admin.offset_files import MAX_FAULTS, OffsetKey, parse, render
from zkconsumer.admin.printable import printable
from zkconsumer.console import tables
from zkconsumer.console.tables import print_rows
from zkconsumer.errors import OffsetsFileError, UnknownGroupError


def test_the_file_is_the_jvm_tools_own() -> None:
    """One line PATH:OFFSET each, with a final newline, sorted by path with partitions as
    numbers."""
    offsets = {
        OffsetKey("x3", "t2", 10): 7,
        OffsetKey("x3", "t2", 9): 2**63 - 1,
        OffsetKey("x3", "t10", 0): 0,
    }
    assert render(offsets) == (
        "/consumers/x3/offsets/t10/0:0\n"
        "/consumers/x3/offsets/t2/9:9223372036854775807\n"
        "/consumers/x3/offsets/t2/10:7\n"
    )
    assert render({}) == ""


@pytest.mark.parametrize("seed", range(3))
def test_what_was_rendered_parses(seed: int) -> None:
    """All offsets survive rendering and parsing."""
    chance = random.Random(seed)
    letters = "abcXYZ019._-"
    for _ in range(50):
        offsets = {
            OffsetKey(
                "g" + "".join(chance.choices(letters, k=chance.randrange(20))),
                "t" + "".join(chance.choices(letters, k=chance.randrange(20))),
                chance.randrange(2**31),
            ): chance.choice([0, 1, 2**63 - 1, chance.randrange(2**63)])
            for _ in range(chance.randrange(20))
        }
        assert parse("f", render(offsets).encode()) == offsets


def test_the_last_newline_and_a_byte_order_mark_do_not_matter() -> None:
    """A file without its last newline, or with a byte order mark, is read the same way."""
    wanted = {OffsetKey("g", "t", 1): 5}
    for data in (b"/consumers/g/offsets/t/1:5", b"\xef\xbb\xbf/consumers/g/offsets/t/1:5\n"):
        assert parse("f", data) == wanted


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "is empty"),
        ("/consumers/g/offsets/t/1:8\r", "CR LF"),
        ("/consumers/g/offsets/t/1: 8 ", "' 8 ' is not an offset"),
        ("/consumers/g/offsets/t/1:-1", "'-1' is not an offset"),
        ("/consumers/g/offsets/t/1:+1", "is not an offset"),
        ("/consumers/g/offsets/t/1:1_0", "is not an offset"),
        ("/consumers/g/offsets/t/1:\u0661", "is not an offset"),
        ("/consumers/g/offsets/t/1:", "'' is not an offset"),
        ("/consumers/g/offsets/t/1:1:2", "is not an offset"),
        ("/consumers/g/offsets/t/1:9223372036854775808", "is above"),
        ("/consumers/g/offsets/t/1", "has no colon"),
        ("/consumers/g/offset/t/1:8", "does not begin with /consumers"),
        ("/consumers/g/offsets/t/0-1:8", "does not begin with"),
        ("/kafka/consumers/g/offsets/t/1:8", "does not begin with"),
        ("/consumers/g/offsets/t/01:8", "not the number of a partition"),
        ("/consumers/g/offsets/t/2147483648:8", "not the number of a partition"),
        ("/consumers/../offsets/t/1:8", "no such name"),
        ("/consumers/g\u0085h/offsets/t/1:8", "no such name"),
        ("/consumers/g/offsets/t\u202e/1:8", "no such name"),
        ("/consumers/good/offsets/t/0:9", "repeats the partition of line 1"),
    ],
)
def test_a_bad_line_is_named(line: str, says: str) -> None:
    """Every bad line is refused with file, line number and reason. Terminals stay safe."""
    data = f"/consumers/good/offsets/t/0:1\n{line}\n".encode()
    with pytest.raises(OffsetsFileError) as refused:
        parse("my.file", data)
    (fault,) = refused.value.faults
    assert fault.startswith("my.file:2: ")
    assert says in fault
    assert fault.isascii()
    assert fault.isprintable()


def test_all_bad_lines_are_named_up_to_a_limit() -> None:
    """One error lists all faults, up to a limit, so that a file of another kind does not flood the
    screen."""
    with pytest.raises(OffsetsFileError) as refused:
        parse("f", b"x\n/consumers/g/offsets/t/1:1\ny\n")
    assert [fault[:4] for fault in refused.value.faults] == ["f:1:", "f:3:"]
    with pytest.raises(OffsetsFileError) as refused:
        parse("f", b"x\n" * 1000)
    assert len(refused.value.faults) == MAX_FAULTS + 1
    with pytest.raises(OffsetsFileError, match="f:2: is not UTF-8"):
        parse("f", b"/consumers/g/offsets/t/1:1\n\xff\n")


EVIL = "g\x1b[2J\u202eevil\n"


def test_no_control_or_bidi_character_passes() -> None:
    """Every character outside printable ASCII is escaped. The rest is unchanged."""
    assert printable("plain-name_1 x") == "plain-name_1 x"
    assert printable(EVIL) == "g\\x1b[2J\\u202eevil\\n"
    everything = "".join(map(chr, range(0x11000)))
    assert printable(everything).isascii()
    assert printable(everything).isprintable()


def test_a_name_in_a_utf8_table_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Letters of other scripts stay as they are. What could mislead is escaped: control and
    bidirectional characters, and letters that are written from right to left."""
    for name in ("grüppe", "日本", "g\u0308", "€5", "группа"):
        assert printable(name, everywhere=False) == name
    assert printable("\u05d0b", everywhere=False) == "\\u05d0b"
    assert printable(EVIL, everywhere=False) == printable(EVIL)
    print_rows(("group",), [("grüppe",), (EVIL,)], "table")
    assert capsys.readouterr().out.splitlines() == ["GROUP", "grüppe", printable(EVIL)]


def test_a_table_for_another_terminal_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not show the letters."""
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "latin-1", write_through=True))
    print_rows(("group",), [("grüppe",)], "table")
    assert raw.getvalue() == b"GROUP\ngr\\xfcppe\n"


COLUMNS = ("group", "log_end", "owner")


def test_a_table_is_safe_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped tables have aligned columns of full width and escaped text."""
    long = "x" * 300
    print_rows(COLUMNS, [(EVIL, 5, long), ("g", None, None)], "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "GROUP                 LOG-END  OWNER",
        f"g\\x1b[2J\\u202eevil\\n        5  {long}",
        "g                           -  -",
    ]


def test_one_long_name_leaves_the_other_rows_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell of 303 characters is printed in full, and shifts only its own row."""
    long = "x" * 303
    print_rows(COLUMNS, [(long, 5, "o"), ("g", 17, None)], "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{'GROUP':<60}  LOG-END  OWNER",
        f"{long}        5  o",
        f"{'g':<60}       17  -",
    ]


ID = "readers_vm-1795946175476-24bae6d2-0"


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output a terminal of 80 columns."""
    monkeypatch.setenv("TERM", "dumb")  # for rich, it has that width, and no colours
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)


def test_a_table_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a member's long id is broken. Headings are broken after their hyphens."""
    narrow(monkeypatch)
    columns = ("group", "topic", "partition", "current_offset", "log_end_offset", "lag", "id")
    print_rows(columns, [("billing", "orders", 3, 1000, 123456789012, None, ID)], "table")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert words >= {"billing", "orders", "123456789012", "CURRENT-", "OFFSET", "PARTITION"}
    last = [line.split("│")[-1].strip() for line in lines[-3:]]
    assert "".join(last).endswith(ID)


def test_a_table_that_does_not_fit_is_a_list_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No column is hidden, no word is broken, and empty cells are left out."""
    narrow(monkeypatch)
    columns = [f"column_{number}" for number in range(12)]
    print_rows(columns, [list(range(12)), [None, *["word of a cell"] * 11]], "table")
    first, second = capsys.readouterr().out.split("\n\n")
    lines = [[*line.split()] for line in first.splitlines()]
    assert lines == [[f"COLUMN-{number}", str(number)] for number in range(12)]
    assert second.splitlines()[0].split() == ["COLUMN-1", "word", "of", "a", "cell"]
    assert len(second.splitlines()) == 11


def test_json_is_one_array(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the original names, null for missing values, and is ASCII."""
    print_rows(COLUMNS, [(EVIL, -5, None)], "json")
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == [{"group": EVIL, "log_end": -5, "owner": None}]
    print_rows(COLUMNS, [], "json")
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("how", ["table", "json", "csv"])
def test_rows_are_printed_as_they_appear(
    capsys: pytest.CaptureFixture[str], how: tables.How
) -> None:
    """The first lines do not wait for the last row, and no more rows are kept than decide the
    width of columns. Later rows of a table have the same columns, and push aside what does not
    fit."""
    printed: list[str] = []

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(3 * tables._LAID_OUT):
            if number == 2 * tables._LAID_OUT + 1:
                printed.append(capsys.readouterr().out)
            yield f"g{number}", number, None
        yield "a longer name", 5, "o"

    print_rows(COLUMNS, rows(), how)
    first, rest = printed[0], capsys.readouterr().out
    assert first.count("\n") > tables._LAID_OUT
    assert rest.count("\n") > tables._LAID_OUT / 2
    if how == "json":
        assert json.loads(first + rest)[-1] == {
            "group": "a longer name",
            "log_end": 5,
            "owner": "o",
        }
    elif how == "table":
        lines = (first + rest).splitlines()
        assert lines[:2] == ["GROUP  LOG-END  OWNER", "g0           0  -"]
        assert lines[-2:] == ["g14999    14999  -", "a longer name        5  o"]


@pytest.mark.parametrize("how", ["table", "json", "csv"])
def test_an_error_before_the_first_row_prints_nothing(
    capsys: pytest.CaptureFixture[str], how: tables.How
) -> None:
    """Not even a heading, which would look like an empty result."""

    def rows() -> Iterator[tuple[object, ...]]:
        raise UnknownGroupError("there is no group g")
        yield ()

    with pytest.raises(UnknownGroupError):
        print_rows(COLUMNS, rows(), how)
    assert capsys.readouterr().out == ""


def test_csv_holds_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that a spreadsheet would run gets an apostrophe; numbers, also negative ones, stay."""
    rows = [("=1+1", -5, "@x"), ("-x", 1, "+y"), ('a"b,c', None, EVIL), ("\tz", 2, "\rz")]
    print_rows(COLUMNS, rows, "csv")
    read = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert read == [
        list(COLUMNS),
        ["'=1+1", "-5", "'@x"],
        ["'-x", "1", "'+y"],
        ['a"b,c', "", "g\\x1b[2J\\u202eevil\\n"],
        ["'\\tz", "2", "'\\rz"],
    ]
