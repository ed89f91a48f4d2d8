"""The extension guide: its examples run as they stand, and do what they promise."""

import re
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.budgets.journal import Journal
from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget
from labeldp.data import benchmarks, partitions
from labeldp.data.request import TableError
from labeldp.engines import runs
from labeldp.recipes import catalogue
from labeldp.testing import ContractError, check_randomizer
from tests.docs.pages import ROOT, blocks, text

PAGE = text("extend")


def section(title):
    """The Python of one section."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    assert found, title
    return blocks(found[1], "python")


def run(titles, names=None):
    names = {"__name__": "extension"} if names is None else names
    for title in titles:
        for number, block in enumerate(section(title)):
            exec(compile(block, f"extend.md, {title}, block {number + 1}", "exec"), names)
    return names


def test_a_randomizer_is_checked_charged_and_its_bug_is_found(capsys):
    names = run(["A new randomizer"])
    printed = capsys.readouterr().out
    assert "1.3863 (9000, 3)" in printed
    stars = names["stars"]
    check_randomizer(stars)
    with pytest.raises(ContractError):
        check_randomizer(names["Careless"](stars.weights))


def test_a_denoiser_trains_within_its_budget():
    pytest.importorskip("torch")
    names = run(["A new randomizer", "A new denoiser"])
    assert 0.9 < names["vault"].certificate(delta=1e-5).epsilon <= 1.0


def test_the_files_it_names_exist():
    named = set(re.findall(r"`((?:labeldp|tests)/[\w/.]+)`", PAGE)) - {"labeldp/recipes/bit_flip.py"}
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def with_recipe(monkeypatch):
    """Put the page's file and line where they belong, for one test."""
    file, line, use = section("A new recipe")
    module = types.ModuleType("labeldp.recipes.bit_flip")
    exec(compile(file, "bit_flip.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = eval(line, vars(catalogue))
    # As if the line had been there when everybody imported the list.
    new = {"RECIPES": (*catalogue.RECIPES, entry), "BY_KEY": {**catalogue.BY_KEY, entry.key: entry}}
    for name, value in new.items():
        old = getattr(catalogue, name)
        for each in [each for each in sys.modules.values() if getattr(each, name, None) is old]:
            monkeypatch.setattr(each, name, value)
    return entry, use


def test_a_recipe_is_one_file_and_one_line(monkeypatch, capsys):
    pytest.importorskip("sklearn")
    entry, use = with_recipe(monkeypatch)
    names = {"np": np}
    exec(compile(use, "extend.md", "exec"), names)
    assert capsys.readouterr().out == "bit_flip 2.0\n"
    model, x, y = names["model"], names["x"], names["y"]
    assert (model.predict(x) == y).mean() > 0.9
    assert verify(model.certificate_) == ()
    assert catalogue.find("bit-flip") is entry


def test_a_data_set_is_sealed_and_its_errors_hold_no_label(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run(["A new data set"], {"np": np})
    assert "800 training rows, labels sealed" in capsys.readouterr().out
    monkeypatch.setitem(benchmarks._LOADERS, "rings", names["rings"])
    found = benchmarks.load("rings", root=tmp_path)
    assert (len(found.vault), found.vault.num_classes, len(found.test_labels)) == (800, 2, 200)
    with pytest.raises(FileNotFoundError, match=r"example\.org"):
        benchmarks.load("rings", root=tmp_path / "nowhere")


def raising(error):
    def fail(*_):
        raise error

    return fail


def test_an_engine_charges_once_and_answers_a_row_alike_however_it_is_cut(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run(["A new engine"])
    assert capsys.readouterr().out == "1.0 ['0.parquet', '1.parquet', '2.parquet', 'certificate.json']\n"
    assert not (tmp_path / ".private.run").exists()
    assert verify(names["certificate"]) == ()
    # The truth is told to a share of e / (1 + e) = 0.731 of 3,000 rows: false alarm 1 in 10^6.
    private = pq.ParquetDataset(sorted((tmp_path / "private").glob("*.parquet"))).read()
    told = np.array(names["answers"])[private["visit"].to_numpy()] == private["returned"].to_numpy()
    assert abs(told.mean() - 0.7311) < 4.9 * 0.0081

    calls, answer_shard = [], names["answer_shard"]

    def failing(task, shard, output):
        calls.append(shard.name)
        if len(calls) == 2:
            raise OSError("the disk is full")
        answer_shard(task, shard, output)

    asked = {"label": "returned", "classes": ["no", "yes"], "epsilon": 1.0, "id": "visit"}
    journal = Journal.open(tmp_path / "journal.json", Budget(1.0))
    names["answer_shard"] = failing
    with pytest.raises(OSError, match="full"):
        names["privatize_shards"]("visits", "again", journal=journal, **asked)
    first = {path.name: path.read_bytes() for path in (tmp_path / ".again.run" / "output").glob("*.parquet")}
    assert 1 <= len(first) <= 2
    assert not (tmp_path / "again").exists()

    # Another process goes on, with other batches, and pays nothing: the budget would not allow it.
    def by_single_rows(task, shard, output):
        rows = pq.read_table(shard)
        one = [pa.Table.from_batches([batch]) for batch in rows.to_batches(max_chunksize=1)]
        private = [pa.Table.from_batches(list(partitions.answer(task, part.to_batches()))) for part in one[:50]]
        whole = pa.Table.from_batches(list(partitions.answer(task, rows.combine_chunks().to_batches())))
        assert pa.concat_tables(private).equals(whole.slice(0, 50))
        answer_shard(task, shard, output)

    # Stopped once more, after the key is destroyed: nothing is drawn again under another.
    names["answer_shard"] = by_single_rows
    with monkeypatch.context() as patch:
        patch.setattr(runs, "rename", raising(OSError("no name")))
        with pytest.raises(OSError, match="no name"):
            names["privatize_shards"]("visits", "again", journal=journal, **asked)
    assert not (tmp_path / ".again.run" / "key").exists()
    names["answer_shard"] = raising(AssertionError("drawn again"))
    names["privatize_shards"]("visits", "again", journal=journal, **asked)
    assert {name: (tmp_path / "again" / name).read_bytes() for name in first} == first
    assert len(journal.notes()) == 1


@pytest.mark.parametrize(("ids", "labels", "problem"), [
    ([1, 2, 2], ["no", "yes", "no"], "repeats"), ([1, 2, 3], ["no", "yes", "secret"], "1 of 3 labels"),
])  # fmt: skip
def test_an_engine_refuses_before_it_charges(tmp_path, monkeypatch, ids, labels, problem):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "extension"}
    exec(compile(section("A new engine")[0], "extend.md", "exec"), names)
    (tmp_path / "visits").mkdir()
    pq.write_table(pa.table({"visit": ids, "returned": labels}), tmp_path / "visits" / "0.parquet")
    journal = Journal.open(tmp_path / "journal.json", Budget(1.0))
    asked = {"label": "returned", "classes": ["no", "yes"], "epsilon": 1.0, "id": "visit"}
    with pytest.raises(TableError, match=problem) as refused:
        names["privatize_shards"]("visits", "out", journal=journal, **asked)
    assert "secret" not in str(refused.value)
    assert journal.notes() == ()
    assert not (tmp_path / ".out.run").exists()
