"""Walk through what a stranger meets, before a release: each step by itself, a table of what passed at the end.

    python scripts/walk.py                   all of it; a quarter of an hour on two quiet cores
    python scripts/walk.py links mistakes    these steps only
    python scripts/walk.py --list            what there is

Exit code 1 where a step failed; its output is in build/walk/STEP.txt.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
_TEST = (PYTHON, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "slow or not slow")
STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "version": ("one version, extras that hints name, files of a release", (*_TEST, "tests/test_release.py")),
    "changelog": ("every note is in CHANGELOG.md", (PYTHON, "scripts/changelog.py", "--check")),
    "start": ("commands start as quickly as before", (PYTHON, "scripts/start_times.py")),
    "mistakes": (
        "the 32 mistakes that people make, and more",
        (*_TEST, "tests/cli/test_mistakes.py", "tests/cli/test_cli_errors.py"),
    ),
    "links": ("links, words of the glossary, spelling", (*_TEST, "tests/docs/test_words.py")),
    "pages": ("README and every page: Python and commands", (*_TEST, "tests/docs")),
    "estimators": ("scikit-learn's own checks", (*_TEST, "tests/estimator/test_sklearn_checks.py")),
    "browser": (
        "the report page in a browser, at three widths",
        (*_TEST, "tests/results/test_browser.py", "tests/results/test_page.py"),
    ),
    "site": ("the site without a warning", (PYTHON, "-m", "mkdocs", "build", "--strict")),
    "wheel": (
        "wheel and source in empty environments: README, demo, tutorials",
        (PYTHON, "scripts/try_wheel.py", "--tutorials"),
    ),
}


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("steps", nargs="*", help="all when none is named")
    parser.add_argument("--list", action="store_true", help="show the steps")
    given = parser.parse_args()
    unknown = [name for name in given.steps if name not in STEPS]
    if unknown:
        raise SystemExit(f"there is no step {unknown[0]!r}; the steps are {', '.join(STEPS)}")
    if given.list:
        print("\n".join(f"{name:<12}{what}" for name, (what, _) in STEPS.items()))
        return
    kept = ROOT / "build" / "walk"
    kept.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in given.steps or STEPS:
        what, command = STEPS[name]
        begun = time.perf_counter()
        with (kept / f"{name}.txt").open("w", encoding="utf-8") as file:
            code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        failed += [name] * bool(code)
        # A test that found no browser, say, has shown nothing: whoever releases has to know.
        skipped = re.findall(r"(\d+) skipped", (kept / f"{name}.txt").read_text(encoding="utf-8"))
        what += f"; {skipped[-1]} tests were skipped" if skipped else ""
        print(f"{'FAILED' if code else 'passed':<8}{name:<12}{time.perf_counter() - begun:>7.0f} s  {what}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; see build/walk")


if __name__ == "__main__":
    main()
