"""The pages of docs/, their blocks, and their commands run without a new process for each."""

import re
import shlex
from pathlib import Path

from tests import commands

ROOT = Path(__file__).parents[2]
# Tutorials have a test of their own: their commands and their Python need each other.
PAGES = sorted((ROOT / "docs").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def text(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(content, language):
    return re.findall(rf"^```{language}\n(.*?)^```", content, re.S | re.M)


def command_lines(block):
    """The commands of a console block, without the prompt."""
    return [line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


def run_command(line, folder):
    program, *arguments = shlex.split(line)
    assert program == "labeldp", f"only labeldp is run here, not {line}"
    return commands.labeldp(*arguments, cwd=folder, check=0).stdout
