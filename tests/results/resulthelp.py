"""A small result without any learning: a table of class shares from private answers."""

import numpy as np

from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.results.card import Story
from labeldp.results.folder import Result

CLASSES = ("no", "yes")


def result(epsilon=1.0, rng=None, rows=200):
    labels = np.arange(rows) % 2
    vault = LabelVault(labels, 2, rng=rng)
    responses = vault.release(RandomizedResponse(epsilon, 2))
    certificate = vault.certificate(0.0)
    story = Story("visits.csv", "y", CLASSES, rows, ("age", "town"), "rr", "It is the only one here.", epsilon, 0.0)
    run = {"train": {"table": "visits.csv", "label": "y", "classes": list(CLASSES), "epsilon": epsilon}}
    metrics = {"epsilon": certificate.epsilon, "delta": 0.0, "expected": {"answers_right": 0.73}}
    shares = np.bincount(responses.hard(), minlength=2) / rows
    return Result("Shares", {"epsilon": epsilon}, {"shares": shares}, certificate, run, story, metrics)
