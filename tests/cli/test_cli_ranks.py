"""`torchrun -m labeldp …`: one rank speaks and writes, a folder like any other, and what is killed goes on."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.commands import labeldp

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def patients(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a + b > 0 else 'no'}" for a, b, c in rows]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return tmp_path


def command(*arguments, ranks=2):
    """Its port is any that is free."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launch, "-m", "labeldp", *map(str, arguments)]


def torchrun(folder, *arguments, ranks=2):
    run = subprocess.run(
        command(*arguments, ranks=ranks), cwd=folder, env={**os.environ, **ALONE}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return run


def training(method, *more):
    return ["train", "t.csv", "--label", "y", "--classes", "no,yes", "--epsilon", "1", "--method", method, "--out", "m",
            *more]  # fmt: skip


def fake_rank(monkeypatch, rank):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_other_commands_are_the_first_ranks_alone(monkeypatch, patients, capsys):
    """Or two ranks would privatize one column twice, with different noise."""
    from labeldp.cli import app

    fake_rank(monkeypatch, 1)
    monkeypatch.chdir(patients)
    wanted = ["privatize", "t.csv", "--label", "y", "--classes", "no,yes", "--epsilon", "1", "--out", "private.csv"]
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        app.main(wanted)
    assert ended.value.code == 0
    assert capsys.readouterr() == ("", "")
    assert not (patients / "private.csv").exists()


def test_standard_input_is_refused(monkeypatch, patients):
    fake_rank(monkeypatch, 0)
    run = labeldp(*[{"t.csv": "-"}.get(one, one) for one in training("forward")], cwd=patients, check=2)
    assert "standard input reaches one rank only" in run.stderr


def test_a_rank_that_nobody_launched_is_one_sentence(monkeypatch, patients):
    fake_rank(monkeypatch, 0)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    run = labeldp(*training("forward"), cwd=patients, check=2)
    assert "MASTER_ADDR, MASTER_PORT are not set; start it with torchrun" in run.stderr
    assert not list(patients.glob(".m*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("labeldp_pro", "2 ranks trained it together."),
        ("forward", "2 ranks trained it together."),
        ("one_shot", "Rank 0 trained it alone: one_shot can share nothing but the features of images."),
    ],
)
def test_a_folder_of_ranks_is_a_folder_like_any_other(patients, method, line):
    run = torchrun(patients, *training(method))
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("secret labels") == 1
    assert run.stdout.splitlines()[-1] == line
    assert sorted(path.name for path in patients.iterdir()) == ["m", "t.csv"]
    assert "holds" in labeldp("verify", "m", cwd=patients, check=0).stdout
    labeldp("predict", "m", "t.csv", "--out", "p.csv", cwd=patients, check=0)
    claim = json.loads((patients / "m" / "certificate.json").read_text())
    said = json.dumps(claim, ensure_ascii=False)
    assert ("sums that have no noise yet" in said) is (method == "labeldp_pro")


@pytest.mark.slow
def test_a_wrong_class_costs_nothing_and_is_said_once(patients):
    run = torchrun(patients, *[{"no,yes": "no,maybe"}.get(one, one) for one in training("forward")])
    assert run.returncode != 0
    assert run.stderr.count("labeldp: ") == 1
    assert sorted(path.name for path in patients.iterdir()) == ["t.csv"]


@pytest.mark.slow
def test_a_rank_that_is_killed_loses_one_gradient_at_most_and_one_process_goes_on(patients):
    """Kill −9 of the second rank; then the same command without torchrun."""
    wanted = training("labeldp_pro")
    with subprocess.Popen(
        command(*wanted), cwd=patients, env={**os.environ, **ALONE}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        counter = patients / ".m.run" / "gradients.counter"
        begun = time.monotonic()
        while drawn(counter) < 3:
            assert time.monotonic() - begun < 200
            assert run.poll() is None
            time.sleep(0.02)
        os.kill(rank_of(run.pid, "1"), signal.SIGKILL)
        _, stderr = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "What was paid for is kept" in stderr
    before = drawn(counter)
    assert 3 <= before < 50
    assert not (patients / "m").exists()
    labeldp(*wanted, cwd=patients, check=0)
    claim = json.loads((patients / "m" / "certificate.json").read_text())
    assert claim["claim"]["epsilon"] <= 1
    assert "sums that have no noise yet" in json.dumps(claim)
    assert "holds" in labeldp("verify", "m", cwd=patients, check=0).stdout


def drawn(counter):
    """How many gradients were begun: a number alone on its line."""
    return sum(line.isdigit() for line in counter.read_bytes().split(b"\n")[:-1]) if counter.exists() else 0


def rank_of(parent, rank):
    """The process of a rank, a child of torchrun's."""
    children = f"/proc/{parent}/task/{parent}/children"
    with open(children, encoding="ascii") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/environ", "rb") as told:
                if f"RANK={rank}".encode() in told.read().split(b"\0"):
                    return int(child)
    raise AssertionError(f"no rank {rank} among the children of torchrun")
