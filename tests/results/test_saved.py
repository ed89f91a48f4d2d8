"""Estimators in folders: written as `labeldp train` writes them, read back exactly, read by the commands."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse

pytest.importorskip("sklearn")

import labeldp
from labeldp import LabelDPClassifier, LabelDPRegressor, LabelVault, RandomizedResponse
from labeldp.results.folder import FILES, ArtifactError
from labeldp.results.signing import SigningKey
from labeldp.results.verify import check, verify_folder
from tests import commands
from tests.estimator.helpers import CLASSES, columns, numbers

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


@pytest.fixture(autouse=True)
def _forgotten():
    from labeldp.estimator.spending import MEMORY

    MEMORY.forget()
    yield
    MEMORY.forget()


def frame(rows=600, gaps=False):
    data, y = columns(rows)
    made = pd.DataFrame(data)
    if gaps:
        made.loc[::7, "size"] = np.nan
        made.loc[::5, "kind"] = None
    return made, y


def same(one, other):
    """The same parts, bit for bit."""
    (config, arrays), (again, others) = one.to_parts(), other.to_parts()
    assert config == again
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        assert np.array_equal(array, others[name]), name
    return True


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    data, y = frame(2000, gaps=True)
    model = LabelDPClassifier(2.0, classes=CLASSES, class_weight={"yes": 2.0}, random_state=0).fit(data, y)
    place = tmp_path_factory.mktemp("saved") / "model"
    assert model.save(place, data="visits", label="answer") is model
    return model, place, data


def test_the_folder_is_that_of_train_and_verifies(saved):
    model, place, _ = saved
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert verify_folder(place) == ()
    assert check(place).certificate.epsilon == model.certificate_.epsilon
    for file in place.iterdir():
        assert not file.read_bytes().startswith(b"\x80"), "a pickle"


def test_what_is_loaded_is_what_was_saved(saved):
    model, place, data = saved
    again = labeldp.load(place)
    assert same(model, again)
    assert np.allclose(again.predict_proba(data), model.predict_proba(data), rtol=0, atol=1e-9)
    assert again.predict(data).tolist() == model.predict(data).tolist()
    assert again.classes_.tolist() == CLASSES
    assert again.class_weight == {"no": 1.0, "yes": 2.0}
    assert again.n_features_in_ == 4
    assert again.feature_names_in_.tolist() == list(data.columns)
    assert again.method_ == model.method_
    assert again.evaluation_.measures.keys() == model.evaluation_.measures.keys()
    assert again.certificate_.groups == model.certificate_.groups
    assert (again.certificate_.epsilon, again.certificate_.delta) == (model.certificate_.epsilon, again.delta)


def test_what_was_loaded_can_be_saved_again(saved, tmp_path):
    model, place, _ = saved
    labeldp.load(place).save(tmp_path / "again", data="visits", label="answer")
    assert verify_folder(tmp_path / "again") == ()
    assert same(labeldp.load(tmp_path / "again"), model)
    stories = [json.loads((folder / "certificate.json").read_text())["release"]["story"]
               for folder in (place, tmp_path / "again")]  # fmt: skip
    assert stories[0] == stories[1]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_labeldp_predict_reads_it_and_agrees(saved, suffix, tmp_path):
    model, place, data = saved
    table = pa.Table.from_pandas(data.iloc[:, ::-1], preserve_index=False)
    path = tmp_path / f"new.{suffix}"
    pyarrow.csv.write_csv(table, path) if suffix == "csv" else pq.write_table(table, path)
    out = tmp_path / "predictions.parquet"
    commands.labeldp("predict", str(place), str(path), "--out", str(out), "--probabilities", check=0)
    found = pq.read_table(out).to_pydict()
    assert found["prediction"] == model.predict(data).tolist()
    assert np.allclose(found["probability of yes"], model.predict_proba(data)[:, 1], atol=1e-6)


def test_labeldp_verify_and_report_read_it(saved, tmp_path):
    _, place, _ = saved
    assert "the certificate holds, for epsilon 2." in commands.labeldp("verify", str(place), check=0).stdout
    commands.labeldp("report", str(place), "--out", str(tmp_path / "page.html"), check=0)
    page = (tmp_path / "page.html").read_text()
    assert "labeldp train --config" not in page
    assert "visits" in page
    assert "category" in page


def test_labeldp_audit_reads_it(tmp_path):
    data, y = frame(400)
    LabelDPClassifier(1.0, method="one_shot", classes=CLASSES, random_state=0).fit(data, y).save(tmp_path / "model")
    pq.write_table(pa.Table.from_pandas(data, preserve_index=False), tmp_path / "t.parquet")
    how = ("--table", str(tmp_path / "t.parquet"), "--json")
    found = json.loads(commands.labeldp("audit", str(tmp_path / "model"), *how, check=0).stdout)
    assert found["bound"] <= found["epsilon"]


def test_arrays_have_columns_by_number(tmp_path):
    x, y = numbers(300)
    model = LabelDPClassifier(1.0, method="one_shot", classes=CLASSES).fit(x, y).save(tmp_path / "model")
    again = labeldp.load(tmp_path / "model")
    assert same(model, again)
    assert not hasattr(again, "feature_names_in_")
    table = pa.table({f"x{place}": x[:, place] for place in range(4)})
    pq.write_table(table, tmp_path / "new.parquet")
    out = str(tmp_path / "told.parquet")
    commands.labeldp("predict", str(tmp_path / "model"), str(tmp_path / "new.parquet"), "--out", out, check=0)
    assert pq.read_table(out).column("prediction").to_pylist() == model.predict(x).tolist()


@pytest.mark.parametrize("classes", [[0, 1], [False, True], ["no", "yes"], [2.5, 3.5]], ids=str)
def test_classes_keep_their_type(classes, tmp_path):
    x, y = numbers(200)
    labels = np.asarray(classes)[(y == "yes").astype(int)]
    LabelDPClassifier(1.0, method="one_shot", classes=classes).fit(x, labels).save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == ()
    assert labeldp.load(tmp_path / "model").classes_.tolist() == classes


def test_numbers(tmp_path):
    x, _ = numbers(1200)
    model = LabelDPRegressor(2.0, (-3, 3), method="one_shot").fit(x, x[:, 0]).save(tmp_path / "model", label="size")
    again = labeldp.load(tmp_path / "model")
    assert same(model, again)
    assert again.bounds == (-3.0, 3.0)
    assert again.evaluation_.rows == model.evaluation_.rows
    assert verify_folder(tmp_path / "model") == ()


def test_images_and_sparse_rows(tmp_path):
    rng = np.random.default_rng(0)
    images, y = rng.random((90, 1, 12, 12)).astype(np.float32), rng.integers(0, 2, 90)
    words = scipy.sparse.random_array((90, 600), density=0.05, rng=rng, format="csr")
    for name, x in (("images", images), ("sparse", words)):
        model = LabelDPClassifier(2.0, method="one_shot", classes=[0, 1]).fit(x, y).save(tmp_path / name)
        assert same(labeldp.load(tmp_path / name), model)
        assert np.allclose(labeldp.load(tmp_path / name).predict_proba(x), model.predict_proba(x), atol=1e-6)
        assert verify_folder(tmp_path / name) == ()
        commands.labeldp("report", str(tmp_path / name), "--out", str(tmp_path / f"{name}.html"), check=0)
    told = commands.labeldp("predict", str(tmp_path / "sparse"), "x.csv")
    assert told.returncode != 0
    assert "labeldp.load(folder).predict(X)" in told.stderr


def test_labels_that_were_queried_before_count_too(tmp_path):
    x, y = numbers(200)
    vault = LabelVault((y == "yes").astype(int), 2)
    vault.release(RandomizedResponse(1.0, 2))
    model = LabelDPClassifier(1.0, 1e-6, "one_shot", classes=CLASSES).fit(x, vault).save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == ()
    assert labeldp.load(tmp_path / "model").certificate_.epsilon == model.certificate_.epsilon


def test_responses_that_were_released_before(tmp_path):
    data, y = frame(300)
    path, out = tmp_path / "t.parquet", tmp_path / "private.parquet"
    pq.write_table(pa.Table.from_pandas(data.assign(y=y), preserve_index=False), path)
    labeldp.privatize(path, out, label="y", classes=CLASSES, epsilon=1.0)
    read = labeldp.data.read_released(out)
    model = LabelDPClassifier(1.0, method="rr", classes=CLASSES, settings={"epochs": 1})
    model.fit(read.features, read.vault).save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == ()
    assert "released before" in (tmp_path / "model" / "model_card.md").read_text()


def test_a_folder_of_train_is_loaded_with_its_names_and_columns(tmp_path):
    data, y = frame(1500)
    data["when"] = pd.date_range("2020-01-01", periods=1500).strftime("%d.%m.%Y")
    data.assign(answer=y).to_csv(tmp_path / "t.csv", index=False)
    folder = tmp_path / "model"
    how = ("--label", "answer", "--classes", "no,yes", "--epsilon", "2", "--class-weight", "yes=3", "--out")
    commands.labeldp("train", str(tmp_path / "t.csv"), *how, str(folder), check=0)
    model = labeldp.load(folder)
    assert model.classes_.tolist() == CLASSES
    assert model.class_weight == {"no": 1.0, "yes": 3.0}
    out = str(tmp_path / "told.csv")
    commands.labeldp("predict", str(folder), str(tmp_path / "t.csv"), "--probabilities", "--out", out, check=0)
    told = pd.read_csv(out)
    mixed = data.iloc[:, ::-1].assign(extra=1)
    assert model.predict(mixed).tolist() == told["prediction"].tolist()
    assert np.allclose(model.predict_proba(mixed)[:, 1], told["probability of yes"], atol=1e-6)
    model.save(tmp_path / "again", label="answer")
    assert verify_folder(tmp_path / "again") == ()
    assert labeldp.load(tmp_path / "again").predict(mixed).tolist() == told["prediction"].tolist()


def test_a_folder_that_was_changed_is_refused(saved, tmp_path):
    import shutil

    shutil.copytree(saved[1], tmp_path / "copy")
    file = tmp_path / "copy" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match="not the certified one"):
        labeldp.load(tmp_path / "copy")


def test_nothing_is_overwritten_and_messages_speak_python(saved, tmp_path):
    with pytest.raises(ArtifactError, match=r"exists already.*another folder"):
        saved[0].save(saved[1])
    with pytest.raises(ArtifactError, match="does not exist"):
        saved[0].save(tmp_path / "no" / "such")
    with pytest.raises(ArtifactError, match="has no certificate"):
        LabelDPClassifier.from_parts(*saved[0].to_parts()).save(tmp_path / "bare")
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_signed(saved, tmp_path):
    key = SigningKey.new()
    saved[0].save(tmp_path / "signed", key=key)
    assert check(tmp_path / "signed", signers=[key.public]).trusted


def test_settings_that_name_a_place_stay_out(tmp_path):
    x, y = numbers(120)
    settings = {"epochs": 1, "folder": tmp_path / "kept"}
    LabelDPClassifier(1.0, method="rr", classes=CLASSES, settings=settings).fit(x, y).save(tmp_path / "model")
    text = (tmp_path / "model" / "config.toml").read_text()
    assert "epochs = 1" in text
    assert "kept" not in text
