"""A client process never holds a label: its whole memory is searched for what the labels look like."""

import contextlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.core.vault import LabelVault
from tests.service.servicehelp import NAME, service

ROWS, CLASSES = 3000, 251
# Consecutive labels that no noise reproduces: 251^-12 times a memory of 2^32 bytes is below 10^-19.
_RUN = 12
_CLIENT = """
import sys
from labeldp.service import RemoteVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments
import numpy as np

address, token, dataset, rows, classes, held = sys.argv[1:7]
rows, classes = int(rows), int(classes)
vault = RemoteVault(address, token=token, dataset=dataset, ids=[f"patient-{i}" for i in range(rows)])
kept = [
    vault.release(RandomizedResponse(1.0, classes)),
    vault.release(GroupCounts(np.arange(rows) % 10, 10, classes, LaplaceNoise(1.0))),
    vault.release(Moments(np.ones((rows, 2), dtype=np.float32), classes, LaplaceNoise(1.0), 2.0)),
]
planted = np.fromfile(held, dtype=np.uint8) if held else None
print("ready", flush=True)
sys.stdin.read()
"""


def forms(labels):
    """What labels may look like in memory: numbers of every width and kind, one after the other."""
    for kind in ("u1", "<u2", "<i4", "<i8", "<f4", "<f8"):
        whole = labels.astype(kind)
        for start in (0, len(labels) // 2, len(labels) - _RUN):
            yield whole[start : start + _RUN].tobytes()


def pages(process):
    """Yield all that is in a process' memory and can be written to, as runs of pages that are there."""
    size = os.sysconf("SC_PAGE_SIZE")
    with (
        open(f"/proc/{process}/maps") as maps,
        open(f"/proc/{process}/pagemap", "rb", 0) as table,
        open(f"/proc/{process}/mem", "rb", 0) as memory,
    ):
        for line in maps:
            span, access, *_ = line.split()
            low, high = (int(part, 16) for part in span.split("-"))
            if not access.startswith("rw"):
                continue
            table.seek(low // size * 8)
            there = np.frombuffer(table.read((high - low) // size * 8), dtype=np.uint64) >> np.uint64(62) > 0
            edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
            for first, last in edges.reshape(-1, 2):
                with contextlib.suppress(OSError):
                    memory.seek(low + int(first) * size)
                    yield memory.read(int(last - first) * size)


def found_in(process, patterns):
    """How many of the patterns are in a process' memory."""
    needles = list(patterns)
    return len({number for content in pages(process) for number, needle in enumerate(needles) if needle in content})


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a memory image is read from /proc")
@pytest.mark.parametrize("planted", [False, True], ids=["a client", "one that holds labels"])
def test_no_label_is_in_the_memory_of_a_client(planted, tmp_path):
    labels = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    labels.astype(np.uint8).tofile(tmp_path / "labels")
    with service(LabelVault(labels, CLASSES)) as found:
        given = [found.address, found.token, NAME, ROWS, CLASSES, tmp_path / "labels" if planted else ""]
        command = [sys.executable, "-c", textwrap.dedent(_CLIENT), *map(str, given)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout.readline() == "ready\n"
            try:
                hits = found_in(client.pid, forms(labels))
            except PermissionError:
                pytest.skip("this system lets nobody read the memory of another process")
            finally:
                client.stdin.close()
    # The search finds labels where they were planted.
    assert (hits > 0) == planted
