"""Build the wheel and the source distribution, install each in an empty environment, and do there what a stranger does.

    python scripts/try_wheel.py                  both, with README's commands and the demo; about five minutes
    python scripts/try_wheel.py --only wheel     one of them
    python scripts/try_wheel.py --tutorials      the tutorials of docs/, too

What is built is left in build/dist. Nothing of the checkout can be imported there: commands run in a folder of their
own, in isolated mode. Each environment is new; versions are those of constraints.txt, as README has it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "dist"
# What README's commands and the tutorials need; the demo needs no more.
EXTRAS = "sklearn,store"


def run(command: list[str | Path], folder: Path, quiet: bool = True) -> str:
    """Run a command with nothing of this process's Python around it; print it, and what it said where it failed."""
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LABELDP", "VIRTUAL"))}
    begun = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr}\nfailed with {done.returncode}: {shlex.join(words)}")
    if not quiet:
        print(done.stdout.rstrip())
    print(f"  {time.perf_counter() - begun:.1f} s", flush=True)
    return done.stdout


def built() -> dict[str, Path]:
    """Build both distributions from a copy of the checkout's files; return them by kind."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="labeldp-build-") as place:
        tools = Path(place) / "tools"
        venv.create(tools, with_pip=True)
        run([tools / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "build"], ROOT)
        # From a copy: an earlier build's leftovers beside the sources would be packed as well.
        source = Path(place) / "source"
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        run([tools / "bin/python", "-m", "build", "--outdir", DIST, source], source)
    wheel, sdist = (next(DIST.glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    return {"wheel": wheel, "sdist": sdist}


def patients(path: Path) -> None:
    """Write the table that README's commands are about."""
    chance = random.Random(0)
    people = [(chance.randint(18, 90), chance.choice("FM")) for _ in range(3000)]
    rows = [f"{age},{sex},{('none', 'mild', 'severe')[(age + chance.randint(0, 15)) // 36]}" for age, sex in people]
    path.write_text("\n".join(["age,sex,diagnosis", *rows, ""]), encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def commands(page: str) -> list[list[str]]:
    """Return what a page's console blocks type, as words."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ ")]


def tried(kind: str, built_file: Path, version: str, tutorials: bool) -> None:
    """Install a distribution in a new environment, and run README, the demo and perhaps the tutorials there."""
    print(f"\n== {kind}: {built_file.name}", flush=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix=f"labeldp-{kind}-") as place:
        empty, folder = Path(place) / "empty", Path(place) / "work"
        folder.mkdir()
        venv.create(empty, with_pip=True)
        python, labeldp = empty / "bin/python", empty / "bin/labeldp"
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        run([*pip, f"labeldp[{EXTRAS}] @ {built_file.as_uri()}"], folder)
        where = run(
            [python, "-I", "-c", "import labeldp; print(labeldp.__file__, labeldp.__version__)"], folder
        ).split()
        if not where[0].startswith(str(empty)) or where[1] != version:
            raise SystemExit(f"imported {where} where {version} in {empty} was wanted")
        patients(folder / "patients.csv")
        for words in commands(readme):
            if words[0] == "labeldp":
                run([labeldp, *words[1:]], folder, quiet=words[1] != "train")
        for block in blocks(readme, "python"):
            run([python, "-I", "-c", block], folder, quiet=False)
        run([labeldp, "demo", "--out", "demo"], folder, quiet=False)
        run([labeldp, "verify", "demo/model"], folder)
        if tutorials:
            for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
                inside = folder / page.stem
                inside.mkdir()
                text = page.read_text(encoding="utf-8")
                # Nothing but labeldp's extras and what the page itself tells people to install.
                for named in re.findall(r"`pip install ([\w ]+)`", text):
                    run([*pip, *named.split()], folder)
                follow(text, python, labeldp, inside)


def follow(page: str, python: Path, labeldp: Path, folder: Path) -> None:
    """Do what a page says, block by block: Python in one session, commands when they come."""
    steps = re.findall(r"^```(python|console)\n(.*?)^```", page, re.S | re.M)
    lines = ["import os, shlex, subprocess"]
    for language, text in steps:
        if language == "python":
            lines.append(text)
            continue
        for words in commands(f"```console\n{text}```"):
            lines.append(f"subprocess.run({[str(labeldp), *words[1:]]!r}, check=True)")
    script = folder / "page.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    run([python, "-I", script.name], folder)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=("wheel", "sdist"), help="try one of them")
    parser.add_argument("--tutorials", action="store_true", help="run the tutorials of docs/ in each environment, too")
    given = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for kind, path in built().items():
        if given.only in (None, kind):
            tried(kind, path, version, given.tutorials)
    print("\nboth work" if given.only is None else f"\nthe {given.only} works", file=sys.stderr)


if __name__ == "__main__":
    main()
