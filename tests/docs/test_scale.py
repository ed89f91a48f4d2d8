"""The blocks of the page on several machines run, and print what they say; those about Spark where there is Spark."""

import re
import warnings

import pytest

from tests.docs.pages import blocks, text
from tests.engines import sessions


def section(name):
    return re.split(r"^## ", text("scale").split(f"\n## {name}\n")[1], flags=re.M)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_the_blocks_about_spark(tmp_path, monkeypatch, capsys):
    sessions.spark_or_skip()
    started = sessions.session(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    try:
        for number, block in enumerate(blocks(section("Spark"), "python")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                exec(compile(block, f"scale.md, Spark, block {number + 1}", "exec"), names)
            said = re.findall(r"^ *print\(.*\)  # (.+)$", block, re.M)
            printed = capsys.readouterr().out
            assert [words for words in said if words not in printed] == []
    finally:
        started.stop()
    from labeldp.results.verify import verify_folder
    from tests import commands

    assert verify_folder(tmp_path / "model") == ()
    assert "holds" in commands.labeldp("verify", "private/_certificate.json", cwd=tmp_path, check=0).stdout
    assert len(names["journal"].queries()) == 1
