import dataclasses
import html.parser
import json
import math
import re

import pytest

from labeldp.choosing.choice import choose
from labeldp.core.ledger import ONE_LABEL, ONE_USER
from labeldp.core.random import SecureRandom
from labeldp.results.card import Story, belief_after, belief_below, headline, unmeasured
from labeldp.results.evaluation import Evaluation, Measure
from labeldp.results.facts import gather
from labeldp.results.folder import ArtifactError
from labeldp.results.report import against_epsilon, columns_section, growth, methods_section, page, write_page
from tests import commands
from tests.results.reporthelp import AUDIT, CURVES, audited, many_looks, result, saved

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(html.parser.HTMLParser):
    """Checks that tags close in order, and collects what matters."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.tags = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def attributes(self, wanted):
        return [attrs for tag, attrs in self.tags if tag == wanted]


def read(text):
    return Reader(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    classes = tuple(f"class {number}" for number in range(10))
    shown = result(classes=classes, method="lp_mst", images=True, test=0.85, curves=CURVES)
    other = result(epsilon=4.0, classes=classes, method="one_shot", images=True, test=0.91)
    model, beside = saved(folder / "model", shown), saved(folder / "other", other)
    return page(gather(model, audit=audited(folder), beside=[beside], non_private=0.94))


def test_it_says_what_is_asked_of_it(made):
    text = read(made).text
    for words in (
        "by at most 2.72×", "What is not promised", "a private response, pure ε = 1", "3,000", "Verified.",
        "Without privacy: 94.0%", "This model: 85.0% at ε = 1", "other", "one_shot", "Learning curve: training loss",
        "No contradiction", "600 of 1,000 guesses", "labeldp verify model", "SHA-256",
    ):  # fmt: skip
        assert words in text, words


def test_nothing_is_fetched_and_nothing_runs(made):
    found = read(made)
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form", "a"}
    for _, attributes in found.tags:
        assert not {"src", "href", "srcset", "action"} & attributes.keys()
        assert attributes.get("xlink:href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in made
    assert "@import" not in made
    assert "://" not in made
    (policy,) = [a for a in found.attributes("meta") if a.get("http-equiv")]
    assert policy["content"].startswith("default-src 'none'")


def test_it_is_made_for_phones_and_for_those_who_hear_it(made):
    found = read(made)
    assert any(a.get("name") == "viewport" and "width=device-width" in a["content"] for a in found.attributes("meta"))
    assert found.attributes("html") == [{"lang": "en"}]
    assert len(found.attributes("h1")) == 1
    for image in found.attributes("svg"):
        assert image.get("aria-hidden") == "true" or (image["role"] == "img" and len(image["aria-label"]) > 20)
    for head in found.attributes("th"):
        assert head["scope"] in ("col", "row")
    assert len(found.attributes("caption")) == len(found.attributes("table"))
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_names_cannot_become_markup(tmp_path):
    evil = ("<script>alert(1)</script>", '" onload="x', "</style><b>")
    text = page(gather(saved(tmp_path / "<b>model", result(classes=evil, method="<i>rr"))))
    found = read(text)
    assert not {"script", "i"} & {tag for tag, _ in found.tags}
    assert not any(name == "onload" for _, attributes in found.tags for name in attributes)


def test_hashes_are_those_of_the_files(tmp_path):
    from labeldp.core.certificate import describe_artifact

    folder = saved(tmp_path / "model")
    text = page(gather(folder))
    for name in ("model.safetensors", "config.toml", "model_card.md", "metrics.json"):
        assert describe_artifact(folder / name).sha256 in text


# --- privacy --------------------------------------------------------------------------------------------------------


def test_beliefs_move_by_the_odds():
    for epsilon in (0.1, 1.0, 5.0, 700.0):
        for belief in (0.001, 0.3, 0.5, 0.9):
            after = belief_after(belief, epsilon)
            odds = belief / (1 - belief) * math.exp(min(epsilon, 300))
            assert after == pytest.approx(odds / (1 + odds))
            assert belief_below(after, epsilon) == pytest.approx(belief) or epsilon > 30


def test_the_ledger_shows_epsilon_so_far_and_how_it_grew(tmp_path):
    made = many_looks()
    text = read(page(gather(saved(tmp_path / "model", made)))).text
    assert "a noisy sum over a secret batch of 0.1 of the rows" in text
    assert "How ε of the costliest history grew" in text
    worst = max(made.certificate.groups, key=lambda group: len(group.queries))
    points = growth(worst.plans, made.certificate.delta)
    assert points[-1] == (201.0, pytest.approx(made.certificate.epsilon))
    assert [value for _, value in points] == sorted(value for _, value in points)


def test_seeded_noise_is_called_what_it_is(tmp_path):
    text = read(page(gather(saved(tmp_path / "model", result(rng=SecureRandom(seed=1)))))).text
    assert "This result does not verify." in text
    assert "This is not private: the noise came from a seed" in text
    assert "Do not share it: it does not verify." in text
    assert "Give the whole folder to anyone" not in text


def test_numbers_whose_r2_noise_hides_are_not_called_unmeasured():
    """Seen on a table of rents: no R², a mean absolute error, and a page that said that nothing was measured."""
    story = Story("t", "rent", None, 500, ("size",), "one_shot", "", 1.0, 0.0, (0.0, 3000.0))
    own = Evaluation(50, 1.0, {"mean_absolute_error": Measure(151.0, 59.0)})
    said = "On average, predictions are off by 151 ± 59, measured on 50 rows that were set aside."
    assert headline(story, {}, own) == said
    assert headline(story, {}, None) == ""
    assert headline(story, {"r2": 0.5, "mean_absolute_error": 2.0, "rows": 9}, own).startswith("R² is 0.500 on 9 rows")


def test_the_first_screen_says_how_good_what_it_means_and_how_to_share_it(tmp_path):
    text = read(page(gather(saved(tmp_path / "model", result())))).text
    first = text[: text.index("How good it is")]
    assert "How good is it?" in first
    assert "What does ε = 1 mean? Whoever sees the result can change their odds" in " ".join(first.split())
    assert "Someone who considers two values equally likely can become at most 73.2% sure of one of them." in first
    assert "Give the whole folder to anyone: it contains no labels" in first
    assert "labeldp verify model" in first


def test_revealed_labels_are_called_what_they_are(tmp_path):
    import dataclasses

    made = result()
    from labeldp.core.vault import LabelVault

    vault = LabelVault([0, 1] * 1500, 2)
    vault.reveal("to see what happens")
    certificate = vault.certificate(0.0)
    metrics = {**made.metrics, "epsilon": "infinity"}
    story = dataclasses.replace(made.story, epsilon=math.inf)
    folder = saved(tmp_path / "model", dataclasses.replace(made, certificate=certificate, metrics=metrics))
    text = read(page(gather(folder))).text
    assert "No promise: the labels can be recovered." in text
    assert story.epsilon == math.inf
    assert "This result does not verify." in text


# --- quality --------------------------------------------------------------------------------------------------------


def test_without_open_labels_it_says_so(tmp_path):
    made = page(gather(saved(tmp_path / "model", result(test=None))))
    text = read(made).text
    assert "It was not measured" in text
    assert "this model, measured" not in made


@pytest.mark.parametrize(
    "odd",
    [{"name": "x", "x": [1], "y": [2]}, {"x": [1, 1], "y": [1, 2]}, {"name": "n", "x": [1, 2], "y": [None, "a"]}, {}],
)
def test_odd_curves_are_left_out(tmp_path, odd):
    assert "Learning curve" not in page(gather(saved(tmp_path / "model", result(curves=[odd]))))


def test_labels_that_are_numbers_have_no_chart_of_accuracy(tmp_path):
    import dataclasses

    made = result(test=None)
    story = dataclasses.replace(made.story, classes=None, method="binned_regression")
    metrics = {**made.metrics, "test": {"rows": 5, "mean_squared_error": 0.2}}
    text = read(page(gather(saved(tmp_path / "model", dataclasses.replace(made, story=story, metrics=metrics))))).text
    assert "mean squared error" in text
    assert "Accuracy against epsilon" not in text


def test_what_is_expected_is_what_was_measured_there(tmp_path):
    from labeldp.choosing.predict import points
    from labeldp.results.report import expected

    measured = {p.epsilon: p.accuracy for p in points() if (p.dataset, p.recipe.key) == ("fashion_mnist", "lp_mst")}
    # One that did worse than guessing among ten has no odds to be carried over.
    known = {epsilon: value for epsilon, value in measured.items() if value > 12}
    made = result(classes=tuple("abcdefghij"), method="lp_mst", images=True, rows=60_000)
    facts = gather(saved(tmp_path / "model", made))
    (line,) = expected(facts, sorted(known))
    assert line.name == "lp_mst on data like fashion_mnist"
    assert dict(line.points) == {epsilon: pytest.approx(value / 100) for epsilon, value in known.items()}
    assert expected(facts, [1e-3]) == []


# --- audits ---------------------------------------------------------------------------------------------------------


def test_without_an_audit_one_is_advised(tmp_path):
    text = read(page(gather(saved(tmp_path / "model")))).text
    assert "labeldp audit model --table TABLE" in text


def test_an_audit_of_the_folder_is_found_in_it_and_told_from_another_folders(tmp_path):
    folder = saved(tmp_path / "model")
    own = gather(folder).files["model.safetensors"]
    for model, fits in ((own, True), ("0" * 64, False)):
        told = {**AUDIT, "epsilon": 1.3, "delta": 1e-7, "of": {"model": model, "epsilon": 1.0, "delta": 0.0}}
        (folder / "audit.json").write_text(json.dumps(told))
        text = read(page(gather(folder))).text
        assert ("another claim" in text) is not fits
        assert "No true label was used" in text
        assert "keep this page to yourself" not in text
        assert "at δ = 1e-07" in text


def test_a_broken_claim_is_said_to_be_broken(tmp_path):
    folder = saved(tmp_path / "model")
    text = read(page(gather(folder, audit=audited(tmp_path, bound=2.5, p_value=1e-9)))).text
    assert "THE CLAIM IS BROKEN" in text


def test_the_verdict_is_made_of_the_numbers_not_of_what_the_file_says(tmp_path):
    path = audited(tmp_path, bound=2.5, p_value=1e-9, contradicts=False, verdict="All is well.")
    assert "All is well" not in page(gather(saved(tmp_path / "model"), audit=path))


def test_an_audit_of_another_claim_is_noticed(tmp_path):
    text = read(page(gather(saved(tmp_path / "model"), audit=audited(tmp_path, epsilon=4.0)))).text
    assert "another claim" in text


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"bound": 1}'])
def test_files_that_are_no_audit_are_refused(tmp_path, text):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="labeldp audit --json"):
        gather(saved(tmp_path / "model"), audit=path)


# --- files ----------------------------------------------------------------------------------------------------------


def test_pages_are_written_whole(tmp_path, monkeypatch):
    facts = gather(saved(tmp_path / "model"))
    target = tmp_path / "model.html"
    target.write_text("the old page")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_page(facts, target)
    assert target.read_text() == "the old page"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.html"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"non_private": 87.2}, "from 0 to 1"),
        ({"beside": ["nowhere"]}, "not a folder"),
        ({"audit": "no.json"}, "cannot be read"),
    ],
)
def test_errors_say_what_to_do(tmp_path, changes, match):
    with pytest.raises(ArtifactError, match=match):
        gather(saved(tmp_path / "model"), **changes)


def test_a_result_that_was_not_measured_cannot_stand_beside(tmp_path):
    other = saved(tmp_path / "other", result(test=None))
    with pytest.raises(ArtifactError, match="--test"):
        gather(saved(tmp_path / "model"), beside=[other])


# --- the command ----------------------------------------------------------------------------------------------------


def labeldp(*arguments):
    return commands.labeldp("report", *arguments)


def test_the_command_writes_a_page_beside_the_folder(tmp_path):
    folder = saved(tmp_path / "model")
    run = labeldp(folder, "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"page": str(tmp_path / "model.html"), "problems": []}
    assert (tmp_path / "model.html").read_text() == page(gather(folder))


def test_the_command_takes_options_from_a_file(tmp_path):
    folder, target = saved(tmp_path / "model"), tmp_path / "page.html"
    config = tmp_path / "run.toml"
    config.write_text(f'[report]\nfolder = "{folder}"\nout = "{target}"\nnon-private = 0.9\nbeside = ["{folder}"]\n')
    run = labeldp("--config", config, "--quiet")
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    assert "Without privacy: 90.0%" in target.read_text()


def test_the_command_answers_1_where_the_folder_does_not_verify(tmp_path):
    folder = saved(tmp_path / "model")
    (folder / "metrics.json").write_text(
        json.dumps({"epsilon": 1.0, "delta": 0.0, "test": {"rows": 9, "accuracy": 1.0}})
    )
    run = labeldp(folder, "--out", tmp_path / "page.html")
    assert run.returncode == 1
    assert "metrics.json was changed" in run.stdout
    assert "This result does not verify." in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "give a folder"), (["nowhere"], "not a folder"), (["MODEL", "--out", "no/where.html"], "create it first")],
)
def test_the_command_refuses_in_one_sentence(tmp_path, arguments, words):
    folder = saved(tmp_path / "model")
    run = labeldp(*(folder if argument == "MODEL" else argument for argument in arguments))
    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.count("\n") == 1


# -- rows set aside --------------------------------------------------------------------------------------------------


def own(**change):
    side = [{"value": 0.9, "margin": 0.1}, None]
    measures = {name: {"value": 0.8, "margin": 0.05} for name in ("accuracy", "auc", "log_loss", "calibration_error")}
    measures["majority_baseline"] = {"value": 0.61, "margin": 0.05}
    return {
        "rows": 300, "epsilon": 1.0, "measures": measures, "classes": ["no", "<script>"], "recall": side,
        "precision": side, "confusion": [[90.0, 10.0], [-0.5, 5.0]], "roc": [[0, 0], [0.2, 0.7], [1, 1]],
        "calibration": [[0.1, 0.2, 0.1], [0.9, 0.8, 0.1]], **change,
    }  # fmt: skip


def test_what_rows_set_aside_measured_is_shown_and_stands_in_for_open_labels(tmp_path):
    facts = gather(saved(tmp_path / "model", result(test=None, evaluation=own())))
    text = page(facts)
    read = Reader(text)
    assert facts.score == 0.8
    assert "<script>" not in text
    assert "80.0% ± 5.0" in read.text
    assert "The model is right on 80.0% ± 5.0 of 300 rows that were set aside." in read.text
    assert "Trained on 2,700 secret labels" in read.text
    for title in ("Confusion matrix", "ROC curve", "Reliability diagram"):
        assert f"<title>{title}</title>" in text


@pytest.mark.parametrize("lines", [[[80.0, 20.0], [4.0, 6.0]], [[100.0, 0.0], [4.0, 6.0]]], ids=["noisy", "all right"])
def test_the_diagonal_of_the_confusion_matrix_is_the_recall_that_the_page_lists(tmp_path, lines):
    text = page(gather(saved(tmp_path / "model", result(test=None, evaluation=own(confusion=lines)))))
    assert "90.0% ± 10.0" in Reader(text).text
    assert "no: 90%, 10%" in text
    # Where noise drowns the recall, the counts are all that is known.
    assert "&lt;script&gt;: 40%, 60%" in text


@pytest.mark.parametrize(
    "change",
    [{"classes": [], "recall": [], "precision": [], "confusion": []}, {"confusion": []}, {"roc": [[5, -3], [2, 2]]},
     {"calibration": [[-9, 9, 1e9], [3, 3, -1]]}, {"measures": {}}, {"confusion": [[1e308, 1e308], [0, 0]]},
     {"measures": {"accuracy": {"value": 0.8, "margin": 1e9}, "majority_baseline": {"value": 1e300, "margin": 0}}},
     {"measures": {"accuracy": {"value": 1e300, "margin": -1}}}, {"rows": "many"}, {"classes": ["x" * 9999, "y"]}],
)  # fmt: skip
def test_odd_measures_of_rows_set_aside_do_no_harm(tmp_path, change):
    Reader(page(gather(saved(tmp_path / "model", result(evaluation=own(**change))))))


# -- what is asked first ---------------------------------------------------------------------------------------------


def test_the_page_begins_with_how_good_it_is_beside_what_needs_no_model(tmp_path):
    read = Reader(page(gather(saved(tmp_path / "model", result(test=None, evaluation=own())))))
    order = [read.text.index(words) for words in ("80.0%", "How good it is", "What is promised", "What it cost")]
    assert order == sorted(order)
    assert "Always predicting “no”, the most frequent class, would be right on 61.0% ± 5.0." in read.text
    first = read.text[: read.text.index("How good it is")]
    for words in ("accuracy", "always the most frequent class", "AUC", "ε", "δ", "odds move by at most", "method"):
        assert words in first, words


def test_open_labels_and_rows_set_aside_stand_side_by_side(tmp_path):
    read = Reader(page(gather(saved(tmp_path / "model", result(test=0.84, evaluation=own())))))
    assert "rows set aside" in read.text
    assert "public test rows" in read.text
    assert "The model is right on 84.0% of 500 rows with public labels." in read.text


def test_accuracy_against_epsilon_has_this_models_own_point_and_its_error_bar(tmp_path):
    facts = gather(saved(tmp_path / "model", result(test=None, evaluation=own())))
    figure = against_epsilon(facts)
    assert "this model, measured" in figure.image
    assert "always the most frequent class" in figure.image
    assert "This model: 80.0% at ε = 1, δ = 0." in figure.caption
    assert facts.margin == 0.05
    # The bar makes the chart another one.
    bare = dataclasses.replace(facts, evaluation=dataclasses.replace(
        facts.evaluation, measures={**facts.evaluation.measures, "accuracy": Measure(0.8, 0.0)}))  # fmt: skip
    assert against_epsilon(bare).image.count("<path") < figure.image.count("<path")


def test_without_a_measure_there_is_no_chart_of_something_else(tmp_path):
    """It used to show randomized response, which readers took for the model."""
    facts = gather(saved(tmp_path / "model", result(test=None)))
    assert against_epsilon(facts) is None
    read = Reader(page(facts))
    assert "It was not measured" in read.text
    assert "not measured" in read.text[: read.text.index("How good it is")]


def test_delta_stands_beside_every_result_that_is_compared(tmp_path):
    mine = saved(tmp_path / "mine", many_looks(delta=1e-6))
    facts = gather(mine, beside=[saved(tmp_path / "other", result(test=0.9))])
    table = methods_section(facts)["beside"]
    assert table.head[2:4] == ["ε", "δ"]
    assert [row[0] for row in table.rows] == ["mine (this one)", "other"]
    assert [row[3] for row in table.rows] == ["1e-06", "0"]
    figure = methods_section(facts)["figure"]
    assert "δ = 1e-06" in figure.caption


def test_methods_are_compared_for_the_rows_and_the_machine_that_the_model_was_chosen_for(tmp_path):
    problem = {"num_rows": 2700, "feature_dim": 12, "device": "cpu"}
    facts = gather(saved(tmp_path / "model", result(chosen_for=problem)))
    assert (facts.rows, facts.width, facts.device) == (2700, 12, "cpu")
    assert facts.choice.reason == choose(2700, 2, 1.0, 0.0, feature_dim=12, modality="table", device="cpu").reason
    assert "for a machine without a GPU" in Reader(page(facts)).text


def test_a_model_of_released_responses_is_compared_with_what_could_learn_from_them(tmp_path):
    made = result(method="rr+learner", test=None)
    story = dataclasses.replace(made.story, released="ab" * 32)
    text = page(gather(saved(tmp_path / "model", dataclasses.replace(made, story=story))))
    read = Reader(text)
    assert "Trained on 3,000 private responses of visits.csv" in read.text
    assert "trains again on the same responses, at no further cost" in read.text
    assert "forward: " in text
    assert "one_shot: " not in text


def test_columns_say_only_what_is_known_of_them(tmp_path):
    """An array has neither gaps nor notes: on a phone such a table would be a list of names of nothing."""
    made = result()
    known = [
        {"name": "x0", "read_as": "number", "missing": None, "distinct": None, "note": ""},
        {"name": "x1", "read_as": "number", "missing": None, "distinct": None, "note": ""},
    ]
    for name, columns, shown in (
        ("array", known, ["column", "read as"]),
        ("table", [*known, {**known[0], "missing": 0.25}], ["column", "read as", "missing"]),
    ):
        story = dataclasses.replace(made.story, columns=tuple(columns))
        table = columns_section(gather(saved(tmp_path / name, dataclasses.replace(made, story=story))))
        assert table is not None
        assert list(table.head) == shown
        assert [len(line) for line in table.rows] == [len(shown)] * len(columns)
        assert list(table.numbers) == [2] * (len(shown) - 2)


def test_no_class_is_left_out_without_a_word(tmp_path):
    """Of 26 classes the last two were missing; of more than can be listed it is said how many."""
    for many, said in ((26, "By class, on rows set aside"), (120, "the first 100 of 120 classes")):
        names = [f"class-{number}" for number in range(many)]
        sides = [{"value": 0.8, "margin": 0.1}] * many
        aside = own() | {
            "classes": names,
            "recall": sides,
            "precision": sides,
            "roc": [],
            "confusion": [[1.0] * many] * many,
        }
        made = result(test=None, classes=tuple(names), evaluation=aside)
        text = page(gather(saved(tmp_path / f"of-{many}", made)))
        assert said in Reader(text).text
        assert text.count('scope="row" data-name="class">') == min(many, 100)
        assert ("<title>Confusion matrix</title>" in text) == (many == 26)


def test_the_card_begins_with_how_good_how_private_and_how_to_check(tmp_path):
    card = (saved(tmp_path / "model", result(test=None, evaluation=own())) / "model_card.md").read_text()
    first = card[: card.index("## What is protected")]
    assert "**How good it is**: The model is right on 80.0% ± 5.0 of 300 rows that were set aside." in first
    assert "**How private it is**: ε = 1, δ = 0, for one label. Whoever sees" in first
    assert "`labeldp verify model`" in first
    bare = (saved(tmp_path / "bare", result(test=None)) / "model_card.md").read_text()
    assert "**How good it is**: not measured on labels." in bare


def test_card_and_page_speak_of_one_label_or_of_all_labels_of_a_user(tmp_path):
    def of(unit, name):
        made = result(test=None)
        by = dataclasses.replace(made.certificate, unit=unit)
        folder = saved(tmp_path / name, dataclasses.replace(made, certificate=by))
        return (folder / "model_card.md").read_text("utf-8"), Reader(page(gather(folder))).text

    for text in of(ONE_LABEL, "label"):
        assert "no matter whose it is, against anyone" in text
        assert "Each is protected on its own: together they are protected less." in text
        assert "It was not measured: no rows were set aside (--holdout), and no table" in text
    for text in of(ONE_USER, "user"):
        assert "no matter who that is, against anyone" in text
        assert "Several labels of one person" not in text
        # None can be set aside here: whoever followed such a hint would be refused.
        assert "(--test), and rows cannot be set aside where a user's rows are paid for together." in text
        assert "--holdout" not in text
    made = result(test=None)
    learnt = unmeasured(dataclasses.replace(made.story, released="ab" * 32), made.certificate)
    assert learnt.endswith("responses that were released before cannot be set aside")
