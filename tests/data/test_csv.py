"""CSV: every byte outside the label cells stays, and bad files are refused without a word about a label."""

from __future__ import annotations

import csv
import io
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.data import csv as csvscan
from labeldp.data.csv import cell_text, open_csv
from labeldp.data.request import Sealer, TableError, checked
from labeldp.data.tables import privatize, read_private, verify_file
from tests.data.tablehelp import names, refused

# At this epsilon the answer is the label, for all that a test can tell.
TELL = 60.0


def run(folder, data: bytes, label="y", classes=("a", "b"), epsilon=TELL, suffix=".csv", **more) -> bytes:
    source, target = folder / f"in{suffix}", folder / f"out{suffix}"
    for old in folder.iterdir():
        old.unlink()
    source.write_bytes(data)
    privatize(source, target, label=label, classes=classes, epsilon=epsilon, **more)
    assert source.read_bytes() == data
    return target.read_bytes()


def run_in_blocks(folder, data: bytes, block: int, label="y", classes=("a", "b"), delimiter=",", epsilon=TELL) -> bytes:
    source, target = folder / "in.csv", folder / "out.csv"
    source.write_bytes(data)
    request = checked(label, classes, epsilon)
    sealer = Sealer(request, SecureRandom(seed=1))
    open_csv(source, delimiter).writer(request).write(target, sealer, lambda rows, part: None, block)
    return target.read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"x,y,z\n1,a,2\n3,b,4\n",
        b"x,y,z\n1,a,2\n3,b,4",
        b"x,y,z\r\n1,a,2\r\n3,b,4\r\n",
        b"x,y,z\r\n1,a,2\n3,b,4\r\n",
        b"y,x\na,1\nb,2\n",
        b"x,y\n1,a\n2,b\n",
        b"x,y\r\n1,a\r\n2,b",
        b"y\na\nb\n",
        b"y\r\na\r\nb\r\n",
        b"y\na",
        b"y\n",
        b"y",
        b"x,y\r\n",
        b"\xef\xbb\xbfy,x\na,1\n",
        b'\xef\xbb\xbf"y",x\na,1\n',
        b'"x ""1""","y","z,\n"\n" 1 ",a,"2,\n""3"""\n',
        b'x,y,z\n"",a,""\n,b,\n',
        b"x,y\n1,a\n2,b\n\n\r\n\n",
        b"x,y\n\n\n",
        "näme,y\nπ,a\n😀,b\n".encode(),
        b"n,y\n\xff\xfe,a\n",
        b"x,y,x\n1,a,2\n",
    ],
)
def test_every_byte_stays_where_the_answer_is_the_label(tmp_path, data):
    assert run(tmp_path, data) == data
    assert verify_file(tmp_path / "out.csv") == ()


def test_only_the_label_cell_changes(tmp_path):
    data = b'x,y,z\n 1 ,"a",+2.0\n3,b,"a"\n'
    assert run(tmp_path, data) == b'x,y,z\n 1 ,a,+2.0\n3,b,"a"\n'
    assert run(tmp_path, data, classes=["a", "b", "c"], epsilon=0, rng=SecureRandom(seed=0)).startswith(b"x,y,z\n 1 ,")


def test_classes_that_need_quotes_are_quoted(tmp_path):
    classes = ["a,b", 'say "x"', "two\nlines", "", " spaced "]
    cells = [cell_text(name, b",") for name in classes]
    data = b"y,x\n" + b"".join(cell + b",1\n" for cell in cells)
    assert cells == [b'"a,b"', b'"say ""x"""', b'"two\nlines"', b'""', b" spaced "]
    assert run(tmp_path, data, classes=classes) == data
    assert read_private(tmp_path / "out.csv").labels.responses.tolist() == [0, 1, 2, 3, 4]


def test_classes_that_differ_in_quotes_are_told_apart(tmp_path):
    data = b'y\n"a"\n"""a"""\na\n'
    assert run(tmp_path, data, classes=['"a"', "a"]) == b'y\na\n"""a"""\na\n'


def test_quoting_of_the_original_cell_never_survives(tmp_path):
    one = run(tmp_path, b'y\n"a"\na\n', classes=["a"])
    assert one == b"y\na\na\n"


@pytest.mark.parametrize(
    ("suffix", "delimiter", "mark"), [(".tsv", None, b"\t"), (".txt", "|", b"|"), (".csv", ";", b";")]
)
def test_other_delimiters(tmp_path, suffix, delimiter, mark):
    data = b"x,1%sy\n1,5%sa\n2%sb\n".replace(b"%s", mark)
    assert run(tmp_path, data, suffix=suffix, delimiter=delimiter) == data
    assert read_private(tmp_path / f"out{suffix}").labels.responses.tolist() == [0, 1]


def test_the_output_does_not_depend_on_a_label_at_epsilon_0(tmp_path):
    rows = [(f"{i},v{i}", "aab"[i % 3]) for i in range(500)]

    def table(labels):
        return b"x,v,y,z\n" + b"".join(
            f'{x},{y},"q""{i}"\n'.encode() for i, ((x, _), y) in enumerate(zip(rows, labels, strict=True))
        )

    truth = [y for _, y in rows]
    other = ["b" if i == 123 else y for i, y in enumerate(truth)]
    assert truth != other
    one = run(tmp_path, table(truth), epsilon=0, rng=SecureRandom(seed=5))
    first = (tmp_path / "out.csv.certificate.json").read_text()
    two = run(tmp_path, table(other), epsilon=0, rng=SecureRandom(seed=5))
    assert one == two
    second = (tmp_path / "out.csv.certificate.json").read_text()
    assert [a for a in first.splitlines() if "created" not in a and "checksum" not in a] == [
        b for b in second.splitlines() if "created" not in b and "checksum" not in b
    ]


def test_classes_of_other_lengths_or_quoted_leave_no_trace(tmp_path):
    plain = b"x,y\n" + b"1,a\n" * 50
    mixed = b"x,y\n" + b'1,a\n1,long name\n1,"a"\n1,a\n1,"long name"\n' * 10
    outs = [
        run(tmp_path, data, classes=["a", "long name"], epsilon=0, rng=SecureRandom(seed=5)) for data in (plain, mixed)
    ]
    assert outs[0] == outs[1]


# -- an oracle ------------------------------------------------------------------------------------------------

CELL = st.text(st.sampled_from("ab\",;\r\n é😀\t'0"), max_size=6)
CLASSES = ("a", "b,", 'c"', "d\n", "é", "")


@st.composite
def tables(draw):
    width, place = draw(st.integers(1, 4)), 0
    place = draw(st.integers(0, width - 1))
    header = [f"c{i}" if i != place else "y" for i in range(width)]
    body = draw(
        st.lists(st.tuples(st.lists(CELL, min_size=width, max_size=width), st.sampled_from(CLASSES)), max_size=8)
    )
    rows = [[*cells[:place], name, *cells[place + 1 :]] for cells, name in body]
    out = io.StringIO(newline="")
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    # Some versions of the csv module leave a carriage return unquoted when lines end with "\n".
    safe = ending == "\r\n" or not any("\r" in cell for row in rows for cell in row)
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])) if safe else csv.QUOTE_ALL
    csv.writer(out, quoting=quoting, lineterminator=ending).writerows([header, *rows])
    text = out.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix(ending)
    return header, rows, place, (draw(st.sampled_from(["", "\ufeff"])) + text).encode()


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 40), st.booleans())
def test_python_csv_agrees_and_all_other_bytes_stay(tmp_path_factory, table, block, keep):
    header, rows, place, data = table
    folder = tmp_path_factory.mktemp("oracle")
    out = run_in_blocks(folder, data, block, classes=CLASSES, epsilon=TELL if keep else 0)
    parsed = list(csv.reader(io.StringIO(out.decode().removeprefix("\ufeff"), newline="")))
    if len(header) == 1:
        parsed = [row for row in parsed if row]
    assert parsed[0] == header
    assert [row[:place] + row[place + 1 :] for row in parsed[1:]] == [row[:place] + row[place + 1 :] for row in rows]
    assert all(row[place] in CLASSES for row in parsed[1:])
    if keep:
        assert [row[place] for row in parsed[1:]] == [row[place] for row in rows]
        # Put the original spelling back, cell by cell: what is left must be the source.
        assert _without(out, place, len(header)) == _without(data, place, len(header))


def _without(data: bytes, place: int, width: int) -> bytes:
    """The file without the cells of one column, by a reader that walks byte by byte."""
    kept, column, quoted = bytearray(), 0, False
    body = data.removeprefix(csvscan.BOM)
    kept += data[: len(data) - len(body)]
    for i, byte in enumerate(body):
        char = bytes([byte])
        quoted ^= char == b'"'
        line_end = not quoted and (char == b"\n" or (char == b"\r" and body[i + 1 : i + 2] == b"\n"))
        separator = not quoted and char == b","
        if separator or line_end or column != place:
            kept += char
        column = column + 1 if separator else 0 if char == b"\n" and not quoted else column
    return bytes(kept)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('ab",\r\n'), max_size=25), st.integers(1, 30))
def test_any_text_is_refused_or_understood_as_python_csv_does(tmp_path_factory, text, block):
    folder = tmp_path_factory.mktemp("any")
    data = b"x,y\n" + text.encode()
    try:
        out = run_in_blocks(folder, data, block, classes=CLASSES, epsilon=TELL)
    except TableError:
        return
    rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    assert list(csv.reader(io.StringIO(out.decode(), newline=""), strict=True)) == rows
    assert {len(row) for row in rows} <= {0, 2}


def test_block_boundaries_at_every_offset(tmp_path):
    data = b'\xef\xbb\xbfx,"y",z\r\n"1,\r\n""q""",a,\r\n,"b",""\n3,a,"\n"\r\n4,b,5\r\n\r\n\n'
    expected = data.replace(b'"b"', b"b")
    for block in range(1, len(data) + 2):
        assert run_in_blocks(tmp_path, data, block) == expected


def test_errors_are_the_same_for_every_block_size(tmp_path):
    good = b"".join(b"%d,a\n" % i for i in range(20))
    for bad, words in [
        (b"5\n", "has 1 fields"),
        (b'5",a\n', "quote inside"),
        (b"\n", "is blank"),
        (b"5\r6,a\n", "carriage"),
    ]:
        for block in (1, 2, 3, 7, 50, 1000):
            with pytest.raises(TableError, match=f"data row 21 {words}|data row 21 has a {words}"):
                run_in_blocks(tmp_path, b"x,y\n" + good + bad + good, block)


# -- refusals -------------------------------------------------------------------------------------------------

SECRET = ("TOPSECRET", "also-secret")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no header"),
        (b"\n\n", "no header"),
        (b"\xef\xbb\xbf", "no header"),
        (b"x,z\n1,2\n", "label: there is no single column 'y'"),
        (b"x,Y\n1,2\n", "did you mean 'Y'"),
        (b"y,x,y\na,1,b\n", "2 of its 3 columns have that name"),
        (b"x,y\n1,a\n2,a,TOPSECRET\n", "data row 2 has 3 fields where the header has 2"),
        (b"x,y\n1,a\nTOPSECRET\n", "data row 2 has 1 fields"),
        (b"x,y\n1,a\n\n2,a\n", "data row 2 is blank"),
        (b"x,y\n1,a\n\n2,a", "data row 2 is blank"),
        (b"y\na\n\nb\n", "data row 2 is blank"),
        (b'x,y\n1,a\n1,TOP"SECRET\n', "data row 2 has a quote inside"),
        (b'x,y\n1,a\n1, "TOPSECRET"\n', "data row 2 has a quote inside"),
        (b'x,y\n1,a\n1,"TOPSECRET"x\n', "data row 2 has a quote inside"),
        (b'x,y\n1,a\n1,"TOPSECRET\n1,a\n', "data row 2 or a later one has a quote that is never closed"),
        (b'x"y,y\n1,a\n', "the header has a quote inside"),
        (b'"x,y\n1,a\n', "the header or a later one has a quote that is never closed"),
        (b"x,y\r1,a\r2,b\r", "header has a carriage return"),
        (b"x,y\n1,a\n2,TOPSECRET\r3,a\n", "data row 2 has a carriage return"),
        (b"x,y\n1,TOPSECRET\r", "data row 1 .*carriage return"),
        (b"x,y\n1,a\r\r\n", "data row 1 has a carriage return"),
        ("x,y\n1,a\n".encode("utf-16"), "not UTF-8 text but UTF-16"),
        (b"x,y\n1,a\n\0\0\n", "data row 1 or a later one holds a NUL"),
        (b"x,y\n1,a\n2,TOPSECRET\n3,\n4,also-secret\n5,\n", "2 of 5 labels .* not among .* and 2 are missing"),
        (b"x,y\n1,a\n2, a\n", "1 of 2 labels"),
        (b'x,y\n1,""\n', "1 of 1 labels read so far are missing"),
    ],
)
def test_bad_files_are_refused(tmp_path, data, match):
    (tmp_path / "in.csv").write_bytes(data)
    refused(tmp_path / "in.csv", match, SECRET, label="y", classes=["a", "b"], epsilon=1.0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": -1}, "epsilon=-1"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"epsilon": float("inf")}, "epsilon=inf"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": True}, "epsilon=True"),
        ({"classes": []}, "classes is empty"),
        ({"epsilon": 10**400}, "epsilon=1000"),
        ({"classes": "ab"}, "give a list"),
        ({"prior_columns": "pq"}, "give a list"),
        ({"classes": ["a", "a"]}, "'a' 2 times"),
        ({"classes": ["a", "\0"]}, "not text that UTF-8"),
        ({"classes": ["a", "\ud800"]}, "not text that UTF-8"),
        ({"label": 3}, "label: 3 is not text"),
        ({"mechanism": "magic"}, "mechanism='magic'"),
        ({"mechanism": "bit-flip"}, "use Parquet"),
        ({"mechanism": "laplace-one-hot"}, "use Parquet"),
        ({"mechanism": "prior-response"}, "0 given for 2 classes"),
        ({"mechanism": "randomized-response", "prior_columns": ["p", "q"]}, "takes no prior"),
        ({"prior_columns": ["p"]}, "1 given for 2 classes"),
        ({"prior_columns": ["p", "y"]}, "contains the label column"),
        ({"prior_columns": ["p", "p"]}, "twice"),
        ({"prior_columns": ["p", "nope"]}, "prior_columns: there is no single column 'nope'"),
        ({"mechanism": "top-k-response", "prior_columns": ["p", "q"]}, "needs k"),
        ({"mechanism": "top-k-response", "prior_columns": ["p", "q"], "k": 3}, "k is 3"),
        ({"mechanism": "top-k-response", "prior_columns": ["p", "q"], "k": 0}, "k is 0"),
        ({"k": 2}, "k=2"),
        ({"delimiter": ""}, "delimiter=''"),
        ({"delimiter": ",,"}, "delimiter=',,'"),
        ({"delimiter": '"'}, "delimiter="),
        ({"delimiter": "é"}, "delimiter="),
        ({"label": "nope"}, "column 'nope'"),
        ({"target": "in.parquet"}, "differ in format"),
        ({"target": "out.xlsx"}, "no known format"),
        ({"target": "in.csv"}, "source itself"),
        ({"target": "link.csv"}, "source itself"),
        ({"target": "no/out.csv"}, "does not exist"),
        ({"target": "taken.csv"}, "never overwritten"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_charged(tmp_path, change, match):
    source = tmp_path / "in.csv"
    source.write_bytes(b"p,q,y\n1,2,a\n")
    (tmp_path / "link.csv").symlink_to(source)
    (tmp_path / "taken.csv.certificate.json").write_text("mine")
    journal = Journal.open(tmp_path / "j")
    settings = {"label": "y", "classes": ["a", "b"], "epsilon": 1.0, "journal": journal, **change}
    if "target" in settings:
        settings["target"] = tmp_path / settings["target"]
    refused(source, match, **settings)
    assert journal.queries() == ()


def test_a_source_that_is_no_file(tmp_path):
    for source in (tmp_path / "nope.csv", tmp_path):
        with pytest.raises(TableError, match=r"is not a file|is a folder"):
            privatize(source, tmp_path / "out.csv", label="y", classes=["a"], epsilon=1)


# -- priors ---------------------------------------------------------------------------------------------------


def test_priors_are_read_and_read_back(tmp_path):
    rng = np.random.default_rng(0)
    prior = rng.dirichlet([1, 1, 1], 400)
    labels = [rng.choice(["a", "b", "c"], p=p) for p in prior]
    lines = [f'{p[0]!r},"{p[1]!r}", {p[2]!r},{y}' for p, y in zip(prior.tolist(), labels, strict=True)]
    data = ("p,q,r,y\n" + "\n".join(lines) + "\n").encode()
    out = run(tmp_path, data, classes=["a", "b", "c"], epsilon=1.0, prior_columns=["p", "q", "r"])
    private = read_private(tmp_path / "out.csv")
    assert private.labels.channel.describe()["mechanism"] == "prior-response"
    assert np.isfinite(private.labels.log_likelihood()).all()
    assert out.count(b"\n") == 401
    run(
        tmp_path, data, classes=list("abc"), epsilon=1.0, prior_columns=["p", "q", "r"], mechanism="top-k-response", k=2
    )
    top = read_private(tmp_path / "out.csv").labels
    assert (top.responses != prior.argmin(axis=1)).all()


@pytest.mark.parametrize("cell", ["nan", "-1", "inf", "-inf", "1e301"])
def test_bad_priors_are_counted(tmp_path, cell):
    (tmp_path / "in.csv").write_bytes(f"p,q,y\n1,2,a\n{cell},1,a\n1,{cell},TOPSECRET\n".encode())
    match = "prior_columns: 2 of data rows 1 to 3"
    refused(tmp_path / "in.csv", match, SECRET, label="y", classes=["a", "b"], epsilon=1.0, prior_columns=["p", "q"])


@pytest.mark.parametrize("cell", ["", "x", "1,", '"1""2"'])
def test_priors_that_are_no_numbers(tmp_path, cell):
    (tmp_path / "in.csv").write_bytes(f"p;q;y\n1;2;a\n{cell};1;a\n".encode())
    settings = {"label": "y", "classes": ["a", "b"], "epsilon": 1.0, "prior_columns": ["p", "q"], "delimiter": ";"}
    refused(tmp_path / "in.csv", "no number", SECRET, **settings)


# -- money and interrupts -------------------------------------------------------------------------------------


def test_the_journal_is_charged_once_and_first(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(2.0))
    source = tmp_path / "in.csv"
    source.write_bytes(b"x,y\n1,a\n")
    privatize(source, tmp_path / "1.csv", label="y", classes=["a", "b"], epsilon=1.5, journal=journal)
    assert journal.epsilon(0) == 1.5
    with pytest.raises(BudgetExceededError):
        privatize(source, tmp_path / "2.csv", label="y", classes=["a", "b"], epsilon=1.5, journal=journal)
    assert names(tmp_path) == ["1.csv", "1.csv.certificate.json", "in.csv", "j", "j.head", "j.key"]
    source.write_bytes(b"x,y\n1,TOPSECRET\n")
    refused(source, "1 of 1", SECRET, label="y", classes=["a", "b"], epsilon=0.5, journal=journal)
    assert journal.epsilon(0) == 1.5


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_stopping_half_way_leaves_the_charge_and_nothing_else(tmp_path, monkeypatch, stop):
    source, journal = tmp_path / "in.csv", Journal.open(tmp_path / "j")
    source.write_bytes(b"x,y\n" + b"1,a\n" * 100)
    seen = []

    def report(rows, part):
        seen.append((rows, part))
        raise stop

    with pytest.raises(stop):
        privatize(source, tmp_path / "o.csv", label="y", classes=["a"], epsilon=1, journal=journal, report=report)
    assert names(tmp_path) == ["in.csv", "j", "j.head", "j.key"]
    assert journal.epsilon(0) == 1.0
    assert seen == [(100, 1.0)]


def test_zero_rows_cost_what_was_asked(tmp_path):
    run(tmp_path, b"x,y\n", epsilon=1.0)
    private = read_private(tmp_path / "out.csv")
    assert len(private.labels) == 0
    assert private.certificate is not None
    assert private.certificate.epsilon == 1.0
    assert verify_file(tmp_path / "out.csv") == ()


def test_a_record_longer_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csvscan, "MAX_RECORD_BYTES", 1 << 20)
    with pytest.raises(TableError, match="data row 2 is longer than 1 MiB"):
        run_in_blocks(tmp_path, b'x,y\n1,a\n"' + b"z" * (1 << 21), 1 << 16)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_that_may_not_be_touched(tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b"y\na\n")
    source.chmod(0)
    with pytest.raises(TableError, match="cannot be read"):
        privatize(source, tmp_path / "out.csv", label="y", classes=["a"], epsilon=1)
