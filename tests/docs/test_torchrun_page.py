"""What the page on scale says about torchrun: its script in one rank here, script and command in two by torchrun."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from labeldp.core.certificate import parse, verify
from tests.commands import labeldp
from tests.docs.pages import text


def script():
    (found,) = re.findall(r'^```python title="descend.py"\n(.*?)^```', text("scale"), re.S | re.M)
    return found


def table(folder):
    rows = np.random.default_rng(0).normal(size=(400, 3))
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a + b > 0 else 'no'}" for a, b, c in rows]
    (folder / "patients.csv").write_text("\n".join(["a,b,c,diagnosis", *lines]) + "\n")


def test_the_script_runs_in_one_rank(tmp_path, monkeypatch, capsys):
    table(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    exec(compile(script(), "descend.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out
    assert verify(parse((tmp_path / "certificate.json").read_text())) == ()


def torchrun(folder, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    told = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_script_and_command_run_in_two_ranks(tmp_path):
    table(tmp_path)
    (tmp_path / "descend.py").write_text(script())
    (line,) = re.findall(r"`torchrun (--standalone [^`]*descend.py)`", text("scale"))
    printed = torchrun(tmp_path, *shlex.split(line))
    assert printed.count("each added its part of the noise") == 1
    assert verify(parse((tmp_path / "certificate.json").read_text())) == ()
    (line,) = re.findall(r"^\$ torchrun (.*?\\\n.*)$", text("scale"), re.M)
    torchrun(tmp_path, *shlex.split(line.replace("\\\n", " ")))
    assert "holds" in labeldp("verify", "model", cwd=tmp_path, check=0).stdout
