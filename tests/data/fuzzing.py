"""Tables and settings that nobody would write, through the commands that read secret labels.

Whatever comes: an exit code of 0 or 2, one sentence and no traceback, no cell of the label column that was not declared
as a class in anything printed, and either the whole output or none of it.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.commands import labeldp

SECRET = "qzSECRETzq"
CLASSES = ("no", "yes")
# What stands in a label column: classes as declared, and what must never be shown.
LABELS = st.sampled_from(
    [*CLASSES * 3, SECRET, f" {SECRET}", f"{SECRET}\t", f'"{SECRET}', "No", "", "nan", f"7{SECRET}"]
)
CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "1",
            "-2.5",
            "1e999",
            "nan",
            "inf",
            "NULL",
            "a",
            "b",
            "ä",
            "=1+1",
            "'",
            '"',
            '""',
            "\\",
            "0x1",
            "?",
            "3,14",
            "31.01.2020",
        ]
    ),
    st.text(max_size=6),
    st.integers(-(10**20), 10**20).map(str),
)
NAMES = st.sampled_from(["x", "x", "town", "y", "", "id", "a,b", 'q"', "ü", "p[0]", "__index_level_0__", "=cmd", "<b>"])
DELIMITERS = st.sampled_from([",", ",", ",", ";", "\t", "|"])


def budget(examples):
    """Return settings for so many tables, the same every time."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=quiet)


@st.composite
def csv_bytes(draw):
    """Text that is nearly a table: cells quoted or not, lines too short or too long, bytes changed."""
    between, width = draw(DELIMITERS), draw(st.integers(0, 4))
    header = [*draw(st.lists(NAMES, min_size=width, max_size=width)), "y"]
    place, lines = draw(st.permutations(range(len(header)))), [header]
    for _ in range(draw(st.integers(0, 8))):
        lines.append([*draw(st.lists(CELLS, min_size=width, max_size=width)), draw(LABELS)])
    ends, quoted = draw(st.sampled_from(["\n", "\r\n", "\r"])), draw(st.booleans())
    shown = [
        [f'"{cell}"' if quoted and '"' not in cell else cell for cell in (line[i] for i in place)] for line in lines
    ]
    if draw(st.booleans()):
        shown = [line[: draw(st.integers(0, len(line)))] + draw(st.lists(CELLS, max_size=1)) for line in shown]
    raw = bytearray(ends.join(between.join(line) for line in shown).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3)) if draw(st.booleans()) else 0):
        if raw:
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    start = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\n"]))
    return start + bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw)


@st.composite
def parquet_bytes(draw):
    """A Parquet file with columns of odd types, or the ruins of one."""
    rows = draw(st.integers(0, 8))
    kinds = [
        pa.string(),
        pa.float32(),
        pa.bool_(),
        pa.list_(pa.float64(), 2),
        pa.timestamp("us"),
        pa.binary(),
        pa.null(),
    ]
    columns = {}
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(kinds))
        value = {pa.string(): "a", pa.bool_(): True, pa.binary(): b"\xff", pa.null(): None}.get(kind, 1.5)
        value = [1.5, 2.5] if pa.types.is_fixed_size_list(kind) else 0 if pa.types.is_timestamp(kind) else value
        columns[f"x{number}"] = pa.array([draw(st.sampled_from([value, None])) for _ in range(rows)], kind)
    labels = [draw(st.one_of(LABELS, st.none())) for _ in range(rows)]
    columns["y"] = pa.array(labels, pa.string())
    if draw(st.booleans()):
        columns["y"] = columns["y"].dictionary_encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    raw = bytearray(sink.getvalue().to_pybytes())
    for _ in range(draw(st.integers(0, 3))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw)


TABLES = st.one_of(
    st.tuples(st.sampled_from([".csv", ".csv", ".tsv", ".txt"]), csv_bytes()),
    st.tuples(st.sampled_from([".parquet", ".pq"]), st.one_of(parquet_bytes(), csv_bytes())),
)
VALUES = st.one_of(
    st.sampled_from(["y", "x", "no,yes", "1", "inf", "-1", "1e-5", "auto", "rr", "regression", "t.csv", "", "cuda:9"]),
    st.integers(-3, 10**19),
    st.floats(),
    st.booleans(),
    st.lists(st.sampled_from(["no", "yes", "no", ""]), max_size=3),
)
OPTIONS = st.sampled_from([
    "table", "label", "task", "classes", "range", "epsilon", "delta", "method", "test", "drop", "user", "id",
    "delimiter", "device", "seed", "key", "sign", "store", "config", "quiet", "json", "dry-run", "epsilom", "mechanism",
    "k", "prior-columns", "budget", "journal", "number", "category", "text", "date",
])  # fmt: skip
CONFIGS = st.dictionaries(OPTIONS, VALUES, max_size=6)


def check(run, place, before, made=()):
    """Hold a finished command to what is promised above."""
    printed = run.stdout + run.stderr
    assert run.returncode in (0, 2), printed
    assert "unexpected" not in printed, printed
    assert SECRET not in printed
    after = {path.name for path in place.iterdir()}
    assert after == (before | set(made) if run.returncode == 0 else before), after - before
    if run.returncode == 2:
        assert len(run.stderr.strip().splitlines()) == 1, run.stderr


def fuzz_table(kind, content, options):
    """Give one file to every command that reads secret labels."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / f"t{kind}").write_bytes(content)
        before = {f"t{kind}"}
        options_given = ("--label", "y", "--classes", "no,yes", *options)
        out = ("--epsilon", 1, "--out", "out", "--dry-run", "--json")
        check(labeldp("train", f"t{kind}", *options_given, *out, cwd=place), place, before)
        check(labeldp("plan", f"t{kind}", *options_given, "--epsilon", 1, "--json", cwd=place), place, before)
        written = (f"out{kind}", f"out{kind}.certificate.json")
        out = ("--epsilon", 1, "--out", f"out{kind}", "--quiet")
        run = labeldp("privatize", f"t{kind}", *options_given, *out, cwd=place)
        check(run, place, before, written)
        for name in written if run.returncode == 0 else ():
            assert SECRET.encode() not in (place / name).read_bytes().replace(content, b"")


def fuzz_config(command, options):
    """Give one command settings from a file."""
    import tomli_w

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "t.csv").write_text("x,id,y\n" + "".join(f"{i},{i},{CLASSES[i % 2]}\n" for i in range(12)))
        (place / "run.toml").write_text(tomli_w.dumps({command: options}))
        fixed = ("t.csv", "--out", "out.csv", *(("--dry-run",) if command == "train" else ()))
        run = labeldp(command, *fixed, "--config", "run.toml", cwd=place)
        printed = run.stdout + run.stderr
        assert run.returncode in (0, 2), printed
        assert "unexpected" not in printed, printed
        if run.returncode == 2:
            left = {path.name for path in place.iterdir()} - {"t.csv", "run.toml"}
            assert not {name for name in left if name.startswith(("out", ".out"))}, left
