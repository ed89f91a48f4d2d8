"""Memory that a step of training frees stays with the process, and the next step finds it there."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.learning.train import fit
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.models.memory import keep_freed_memory

# 128 MiB in blocks of one, three times over, in a process that has done nothing else.
STEPS = """
import resource, sys
import numpy as np
from labeldp.models.memory import keep_freed_memory

kept = sys.argv[1] == "kept" and keep_freed_memory()

def step():
    return sum(float(block[0]) for block in [np.ones(1 << 17) for _ in range(128)])

step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(), step(), step()
print(kept, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (3 << 27))
"""


def test_memory_that_was_freed_is_not_taken_from_the_system_again():
    """Shares of it that were; without the setting all of it is, so that the test would notice."""
    if not keep_freed_memory():
        pytest.skip("the allocator is another one, or the environment sets its thresholds")

    def run(how):
        done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
        said, share = done.stdout.split()
        return said, float(share)

    said, share = run("kept")
    assert said == "True"
    assert share < 0.05
    assert run("left alone")[1] > 0.5


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_thresholds_of_the_environment_stay(name, monkeypatch):
    monkeypatch.setenv(name, "131072")
    assert not keep_freed_memory.__wrapped__()


def by_batches():
    fit(nn.Linear(2, 2), torch.ones(8, 2), lambda logits, rows: logits[:, 0], epochs=1, batch_size=4)


def by_gradients():
    vault = LabelVault([0, 1, 1, 0], num_classes=2)
    vault.lease(GradientSum(nn.Linear(2, 2), torch.ones(4, 2), NormBound(1.0), noise_std=4.0), 1)()


@pytest.mark.parametrize("train", [by_batches, by_gradients])
def test_training_keeps_memory(train):
    keep_freed_memory.cache_clear()
    train()
    assert keep_freed_memory.cache_info().currsize == 1
