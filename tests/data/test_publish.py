"""All or nothing, whatever goes wrong between the first byte and the last name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from labeldp import atomic
from labeldp.core.certificate import certify, read, verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Ledger
from labeldp.core.random import SecureRandom
from labeldp.data.request import TableError
from labeldp.data.tables import certificate_path, publishing


def claim():
    groups = Ledger(3).charge(PureDP(1.0)).groups()
    return certify(groups, 0.0, noise=SecureRandom().source, seeded=False)


def write(target: Path, meanwhile: Callable[[], object] = bool) -> None:
    with publishing(target) as draft:
        draft.path.write_bytes(b"artifact")
        draft.seal(claim())
        meanwhile()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_both_files_appear_and_agree(tmp_path):
    target = tmp_path / "out.csv"
    write(target)
    assert names(tmp_path) == ["out.csv", "out.csv.certificate.json"]
    assert verify(read(certificate_path(target)), target) == ()


def test_new_files_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write(tmp_path / "out.csv")
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


@pytest.mark.parametrize("taken", ["out.csv", "out.csv.certificate.json"])
def test_nothing_is_overwritten(tmp_path, taken):
    (tmp_path / taken).write_text("mine")
    with pytest.raises(TableError, match="never overwritten"):
        write(tmp_path / "out.csv")
    assert names(tmp_path) == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("taken", ["out.csv", "out.csv.certificate.json"])
def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path, taken):
    with pytest.raises(TableError, match="appeared meanwhile"):
        write(tmp_path / "out.csv", lambda: (tmp_path / taken).write_text("mine"))
    assert names(tmp_path) == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_a_dangling_link_counts_as_existing(tmp_path):
    (tmp_path / "out.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TableError, match="never overwritten"):
        write(tmp_path / "out.csv")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(TableError, match="does not exist"):
        write(tmp_path / "no" / "out.csv")


def test_an_unsealed_draft_is_a_bug_and_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="seal"), publishing(tmp_path / "out.csv"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, ValueError, MemoryError])
def test_any_exception_removes_the_draft(tmp_path, stop):
    def fail():
        raise stop

    with pytest.raises(stop):
        write(tmp_path / "out.csv", fail)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "no room"), (errno.EFBIG, "no room"), (errno.EDQUOT, "no room"), (errno.EIO, "cannot be written")],
)
def test_disk_errors_become_sentences(tmp_path, code, words):
    with pytest.raises(TableError, match=words), publishing(tmp_path / "out.csv"):
        raise OSError(code, "secret")
    assert names(tmp_path) == []


@pytest.mark.parametrize("at", ["link 1", "link 2", "after 1", "after 2", "sync"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(errno.EIO, "")])
def test_an_interrupt_while_publishing_leaves_nothing(tmp_path, monkeypatch, at, stop):
    calls = []
    real_link, real_flush = os.link, atomic.flush

    def link(path, final):
        calls.append(final)
        if at == f"link {len(calls)}":
            raise stop
        real_link(path, final)
        if at == f"after {len(calls)}":
            raise stop

    def flush(path):
        if at == "sync" and path.is_dir():
            raise stop
        real_flush(path)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(atomic, "flush", flush)
    with pytest.raises((KeyboardInterrupt, TableError)):
        write(tmp_path / "out.csv")
    assert names(tmp_path) == []


def test_folders_without_hard_links_work_and_still_do_not_overwrite(tmp_path, monkeypatch):
    def no_links(path, final):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    write(tmp_path / "out.csv")
    assert names(tmp_path) == ["out.csv", "out.csv.certificate.json"]
    with pytest.raises(TableError, match="meanwhile"):
        write(tmp_path / "two.csv", lambda: (tmp_path / "two.csv").write_text("mine"))
    assert (tmp_path / "two.csv").read_text() == "mine"
    assert not certificate_path(tmp_path / "two.csv").exists()


def test_the_certificate_comes_first(tmp_path, monkeypatch):
    order = []
    real = os.link
    monkeypatch.setattr(os, "link", lambda path, final: (order.append(Path(final).name), real(path, final)))
    write(tmp_path / "out.csv")
    assert order == ["out.csv.certificate.json", "out.csv"]
