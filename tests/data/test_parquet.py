"""Parquet: features come out as they went in, and nothing of the original label column survives."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.budgets.journal import Journal
from labeldp.core.random import SecureRandom
from labeldp.data import parquet as parquetfile
from labeldp.data.tables import privatize, read_private, verify_file
from tests.data.tablehelp import names, refused

# At this epsilon the answer is the label, for all that a test can tell.
TELL = 60.0
SECRET = "TOPSECRET"


def run(folder, table, classes=("a", "b"), label="y", epsilon=TELL, write=None, **more):
    """Write, privatize, read back: (the source as read, the target as read, the target's bytes)."""
    source, target = folder / "in.parquet", folder / "out.parquet"
    for old in folder.iterdir():
        old.unlink()
    pq.write_table(table, source, **(write or {}))
    before = source.read_bytes()
    privatize(source, target, label=label, classes=classes, epsilon=epsilon, **more)
    assert source.read_bytes() == before
    return pq.ParquetFile(source).read(), pq.ParquetFile(target).read(), target.read_bytes()


def same_columns(old, new, label="y"):
    assert new.column_names == old.column_names
    for place, name in enumerate(old.column_names):
        if name != label:
            assert new.schema.field(place).equals(old.schema.field(place), check_metadata=True)
            assert bits(new.column(place)).equals(bits(old.column(place)))


def bits(column):
    """A column that equals another only bit for bit: NaN equals nothing, so floats are seen as integers."""
    whole = column.combine_chunks()
    kinds = {pa.float16(): pa.uint16(), pa.float32(): pa.uint32(), pa.float64(): pa.uint64()}
    return whole.view(kinds[whole.type]) if whole.type in kinds else whole


def kitchen_sink(n=6):
    nan = np.array([0x7FF8000000000001, 0x7FF0000000000002, 0xFFF8000000000003] * 2, np.uint64).view(np.float64)
    z = dt.UTC
    columns = {
        "f64": pa.array(nan),
        "f32": pa.array([1.5, None, -0.0, 0.0, float("inf"), 2], pa.float32()),
        "f16": pa.array(np.arange(6, dtype=np.float16)),
        "i8": pa.array([1, None, -128, 127, 0, 5], pa.int8()),
        "u64": pa.array([2**64 - 1, 0, 1, None, 4, 5], pa.uint64()),
        "b": pa.array([True, None, False, True, True, False]),
        "s": pa.array(["", None, "é", "x" * 100, "\0", "b"]),
        "ls": pa.array(["", None, "é", "y", "z", "b"], pa.large_string()),
        "bin": pa.array([b"", None, b"\xff\x00", b"1", b"2", b"3"]),
        "fsb": pa.array([b"ab", None, b"cd", b"ef", b"gh", b"ij"], pa.binary(2)),
        "d32": pa.array([dt.date(2020, 1, 1), None, dt.date(1, 1, 1), *[dt.date(2000, 2, 2)] * 3]),
        "ts_tz": pa.array(
            [dt.datetime(2020, 1, 1, tzinfo=z), None, *[dt.datetime(1990, 5, 5, tzinfo=z)] * 4],
            pa.timestamp("us", "Europe/Paris"),
        ),
        "ts_ns": pa.array([1, None, 3, 4, 5, 6], pa.timestamp("ns")),
        "t64": pa.array([1, None, 3, 4, 5, 6], pa.time64("us")),
        "dur": pa.array([1, None, 3, 4, 5, 6], pa.duration("ms")),
        "dec": pa.array([decimal.Decimal("1.23"), None, *[decimal.Decimal("-9.99")] * 4], pa.decimal128(10, 2)),
        "dec256": pa.array([decimal.Decimal("1.23"), None, *[decimal.Decimal("-9.99")] * 4], pa.decimal256(50, 2)),
        "list": pa.array([[1.5, None], [], None, [3.0], [4.0], [5.0]], pa.list_(pa.float64())),
        "fsl": pa.array([[1, 2]] * 6, pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"a": 1, "y": "q"}, None, {"a": None, "y": None}, *[{"a": 2, "y": "r"}] * 3]),
        "map": pa.array([[("k", 1)], None, [], [("j", 2)], [("k", 3)], []], pa.map_(pa.string(), pa.int64())),
        "dict": pa.DictionaryArray.from_arrays(pa.array([0, 2, None, 0, 1, 2], pa.int32()), ["u", "v", "w", "unused"]),
        "null": pa.nulls(6),
    }
    y = pa.array(["a", "b", "a", "b", "b", "a"])
    fields = [
        pa.field(name, column.type, metadata={"unit": name, "PARQUET:field_id": "7"} if name == "f64" else None)
        for name, column in columns.items()
    ]
    fields.insert(3, pa.field("y", pa.string(), metadata={"about": SECRET}))
    arrays = list(columns.values())
    arrays.insert(3, y)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"note": SECRET})).slice(0, n)


@pytest.mark.parametrize("chunk", [64, 4])
def test_every_other_column_is_the_same_bit_for_bit(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(parquetfile, "CHUNK_ROWS", chunk)
    old, new, raw = run(tmp_path, kitchen_sink())
    same_columns(old, new)
    bits = [table["f64"].combine_chunks().to_numpy().view(np.uint64).tolist() for table in (old, new)]
    assert bits[0] == bits[1]
    assert new["y"].to_pylist() == old["y"].to_pylist()
    assert SECRET.encode() not in raw
    assert verify_file(tmp_path / "out.parquet") == ()


@pytest.mark.parametrize(
    ("kind", "classes", "values"),
    [
        (pa.string(), ["a", "é"], ["é", "a"]),
        (pa.large_string(), ["a", "b"], ["b", "a"]),
        (pa.string_view(), ["a", "b"], ["b", "a"]),
        (pa.binary(), ["a", "b"], [b"b", b"a"]),
        (pa.bool_(), ["false", "true"], [True, False]),
        (pa.bool_(), [False, True], [True, False]),
        (pa.int8(), ["-1", "1"], [1, -1]),
        (pa.uint8(), [0, 255], [255, 0]),
        (pa.int16(), ["0", "1"], [1, 0]),
        (pa.int32(), ["0", "1"], [1, 0]),
        (pa.int64(), ["0", str(2**62 + 1)], [2**62 + 1, 0]),
        (pa.uint64(), ["0", str(2**64 - 1)], [2**64 - 1, 0]),
        (pa.float16(), ["0", "1"], [1.0, 0.0]),
        (pa.float32(), ["0.0", "1.0"], [1.0, -0.0]),
        (pa.float64(), [0, 1], [1.0, 0.0]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], ["b", "a"]),
        (pa.dictionary(pa.int32(), pa.string(), ordered=True), ["b", "a"], ["b", "a"]),
    ],
    ids=str,
)
def test_label_types_are_kept(tmp_path, kind, classes, values):
    column = pa.array([np.float16(v) for v in values] if kind == pa.float16() else values, kind)
    table = pa.table({"x": [1, 2], "y": column})
    old, new, _ = run(tmp_path, table, classes=classes)
    assert new.schema.field("y").type == old.schema.field("y").type
    assert new["y"].to_pylist() == values
    private = read_private(tmp_path / "out.parquet")
    assert sorted(private.labels.responses.tolist()) == [0, 1]
    assert private.features.equals(old.drop_columns("y"))
    assert private.classes == tuple(str(name) for name in classes)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip_of_any_table(tmp_path_factory, data):
    n = data.draw(st.integers(0, 12))
    draw = lambda values: data.draw(st.lists(st.none() | values, min_size=n, max_size=n))  # noqa: E731
    labels = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=n, max_size=n))
    table = pa.table(
        {
            "x": pa.array(draw(st.floats(width=32)), pa.float32()),
            "t": pa.array(draw(st.text(st.characters(codec="utf-8"), max_size=4)), pa.string()),
            "y": pa.array(labels, pa.string()),
            "l": pa.array(draw(st.lists(st.integers(-5, 5), max_size=3)), pa.list_(pa.int16())),
            "d": pa.array(draw(st.sampled_from(["p", "q"])), pa.string()).dictionary_encode(),
        }
    )
    write = {
        "row_group_size": data.draw(st.integers(1, 5)),
        "compression": data.draw(st.sampled_from(["NONE", "ZSTD"])),
    }
    old, new, _ = run(tmp_path_factory.mktemp("any"), table, classes=["c", "a", "b"], write=write)
    assert new.schema.remove_metadata().equals(old.schema.remove_metadata())
    assert new["x"].to_pandas().to_numpy().tobytes() == old["x"].to_pandas().to_numpy().tobytes()
    for name in ("t", "l", "y"):
        assert new[name].combine_chunks().equals(old[name].combine_chunks())
    assert new["d"].to_pylist() == old["d"].to_pylist()


def test_the_codec_is_kept(tmp_path):
    for codec, expected in [
        ("ZSTD", "ZSTD"),
        ("NONE", "UNCOMPRESSED"),
        ("GZIP", "GZIP"),
        ("LZ4", "LZ4"),
        ("SNAPPY", "SNAPPY"),
    ]:
        run(tmp_path, pa.table({"x": [1] * 9, "y": ["a"] * 9}), write={"compression": codec})
        assert pq.read_metadata(tmp_path / "out.parquet").row_group(0).column(0).compression == expected


def test_vector_answers_are_fixed_size_lists(tmp_path):
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"], "z": [1, 2, 3]})
    for mechanism, value in [("bit-flip", pa.uint8()), ("laplace-one-hot", pa.uint16())]:
        old, new, _ = run(tmp_path, table, mechanism=mechanism)
        assert new.schema.field(1).type == pa.list_(value, 2)
        same_columns(old, new)
        private = read_private(tmp_path / "out.parquet")
        assert private.labels.responses.shape == (3, 2)
        assert private.labels.responses.dtype == value.to_pandas_dtype()
        assert private.labels.hard().tolist() == [0, 1, 0]
        assert private.labels.channel.describe()["mechanism"] == mechanism
        assert verify_file(tmp_path / "out.parquet") == ()


# -- nothing survives -----------------------------------------------------------------------------------------


def leaky_source(labels, dictionary, path, row_groups=40):
    """A file that tells about its labels wherever a file can."""
    indices = pa.array([dictionary.index(name) for name in labels], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, dictionary)
    fields = [
        pa.field("x", pa.int64()),
        pa.field("y", column.type, metadata={"levels": SECRET}),
        pa.field("c", pa.string()),
    ]
    note = {
        "columns": [
            {
                "name": "y",
                "field_name": "y",
                "pandas_type": "categorical",
                "numpy_type": "int8",
                "metadata": {"num_categories": 99, "ordered": False, "extra": SECRET},
            }
        ],
        "index_columns": [],
        "attributes": {"about": SECRET},
        "pandas_version": "2",
    }
    schema = pa.schema(fields, metadata={"pandas": json.dumps(note), "stats of y": SECRET, "labeldp": SECRET})
    n = len(labels)
    table = pa.Table.from_arrays([pa.array(range(n)), column, pa.array([f"c{i % 7}" for i in range(n)])], schema=schema)
    more = {"bloom_filter_options": {"y": True}} if pa.__version__ >= "24" else {}
    pq.write_table(
        table, path, row_group_size=row_groups, write_page_index=True, sorting_columns=[pq.SortingColumn(1)], **more
    )


def test_nothing_of_the_label_column_survives(tmp_path):
    dictionary = [SECRET + "0", "a", "b", SECRET + "1"]
    leaky_source(["a", "b", "a"] * 30, dictionary, tmp_path / "in.parquet")
    assert (tmp_path / "in.parquet").read_bytes().count(SECRET.encode()) > 5
    privatize(tmp_path / "in.parquet", tmp_path / "out.parquet", label="y", classes=["b", "a", "never used"], epsilon=1)
    assert SECRET.encode() not in (tmp_path / "out.parquet").read_bytes()
    assert SECRET not in (tmp_path / "out.parquet.certificate.json").read_text()
    out = pq.ParquetFile(tmp_path / "out.parquet")
    assert set(out.schema_arrow.metadata) == {b"pandas", b"labeldp"}
    assert out.read()["y"].combine_chunks().dictionary.to_pylist() == ["b", "a", "never used"]
    assert (
        not out.metadata.row_group(0).sorting_columns if hasattr(out.metadata.row_group(0), "sorting_columns") else True
    )
    note = json.loads(out.schema_arrow.metadata[b"pandas"])
    assert note["columns"][0]["metadata"] == {"num_categories": 3, "ordered": False}
    assert "attributes" not in note


# Bit-flip is left out: at epsilon 0 it adds a coin to the bit, so under one seed the label still shows.
@pytest.mark.parametrize("mechanism", ["randomized-response", "laplace-one-hot"])
def test_at_epsilon_0_one_label_more_or_less_changes_no_byte(tmp_path, monkeypatch, mechanism):
    monkeypatch.setattr(parquetfile, "CHUNK_ROWS", 100)
    outs = []
    labels = ["a", "b", "a"] * 100
    other = [("b" if i == 150 else name) for i, name in enumerate(labels)]
    assert sum(x != y for x, y in zip(labels, other, strict=True)) == 1
    # Another label may bring another dictionary with it, and other row groups of the dictionary's pages.
    for values, dictionary, groups in [
        (labels, ["a", "b"], 40),
        (other, ["b", "a", SECRET], 40),
        (["a"] * 300, ["a"], 77),
    ]:
        for old in tmp_path.iterdir():
            old.unlink()
        leaky_source(values, dictionary, tmp_path / "in.parquet", groups)
        settings = {"label": "y", "classes": ["a", "b"], "epsilon": 0.0, "mechanism": mechanism}
        privatize(tmp_path / "in.parquet", tmp_path / "out.parquet", rng=SecureRandom(seed=3), **settings)
        outs.append((tmp_path / "out.parquet").read_bytes())
    assert outs[0] == outs[1] == outs[2]


# -- pandas ---------------------------------------------------------------------------------------------------


def frame():
    return pd.DataFrame(
        {
            "x": [1.0, 2.0, 3.0, 4.0],
            "y": pd.Categorical(["b", "a", "b", "a"], categories=[SECRET, "a", "b"]),
            "s": list("wxyz"),
        },
        index=pd.Index([5, 6, 7, 9], name="key"),
    )


def test_pandas_categories_and_index(tmp_path):
    frame().to_parquet(tmp_path / "in.parquet")
    privatize(tmp_path / "in.parquet", tmp_path / "out.parquet", label="y", classes=["a", "b"], epsilon=TELL)
    back = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(back.drop(columns="y"), frame().drop(columns="y"))
    assert back["y"].astype(str).tolist() == ["b", "a", "b", "a"]
    assert SECRET.encode() not in (tmp_path / "out.parquet").read_bytes()


@pytest.mark.parametrize("mechanism", ["randomized-response", "bit-flip"])
def test_pandas_reads_every_kind_of_answer(tmp_path, mechanism):
    for values, classes in [
        (["a", "b", "a"], "ab"),
        ([0, 1, 0], [0, 1]),
        ([0.0, 1.0, 0.0], [0, 1]),
        ([True, False, True], [True, False]),
    ]:
        for old in tmp_path.iterdir():
            old.unlink()
        pd.DataFrame({"x": [1, 2, 3], "y": values}).to_parquet(tmp_path / "in.parquet")
        privatize(
            tmp_path / "in.parquet",
            tmp_path / "out.parquet",
            label="y",
            classes=list(classes),
            epsilon=TELL,
            mechanism=mechanism,
        )
        back = pd.read_parquet(tmp_path / "out.parquet")
        assert back["x"].tolist() == [1, 2, 3]
        if mechanism == "randomized-response":
            pd.testing.assert_series_equal(back["y"], pd.read_parquet(tmp_path / "in.parquet")["y"])


def test_the_label_may_be_the_pandas_index(tmp_path):
    frame().reset_index().set_index("s").rename_axis("y2").reset_index().set_index("y").to_parquet(
        tmp_path / "in.parquet"
    )
    privatize(tmp_path / "in.parquet", tmp_path / "out.parquet", label="y", classes=["a", "b"], epsilon=TELL)
    back = pd.read_parquet(tmp_path / "out.parquet")
    assert back.index.name == "y"
    assert back.index.astype(str).tolist() == ["b", "a", "b", "a"]


# -- refusals -------------------------------------------------------------------------------------------------


def source_of(folder, table, **write):
    pq.write_table(table, folder / "in.parquet", **write)
    return folder / "in.parquet"


@pytest.mark.parametrize(
    ("column", "classes", "match"),
    [
        (pa.array(["a", SECRET, None, SECRET]), ["a"], "2 of 4 labels .* not among .* and 1 are missing"),
        (pa.array([0.0, float("nan"), 0.5, None]), ["0"], "1 of 4 .* and 2 are missing"),
        (pa.array([0, 1, 2, 77777]), ["0", "1", "2"], "1 of 4"),
        (pa.array([True, None, False, True]), ["true", "false"], "1 of 4 labels read so far are missing"),
        (pa.array([0, 1, 0, 1]), ["0", "one"], "'one' is not a value of type int64"),
        (pa.array([0, 1, 0, 1], pa.int8()), ["0", "300"], "'300' is not a value of type int8"),
        (pa.array([0.0, 1, 0, 1]), ["0", "nan"], "'nan' is not a finite"),
        (pa.array([0.0, 1, 0, 1]), ["1", "1.0"], "same value"),
        (pa.array([True, False, True, True]), ["yes", "no"], "'yes' is not a value of type bool"),
        (pa.array([[1], [2], [3], [4]]), ["1"], "the column has type list"),
        (pa.array([{"q": 1}] * 4), ["1"], "the column has type struct"),
        (pa.array([dt.date(2020, 1, 1)] * 4), ["2020-01-01"], "the column has type date32"),
        (pa.nulls(4), ["a"], "the column has type null"),
    ],
)
def test_bad_labels_are_refused(tmp_path, column, classes, match):
    source = source_of(tmp_path, pa.table({"x": range(4), "y": column}))
    refused(source, match, (SECRET, "77777"), label="y", classes=classes, epsilon=1.0)


def test_bad_columns_are_refused_before_anything_is_charged(tmp_path):
    journal = Journal.open(tmp_path / "j")
    table = pa.Table.from_arrays([pa.array(["a"])] * 3 + [pa.array([{"q": "a"}])], names=["y", "y", "s", "n"])
    source = source_of(tmp_path, table)
    settings = {"classes": ["a", "b"], "epsilon": 1.0, "journal": journal}
    refused(source, "'y' is in the file 2 times", label="y", **settings)
    refused(source, "'z' is not in the file", label="z", **settings)
    refused(source, "'n.q' is not in the file", label="n.q", **settings)
    refused(source, "delimiter=','", label="s", delimiter=",", **settings)
    assert journal.queries() == ()


def test_priors(tmp_path):
    rng = np.random.default_rng(0)
    prior = rng.dirichlet([1, 1], 300)
    table = pa.table({"p": prior[:, 0].astype(np.float32), "y": ["a"] * 300, "q": prior[:, 1]})
    run(tmp_path, table, epsilon=1.0, prior_columns=["p", "q"])
    private = read_private(tmp_path / "out.parquet")
    assert private.labels.channel.describe()["mechanism"] == "prior-response"
    sure = ~private.labels.informative()
    assert sure.any()
    assert (private.labels.responses[sure] == prior.argmax(axis=1)[sure]).all()
    run(tmp_path, table, epsilon=1.0, prior_columns=["p", "q"], mechanism="top-k-response", k=1)
    assert (read_private(tmp_path / "out.parquet").labels.responses == prior.argmax(axis=1)).all()


def test_bad_priors_are_counted_and_no_label_is_touched(tmp_path):
    table = pa.table(
        {
            "p": [0.5, None, -1.0, float("nan"), 0.0],
            "q": [1.0, 1, 1, float("inf"), 0.0],
            "y": [SECRET] * 5,
            "s": ["a"] * 5,
        }
    )
    source = source_of(tmp_path, table)
    settings = {"label": "y", "classes": ["a", "b"], "epsilon": 1.0}
    refused(source, "prior_columns: 3 of data rows 1 to 5", (SECRET,), prior_columns=["p", "q"], **settings)
    refused(source, "'s' has type string", (SECRET,), prior_columns=["p", "s"], **settings)


def test_damaged_files_are_refused(tmp_path):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": np.random.default_rng(0).normal(size=5000), "y": [SECRET, "b"] * 2500}), buffer)
    good = buffer.getvalue()
    broken = bytearray(good)
    broken[100:1500] = os.urandom(1400)
    for bad in (
        b"",
        b"PAR1",
        good[: len(good) // 2],
        good[:-1],
        good[10:],
        bytes(broken),
        os.urandom(300),
        b"PARE" + os.urandom(99) + b"PARE",
    ):
        (tmp_path / "in.parquet").write_bytes(bad)
        refused(
            tmp_path / "in.parquet",
            "cannot be read as Parquet|labels read so far",
            (SECRET,),
            label="y",
            classes=["a", "b"],
            epsilon=1.0,
        )
    assert "encrypted; decrypt" in refused(tmp_path / "in.parquet", "encrypted", label="y", classes=["a"], epsilon=1.0)


def test_a_page_that_fails_its_checksum_is_refused(tmp_path):
    table = pa.table({"x": np.random.default_rng(0).normal(size=1000), "y": ["a"] * 1000})
    source = source_of(tmp_path, table, write_page_checksum=True, compression="NONE", use_dictionary=False)
    damaged = bytearray(source.read_bytes())
    damaged[4000] ^= 1
    source.write_bytes(damaged)
    refused(source, "cannot be read as Parquet", label="y", classes=["a"], epsilon=1.0)


@pytest.mark.parametrize("column", ["x", "y"])
@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_files_are_refused(tmp_path, plaintext_footer, column):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, _):
            return key.hex()

        def unwrap_key(self, key, _):
            return bytes.fromhex(key)

    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["y"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    source = source_of(tmp_path, pa.table({"x": [1], "y": [SECRET]}), encryption_properties=properties)
    refused(source, "encrypted", (SECRET,), label="y", classes=["a"], epsilon=1.0)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize(
    "mechanism", ["randomized-response", "prior-response", "top-k-response", "bit-flip", "laplace-one-hot"]
)
def test_no_rows_one_row_one_class(tmp_path, n, mechanism):
    for classes in (["a"], ["a", "b", "c"]):
        columns = [f"p{i}" for i in range(len(classes))]
        table = pa.table(
            {"y": pa.array(["a"] * n, pa.string()), **{name: pa.array([0.5] * n, pa.float64()) for name in columns}}
        )
        more = {"prior_columns": columns} if mechanism in {"prior-response", "top-k-response"} else {}
        if mechanism == "top-k-response":
            more["k"] = 1
        old, new, _ = run(tmp_path, table, classes=classes, epsilon=1.0, mechanism=mechanism, **more)
        same_columns(old, new)
        private = read_private(tmp_path / "out.parquet")
        assert len(private.labels) == n
        assert private.labels.log_likelihood().shape == (n, len(classes))
        assert private.certificate is not None
        assert private.certificate.epsilon == 1.0
        assert verify_file(tmp_path / "out.parquet") == ()


def test_columns_with_the_same_name_or_with_dots(tmp_path):
    columns = [
        pa.array([1, 2]),
        pa.array([3.0, 4.0]),
        pa.array(["a", "b"]),
        pa.array([{"y": 1}] * 2),
        pa.array(["p", "q"]),
    ]
    table = pa.Table.from_arrays(columns, names=["x", "x", "y", "s", "s.y"])
    same_columns(*run(tmp_path, table)[:2])


def test_wide_tables(tmp_path):
    table = pa.table({f"c{i}": [float(i), None] for i in range(1500)} | {"y": ["a", "b"]})
    same_columns(*run(tmp_path, table)[:2])


def test_many_classes(tmp_path):
    classes = [f"k{i}" for i in range(3000)]
    _, new, _ = run(tmp_path, pa.table({"x": range(3000), "y": classes}), classes=classes)
    assert new["y"].to_pylist() == classes
    assert read_private(tmp_path / "out.parquet").labels.responses.tolist() == list(range(3000))


# -- interrupts, limits, memory -------------------------------------------------------------------------------


def big_source(path, rows=200_000, features=4):
    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=rows) for i in range(features)}
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 3, rows)}), path, row_group_size=rows)
    return path


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_stopping_half_way_leaves_the_charge_and_nothing_else(tmp_path, monkeypatch, stop):
    monkeypatch.setattr(parquetfile, "CHUNK_ROWS", 1000)
    source, journal = big_source(tmp_path / "in.parquet", 5000), Journal.open(tmp_path / "j")

    def report(rows, part):
        if rows >= 2000:
            raise stop

    with pytest.raises(stop):
        privatize(
            source, tmp_path / "out.parquet", label="y", classes=[0, 1, 2], epsilon=1, journal=journal, report=report
        )
    assert names(tmp_path) == ["in.parquet", "j", "j.head", "j.key"]
    assert journal.epsilon(0) == 1.0


LIGHT = """
import sys
from pathlib import Path
from labeldp.data.tables import privatize, verify_file
folder = Path(sys.argv[1])
for suffix in ("parquet", "csv"):
    privatize(folder / f"in.{suffix}", folder / f"out.{suffix}", label="y", classes=["a", "b"], epsilon=1.0)
    verify_file(folder / f"out.{suffix}")
print({"pandas", "torch"} & set(sys.modules))
"""


def test_privatizing_imports_neither_pandas_nor_torch(tmp_path):
    source_of(tmp_path, pa.table({"x": [1], "y": ["a"]}))
    (tmp_path / "in.csv").write_text("x,y\n1,a\n")
    done = subprocess.run([sys.executable, "-c", LIGHT, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


CHILD = """
import sys, time
from labeldp.budgets.journal import Journal
from labeldp.data import parquet as parquetfile
from labeldp.data.tables import TableError, privatize
from pathlib import Path
folder = Path(sys.argv[1])
parquetfile.CHUNK_ROWS = 20_000
def report(rows, part):
    if sys.argv[2] == "wait" and rows >= 60_000:
        print("half way", flush=True)
        time.sleep(60)
try:
    privatize(folder / "in.parquet", folder / "out.parquet", label="y", classes=[0, 1, 2], epsilon=1.0,
              journal=Journal.open(folder / "j"), report=report)
except TableError as error:
    print(error)
"""


def test_kill_half_way_leaves_the_charge_and_no_target(tmp_path):
    big_source(tmp_path / "in.parquet")
    with subprocess.Popen([sys.executable, "-c", CHILD, tmp_path, "wait"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half way\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert Journal.open(tmp_path / "j").epsilon(0) == 1.0
    left = [name for name in names(tmp_path) if name not in {"in.parquet", "j", "j.head", "j.key"}]
    assert all(name.startswith(".out.parquet.") and name.endswith(".part") for name in left)


def test_a_full_disk_is_a_sentence(tmp_path):
    source = big_source(tmp_path / "in.parquet")
    before = source.read_bytes()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path, "go"], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert "no room for target=" in done.stdout
    assert done.stderr == ""
    assert names(tmp_path) == ["in.parquet", "j", "j.head", "j.key"]
    assert source.read_bytes() == before
    assert Journal.open(tmp_path / "j").epsilon(0) == 0


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
def test_a_full_file_system_is_a_sentence(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    try:
        big_source(disk / "in.parquet", 150_000)
        done = subprocess.run([sys.executable, "-c", CHILD, disk, "go"], capture_output=True, text=True, check=True)
        assert "no room for target=" in done.stdout
        assert names(disk) == ["in.parquet", "j", "j.head", "j.key"]
        # Seen to be 1 before room was taken in advance.
        assert Journal.open(disk / "j").epsilon(0) == 0
    finally:
        subprocess.run(["umount", disk], check=True)


PEAK = """
import sys
from pathlib import Path
from labeldp.data.tables import privatize
source = Path(sys.argv[1])
privatize(source, source.with_name("out.parquet"), label="y", classes=[0, 1, 2], epsilon=1.0)
# Not ru_maxrss: that one begins with the memory of the parent.
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_one_giant_row_group_needs_no_giant_memory(tmp_path):
    source, rows = tmp_path / "in.parquet", 12_000_000
    big_source(source, rows)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", PEAK, source], capture_output=True, text=True, check=True)
    # The table itself is about 500 MB.
    assert int(done.stdout) / 1024 < 420
    assert time.perf_counter() - started < 120
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == rows
