"""The command line for tests: in this process, unless the process is the point.

A new process pays a second for its imports, and hundreds of tests ask what a command prints and how it ends. Here
it runs through the same entry (`labeldp.cli.app.run`), output caught; `in_a_process` is for what only a process shows.
"""

import contextlib
import io
import os
import subprocess
import sys
from types import SimpleNamespace

from labeldp.cli.app import run


def labeldp(*arguments, cwd=None, check=None):
    """Run `labeldp …` here: exit code, stdout and stderr, as `subprocess.run` would give them."""
    out, err = io.StringIO(), io.StringIO()
    _forget_earlier_fits()
    with contextlib.chdir(cwd or os.getcwd()), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return _checked(SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue()), check)


def in_a_process(*arguments, check=None, **more):
    """Run `python -m labeldp …`, as a user does."""
    command = [sys.executable, "-m", "labeldp", *map(str, arguments)]
    return _checked(subprocess.run(command, capture_output=True, text=True, check=False, **more), check)


def _checked(run, check):
    assert check is None or run.returncode == check, run.stderr
    assert "Traceback" not in run.stderr
    return run


def _forget_earlier_fits():
    """A command stands for a process of its own, in which nothing was fitted before."""
    spending = sys.modules.get("labeldp.estimator.spending")
    if spending is not None:
        spending.MEMORY.forget()
