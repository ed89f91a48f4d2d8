"""Make CHANGELOG.md from the notes in changelog.d/, one file per change.

    python scripts/changelog.py                    write anew what is not released yet, under the heading that it has
    python scripts/changelog.py --prepare 1.0.0    head it "1.0.0 (unreleased)" and set the version; the notes stay
    python scripts/changelog.py --release 1.0.0    head it with version and date, set the version, remove the notes
    python scripts/changelog.py --check            exit with 1 where CHANGELOG.md lacks a note

Notes are named NUMBER-topic.md, or topic.md. Each paragraph that begins with "Added:", "Changed:", "Removed:", "Fixed:"
or "Security:" is a line under that heading. Another paragraph belongs to the line before it, or is a change.
Lines come newest number first, and released sections stay as they are. While a version is being prepared, notes go on
arriving, and the first command puts them in. The version is written in pyproject.toml, and CITATION.cff repeats it.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# Changelog

What changed for users, newest first. Made by `scripts/changelog.py` from the notes in `changelog.d/`; what may change
between versions is in [docs/versions.md](docs/versions.md).
"""
UNRELEASED = "Unreleased"
# As https://keepachangelog.com has them.
KINDS = ("Added", "Changed", "Removed", "Fixed", "Security")
_PENDING = re.compile(r"^## (Unreleased|\S+ \(unreleased\))$", re.M)
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


def notes(root: Path) -> list[tuple[int, str, str]]:
    """Return number, topic and text of every note, newest number first."""
    found = []
    for path in (root / "changelog.d").glob("*.md"):
        if path.name != "README.md" and (match := re.fullmatch(r"(?:(\d+)-)?([\w-]+)", path.stem)):
            # Links are written as seen from changelog.d/.
            found.append(
                (int(match[1] or 0), match[2], path.read_text(encoding="utf-8").strip().replace("](../", "]("))
            )
    # Those without a number are of no issue, and come first.
    return sorted(found, key=lambda note: (note[0] > 0, -note[0], note[1]))


def name(note: tuple[int, str, str]) -> str:
    """Return the file of a note."""
    return f"{note[0]}-{note[1]}.md" if note[0] else f"{note[1]}.md"


def entries(note: tuple[int, str, str]) -> list[tuple[str, str]]:
    """Return the lines of a note, each with its kind.

    >>> entries((6, "command-line", "Added: `labeldp train` trains.\\n\\nFixed: It ends."))
    [('Added', '- `labeldp train` trains. (#6)'), ('Fixed', '- It ends. (#6)')]
    """
    number, _, text = note
    found: list[tuple[str, str]] = []
    for paragraph in text.split("\n\n"):
        kind, _, rest = paragraph.partition(":")
        if kind in KINDS:
            found.append((kind, rest))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n\n{paragraph}")
        else:
            found.append(("Changed", paragraph))
    lines = []
    for kind, whole in found:
        first, *more = whole.split("\n\n")
        line = " ".join(["-", *first.split(), *([f"(#{number})"] if number else [])])
        # Lists and tables stay as they are, below the line.
        below = [f"  {row}".rstrip() for row in "\n\n".join(more).splitlines()]
        lines.append((kind, "\n".join([line, *(["", *below] if more else [])])))
    return lines


def section(title: str, listed: list[tuple[int, str, str]]) -> str:
    """Return a section with a line for each change, under the headings of their kinds.

    >>> print(section("Unreleased", [(6, "command-line", "Added: `labeldp train` trains.")]))
    ## Unreleased
    <BLANKLINE>
    ### Added
    <BLANKLINE>
    - `labeldp train` trains. (#6)
    <BLANKLINE>
    """
    lines = [f"## {title}", ""]
    every = [entry for note in listed for entry in entries(note)]
    for kind in KINDS:
        if chosen := [line for found, line in every if found == kind]:
            lines += [f"### {kind}", "", *chosen, ""]
    return "\n".join(lines)


def released(text: str) -> str:
    """Return the sections of released versions as CHANGELOG.md has them."""
    parts = re.split(r"^(?=## )", text, flags=re.M)[1:]
    return "\n".join(part.strip() + "\n" for part in parts if not _PENDING.match(part))


def write(root: Path, title: str | None = None) -> None:
    """Write CHANGELOG.md with the notes under this title; under the one they had when None."""
    path = root / "CHANGELOG.md"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    listed, pending = notes(root), _PENDING.search(before)
    title = title or (pending[1] if pending else UNRELEASED)
    parts = [HEAD, section(title, listed)] if listed else [HEAD]
    path.write_text("\n".join([*parts, released(before)]).rstrip() + "\n", encoding="utf-8")


def set_version(root: Path, version: str) -> None:
    """Put the version into pyproject.toml, its one place, and into CITATION.cff, which repeats it."""
    for name, pattern in (("pyproject.toml", r'^version = ".*"$'), ("CITATION.cff", r"^version: .*$")):
        path = root / name
        line = f'version = "{version}"' if name.endswith(".toml") else f"version: {version}"
        text, count = re.subn(pattern, line, path.read_text(encoding="utf-8"), count=1, flags=re.M)
        if count != 1:
            raise SystemExit(f"{name} has no line with a version; restore it")
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--prepare", metavar="VERSION", help="write the notes under this version, and keep them")
    step.add_argument("--release", metavar="VERSION", help="write the notes under this version, and remove them")
    step.add_argument("--check", action="store_true", help="only say whether CHANGELOG.md has every note")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the project")
    given = parser.parse_args()
    if given.check:
        text = (given.root / "CHANGELOG.md").read_text(encoding="utf-8")
        listed = notes(given.root)
        missing = [name(one) for one in listed if any(line not in text for _, line in entries(one))]
        if missing:
            print(f"CHANGELOG.md lacks {', '.join(missing)}; run: python scripts/changelog.py")
        sys.exit(bool(missing))
    version = given.release or given.prepare
    if version is None:
        write(given.root)
        return
    if not _VERSION.fullmatch(version):
        raise SystemExit(f"{version} is no version; give one as in 1.0.0 or 1.0.0rc1")
    if re.search(rf"^## {re.escape(version)} \(\d", (given.root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M):
        raise SystemExit(f"{version} is released already; take the next version (docs/versions.md)")
    write(given.root, f"{version} ({datetime.now(UTC).date().isoformat() if given.release else 'unreleased'})")
    set_version(given.root, version)
    for note in notes(given.root) if given.release else ():
        (given.root / "changelog.d" / name(note)).unlink()


if __name__ == "__main__":
    main()
