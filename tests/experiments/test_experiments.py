"""The experiment runner, on made-up data: settings expand, runs are recorded and certified, finished ones skipped."""

import json
import sys
from dataclasses import replace

import pytest

from experiments import adapters, records, report, run, synthetic
from experiments.settings import Run, expanded, first_seeds, groups, quickened, runs
from experiments.tables import tables
from labeldp.data import benchmarks, files
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.catalogue import keys

SETTINGS = f"""
[[group]]
name = "tiny"
provenance = "made up for a test"
dataset = "{synthetic.NAME}"
model = "mnist_cnn"
epochs = 1
batch_size = 32
optimizer = "adam"
learning_rate = 1e-3
weight_decay = 0.0
schedule = "linear"
augment = ["small crop", "flip"]
seeds = [1, 2]

  [[group.run]]
  method = "lp-1st"
  recipe = "rr"
  epsilon = [2, "inf"]
  mixup = 1
  by_epsilon = {{ "inf" = {{ mixup = 0 }} }}

  [[group.run]]
  method = "lp-2st"
  recipe = "lp_mst"
  learn = "likelihood"
  epsilon = [2]
  shares = [0.5, 0.5]
  temperature = 1.0
  mixup = [4, 1]
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "tiny.toml").write_text(SETTINGS)
    return tmp_path / "tiny.toml"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """The line of one real run."""
    path = tmp_path_factory.mktemp("one") / "tiny.toml"
    path.write_text(SETTINGS)
    return run.run_one(runs(path, [])[0], "cpu")


def test_settings_expand_to_runs(settings):
    found = runs(settings, [])
    assert [(r.method, r.epsilon, r.seed) for r in found] == [
        ("lp-1st", 2.0, 1), ("lp-1st", 2.0, 2), ("lp-1st", float("inf"), 1), ("lp-1st", float("inf"), 2),
        ("lp-2st", 2.0, 1), ("lp-2st", 2.0, 2),
    ]  # fmt: skip
    assert found[0].settings["mixup"] == 1
    assert found[2].settings["mixup"] == 0
    assert not {"name", "seeds", "provenance", "run", "method", "epsilon", "by_epsilon"} & set(found[0].settings)
    assert [r.epochs for r in found] == [1, 1, 1, 1, 2, 2]
    assert [r.seed for r in runs(settings, [], seeds=[7])] == [7, 7, 7]
    assert runs(settings, ["tiny"]) == found
    with pytest.raises(ValueError, match="'another group'"):
        runs(settings, ["another group"])


def test_seeds_are_cut_or_continued(settings):
    group = groups(settings)["tiny"]
    assert [first_seeds(group, count) for count in (1, 2, 4)] == [[1], [1, 2], [1, 2, 3, 4]]


def test_a_quick_run_is_another_run(settings):
    first = replace(runs(settings, [])[0], settings={**runs(settings, [])[0].settings, "epochs": 40})
    quick = quickened(first)
    assert (quick.settings["epochs"], quick.settings["quick"]) == (2, True)
    assert quickened(runs(settings, [])[0]).settings["epochs"] == 1


def test_a_run_needs_its_name_in_the_papers_tables(settings):
    group = groups(settings)["tiny"]
    del group["run"][0]["method"]
    with pytest.raises(ValueError, match="without a method"):
        list(expanded(group, [1]))


def test_every_run_leaves_a_verified_record_and_is_not_repeated(settings, tmp_path, monkeypatch, capsys):
    out = tmp_path / "results.jsonl"
    monkeypatch.setattr(sys, "argv", ["run", str(settings), "--out", str(out), "--device", "cpu", "--seed", "1"])
    run.main()
    lines = records.read(out)
    assert [(line["method"], line["epsilon"]) for line in lines] == [
        ("lp-1st", 2.0),
        ("lp-1st", "inf"),
        ("lp-2st", 2.0),
    ]
    for line in lines:
        assert set(records.FIELDS) | {"group", "torch"} == set(line)
        assert records.check(line) == []
        assert 0 <= line["value"] <= 100
    run.main()
    assert len(records.read(out)) == 3
    assert "0 runs to do, 3 done before" in capsys.readouterr().out
    table = report.all_lines([out])
    assert table.count("\n") == 4
    assert f"| {synthetic.NAME} | lp-2st | lp_mst, likelihood, 1 epoch | 2 " in table


def test_news_count_epochs_over_all_stages(settings, tmp_path):
    heard = []
    two_stages = runs(settings, [])[4]
    run.train_missing([two_stages], tmp_path / "out.jsonl", "cpu", tell=heard.append)
    assert [news.epoch for news in heard] == [0, 1, 2, 2]
    assert all(0 < news.loss < 10 for news in heard[1:3])
    assert heard[-1].record == records.read(tmp_path / "out.jsonl")[0]


FITTED = {"optimizer": "adam", "learning_rate": 1e-2, "weight_decay": 0.0, "augment": []}
LINEAR = {
    "rr": FITTED,
    "debiased": FITTED,
    "ssl_prior": {**FITTED, "clusters": 5},
    "lp_mst": {**FITTED, "shares": [0.5, 0.5], "temperature": 1.0},
    "labeldp_pro": {"optimizer": "sgd", "learning_rate": 1.0, "clip": 1.0, "denoiser": "no_op", "delta": 1e-5},
}


@pytest.mark.parametrize("recipe", LINEAR)
def test_a_linear_layer_on_features_takes_the_place_of_a_network(recipe):
    common = {"dataset": synthetic.NAME, "model": "head", "epochs": 2, "batch_size": 32, "schedule": "linear"}
    made = Run("tiny", recipe, 8.0, 1, {**common, "features": {"raw": True}, "recipe": recipe, **LINEAR[recipe]})
    line = run.run_one(made, "cpu")
    assert records.check(line) == []
    # Without the features there is no layer, and a network that is none cannot be trained.
    without = replace(made, settings={name: value for name, value in made.settings.items() if name != "features"})
    with pytest.raises((ValueError, KeyError, RuntimeError)):
        run.run_one(without, "cpu")


def test_a_table_sets_our_features_beside_the_papers():
    table = tables()["ghazi2024-table6"]
    (ours,) = [r for r in table.runs(seeds=1) if (r.dataset, r.method, r.epsilon) == BYOL]
    assert table.paper(ours) == table.figures["cifar10 simclr features", "dp-sgd", 0.5, "accuracy"] == 87.1
    assert ("cifar10 simclr features", "dp-sgd") not in table.without_settings()


BYOL = ("cifar10 byol features", "dp-sgd", 0.5)


# --- lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"epsilon": 1.0}, "epsilon=1 is not the certificate's 2"),
        ({"epsilon": 3.0}, "epsilon=3 is not the certificate's 2"),
        ({"epsilon": "inf"}, "epsilon=inf"),
        ({"delta": 1e-5}, "delta=1e-05"),
        ({"accounting": "add-remove"}, "add-remove"),
        ({"certificate": {}}, "certificate"),
    ],
)
def test_a_line_that_contradicts_its_certificate_is_not_written(line, change, what, tmp_path):
    assert records.check(line) == []
    with pytest.raises(ValueError, match=what):
        records.append(tmp_path / "out.jsonl", {**line, **change})
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("field", records.FIELDS)
def test_a_line_without_a_field_is_not_written(line, field, tmp_path):
    with pytest.raises(ValueError, match=f"missing: {field}"):
        records.append(tmp_path / "out.jsonl", {name: line[name] for name in line if name != field})


def test_a_tampered_certificate_is_not_written(line, tmp_path):
    forged = json.loads(json.dumps(line))
    forged["certificate"]["claim"]["epsilon"] = forged["epsilon"] = 1.0
    with pytest.raises(ValueError, match="checksum"):
        records.append(tmp_path / "out.jsonl", forged)


def test_lines_survive_a_missing_end_and_a_cut_one_is_named(line, tmp_path):
    out = tmp_path / "deep" / "out.jsonl"
    records.append(out, line)
    out.write_text(out.read_text().rstrip("\n"))
    records.append(out, line)
    assert records.read(out) == [line, line]
    out.write_text(out.read_text()[:-20])
    with pytest.raises(ValueError, match="line 2"):
        records.read(out)


def test_other_settings_are_another_experiment(line, settings):
    first = runs(settings, [])[0]
    assert records.missing([first], [line]) == []
    other = {**line, "settings": {**line["settings"], "learning_rate": 1.0}}
    assert records.missing([first], [other]) == [first]
    assert records.missing([first], [{**line, "seed": 9}]) == [first]
    assert records.missing([quickened(first)], [line]) == [quickened(first)]


def test_lines_of_different_settings_are_never_averaged_and_quick_ones_left_out(line, tmp_path):
    out = tmp_path / "out.jsonl"
    longer = {**line, "value": 90.0, "settings": {**line["settings"], "epochs": 9}}
    quick = {**line, "value": 1.0, "settings": {**line["settings"], "quick": True}}
    for value, kind in ((40.0, line), (60.0, line), (0.0, longer), (0.0, quick)):
        records.append(out, {**kind, **({"value": value} if value else {})})
    rows = report.all_lines([out]).splitlines()[2:]
    assert ["50.00 ± 14.14 (2)" in row for row in rows] == [True, False]
    assert "90.00 (1)" in rows[1]


# --- settings that cannot be run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"recipe": "magic"}, "recipe='magic'"),
        ({"learningrate": 1}, "learningrate"),
        ({"shares": [1.0]}, "shares"),
        ({"epochs": None}, "missing: epochs"),
        ({"metric": "beauty"}, "metric='beauty'"),
        ({"model": "transformer"}, "model='transformer'"),
        ({"optimizer": "sdg"}, "optimizer='sdg'"),
        ({"augment": ["flop"]}, "augment='flop'"),
        ({"schedule": "steep"}, "schedule='steep'"),
        ({"dataset": "adult"}, "no set of images"),
        ({"dataset": "minst"}, "minst"),
    ],
)
def test_settings_that_nothing_reads_or_knows_are_refused(settings, change, what):
    first = runs(settings, [])[0]
    changed = {key: value for key, value in {**first.settings, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=what):
        run.run_one(replace(first, settings=changed), "cpu")


def test_a_misspelt_setting_is_found_before_the_first_training(settings, tmp_path):
    good, *_, last = runs(settings, [])
    bad = replace(last, settings={**last.settings, "temprature": 1})
    with pytest.raises(ValueError, match="temprature"):
        run.train_missing([good, bad], tmp_path / "out.jsonl", "cpu", tell=lambda news: pytest.fail("trained"))


def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="abacus"):
        run.checked_device("abacus")
    assert run.checked_device(None) in {"cpu", "cuda"}


# --- other families of recipes ------------------------------------------------------------------------------------


def _asks_twice(job):
    for _ in range(2):
        job.vault.release(RandomizedResponse(job.settings["noise"], job.vault.num_classes))
    return job.model


@pytest.fixture
def another_family(monkeypatch):
    family = adapters.Family(_asks_twice, frozenset({"noise"}), frozenset())
    monkeypatch.setitem(adapters.FAMILIES, "twice", family)


def run_of(settings, epsilon, **more):
    first = runs(settings, [])[0]
    kept = {key: first.settings[key] for key in ("dataset", "model", "epochs")}
    return replace(first, epsilon=epsilon, settings={**kept, "recipe": "twice", "listed_as": "tiny cnn", **more})


def test_a_new_recipe_is_one_entry(settings, another_family, tmp_path):
    found = run.run_one(run_of(settings, 1.0, noise=0.5, delta=0.0), "cpu")
    assert (found["dataset"], found["epsilon"], found["delta"]) == ("tiny cnn", 1.0, 0.0)
    assert records.check(found) == []


def test_a_recipe_that_spends_more_than_it_says_has_no_line(settings, another_family, tmp_path):
    with pytest.raises(ValueError, match="epsilon=1 is not the certificate's 2"):
        run.train_missing([run_of(settings, 1.0, noise=1.0)], tmp_path / "out.jsonl", "cpu", tell=lambda news: None)
    assert records.read(tmp_path / "out.jsonl") == []


def test_a_papers_claim_is_listed_beside_the_true_epsilon(settings, another_family, tmp_path):
    claimed = run_of(settings, 1.0, noise=1.0, claimed_epsilon=True)
    run.train_missing([claimed], tmp_path / "out.jsonl", "cpu", tell=lambda news: None)
    (found,) = records.read(tmp_path / "out.jsonl")
    assert (found["epsilon"], found["listed_epsilon"]) == (2.0, 1.0)
    assert records.missing([claimed], [found]) == []
    assert "| 1 (exact: 2) |" in report.all_lines([tmp_path / "out.jsonl"])


# -- tables of people, and recipes that the catalogue alone knows -----------------------------------------------------


def test_every_recipe_of_the_catalogue_can_be_run():
    assert set(keys("classes")) <= set(adapters.FAMILIES)


@pytest.mark.parametrize("recipe", ["lp_rr_sgd", "dp_sgd"])
def test_a_recipe_without_an_adapter_runs_with_its_defaults(recipe):
    given = {"dataset": synthetic.NAME, "model": "mnist_cnn", "recipe": recipe, "epochs": 1}
    changes = {"settings": {"epochs": 1}} if recipe == "dp_sgd" else {}
    delta = 1e-5 if recipe == "dp_sgd" else 0.0
    line = run.run_one(Run("tiny", recipe, 2.0, 1, {**given, **changes, "delta": delta}), "cpu")
    assert (line["value"] >= 0, records.check(line)) == (True, [])


def table_settings(**more):
    learning = {"optimizer": "adam", "learning_rate": 1e-2, "weight_decay": 0.0, "schedule": "constant", "augment": []}
    return {"epochs": 1, "batch_size": 64, **learning, **more}


def test_ratings_are_measured_by_their_error(tmp_path, monkeypatch):
    lines = [f"{user}\t{item}\t{1 + (user * item) % 5}\t0\n" for user in range(1, 21) for item in range(1, 11)]
    (tmp_path / "movielens_100k").mkdir()
    (tmp_path / "movielens_100k" / "u.data").write_text("".join(lines))
    tiny = replace(files.MOVIELENS_100K, rows=(200,))
    monkeypatch.setattr(run, "benchmark_of", lambda _name: benchmarks.movielens_100k(tmp_path, official=tiny))
    run.data.cache_clear()
    given = table_settings(dataset="movielens_100k", model="collaborative_filter", metric="rmse", recipe="ratings",
                           shares=[0.5, 0.5], temperature=0.5)  # fmt: skip
    line = run.run_one(Run("tiny", "lp-2st", 2.0, 1, given), "cpu")
    assert 0.5 < line["value"] < 3
    assert (line["accounting"], records.check(line)) == ("label-substitution", [])
    run.data.cache_clear()


def test_clicks_are_certified_user_by_user(monkeypatch):
    made_up = synthetic.synthetic_attribution_stand_in(200, 60)
    monkeypatch.setattr(run, "benchmark_of", lambda _name: made_up)
    run.data.cache_clear()
    given = table_settings(dataset=made_up.name, model="attribution_network", metric="auc", cap=2)
    answered = Run("tiny", "randomized-response", 2.0, 1, {**given, "recipe": "rr", "alike": True})
    del given["weight_decay"], given["augment"]
    descent = {"recipe": "labeldp_pro", "denoiser": "no_op", "delta": 1e-5, "clip": 1.0}
    for one in (answered, Run("tiny", "dp-sgd", 2.0, 1, {**given, **descent})):
        line = run.run_one(one, "cpu")
        assert 0 < line["value"] < 1
        assert (line["accounting"], records.check(line)) == ("user-substitution", [])
        assert records.check({**line, "accounting": "label-substitution"})
    with pytest.raises(ValueError, match="which is no set of images"):
        run.run_one(replace(answered, settings={**answered.settings, "model": "mnist_cnn"}), "cpu")
    run.data.cache_clear()
