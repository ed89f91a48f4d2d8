import errno
import json
import os
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from labeldp.results import folder as folders
from labeldp.results.folder import ArtifactError, RunFolder, drafting, read
from tests.results.resulthelp import result


def saved(target, **settings):
    with drafting(target) as draft:
        draft.write(result(**settings))
    return target


def test_a_result_comes_back_as_it_was(tmp_path):
    made = result()
    with drafting(tmp_path / "model") as draft:
        certificate = draft.write(made)
    found = read(tmp_path / "model")
    assert sorted(os.listdir(tmp_path / "model")) == sorted(folders.FILES)
    assert (found.kind, found.model, found.run, found.story) == (made.kind, made.model, made.run, made.story)
    assert np.array_equal(found.tensors["shares"], made.tensors["shares"])
    assert found.metrics == made.metrics
    assert found.certificate == certificate
    assert certificate.groups == made.certificate.groups


def test_the_run_can_be_read_from_its_config(tmp_path):
    text = (saved(tmp_path / "model") / "config.toml").read_text()
    assert tomllib.loads(text)["train"]["classes"] == ["no", "yes"]
    assert "labeldp train --config model/config.toml" in text


def test_the_card_says_what_is_and_is_not_protected(tmp_path):
    card = (saved(tmp_path / "model") / "model_card.md").read_text()
    assert "at most 2.72×" in card
    assert "| 50% | 73.2% |" in card  # e/(1 + e) = 73.105…%, rounded up
    for words in ("What is not protected", "**Features**", "Other releases", "`no`, `yes`", "200 rows of visits.csv"):
        assert words in card


def test_nothing_in_the_folder_is_a_pickle(tmp_path):
    for file in saved(tmp_path / "model").iterdir():
        assert file.suffix in {".safetensors", ".json", ".toml", ".md"}
        assert b"\x80\x04" not in file.read_bytes()[:2]


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_what_is_there_is_never_overwritten(tmp_path, there):
    target = tmp_path / "model"
    if there == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.write_text("precious") if there == "file" else target.mkdir()
    with pytest.raises(ArtifactError, match="exists already"), drafting(target):
        pytest.fail("the block was entered")
    assert os.listdir(tmp_path) == ["model"]


def test_a_place_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch):
    with pytest.raises(ArtifactError, match="create it"), drafting(tmp_path / "no" / "model"):
        pytest.fail("the block was entered")

    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(ArtifactError, match="where you may write"), drafting(tmp_path / "model"):
        pytest.fail("the block was entered")


def test_a_failure_leaves_nothing(tmp_path):
    def interrupted(draft):
        draft.write(result())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), drafting(tmp_path / "model") as draft:
        interrupted(draft)
    assert os.listdir(tmp_path) == []


def test_no_room_is_said_and_nothing_stays(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(folders, "flush", full)
    with pytest.raises(ArtifactError, match="free some"), drafting(tmp_path / "model") as draft:
        draft.write(result())
    assert os.listdir(tmp_path) == []


def test_a_name_taken_meanwhile_is_left_alone(tmp_path):
    target = tmp_path / "model"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs").write_text("precious")

    def overtaken(draft):
        draft.write(result())
        (tmp_path / "elsewhere").rename(target)

    with pytest.raises(ArtifactError, match="appeared meanwhile"), drafting(target) as draft:
        overtaken(draft)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "theirs").read_text() == "precious"


def test_a_killed_save_leaves_no_half_folder(tmp_path):
    code = (
        "import os, signal, sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
        "from tests.results.resulthelp import result\n"
        "from labeldp.results.folder import drafting\n"
        "with drafting(pathlib.Path(sys.argv[1]) / 'model') as draft:\n"
        "    draft.write(result())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path), root], check=False)
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    assert [name.startswith(".model.") for name in os.listdir(tmp_path)] == [True]
    saved(tmp_path / "model")


@pytest.mark.parametrize("name", folders.FILES)
def test_a_missing_file_is_named(tmp_path, name):
    folder = saved(tmp_path / "model")
    (folder / name).unlink()
    if name == "model_card.md":
        assert read(folder).kind == "Shares"
        return
    with pytest.raises(ArtifactError, match=name):
        read(folder)


def test_a_damaged_model_is_refused(tmp_path):
    folder = saved(tmp_path / "model")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ArtifactError, match="not the certified one"):
        read(folder)


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="not a folder"):
        read(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match=r"certificate\.json"):
        read(tmp_path)
    (tmp_path / "certificate.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ArtifactError, match=r"certificate\.json"):
        read(tmp_path)


def test_a_dry_run_leaves_what_a_stopped_run_has_paid_for(tmp_path):
    kept = tmp_path / ".model.run"
    stopped = RunFolder(tmp_path / "model")
    (stopped.of({"epsilon": 1.0}) / "responses.counter").write_text("bound\n1\n1\n")
    stopped.__exit__(KeyboardInterrupt)
    with RunFolder(tmp_path / "model"):
        pass
    assert (kept / "responses.counter").is_file()
    with RunFolder(tmp_path / "model") as run:
        run.of({"epsilon": 1.0})
    assert not kept.exists()
