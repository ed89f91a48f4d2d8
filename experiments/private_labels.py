"""How right private labels are: responses, votes of teachers, a student of the votes, labels of a head, posteriors.

    python -m experiments.private_labels --dataset cifar10 --encoder experiments/artifacts/byol_cifar10.safetensors

    answers   randomized response on every row: e^ε/(e^ε + K − 1) of them are right (δ = 0)
    votes     PATE: linear teachers on disjoint shards respond to queries about random rows. Beside it how right single
              teachers are, and their plurality without noise; and the labels of all rows by a linear student of the
              answers, in place of a network's (Tang et al. 2022, Table 2)
    surest    one-shot moment: the head's labels of all rows, and the surest of every class
    posterior responses under the head, weighed against it, and against what a network makes of them (`posteriors`)

Means over repeats with fresh noise, shards and queries. Every repeat is an (ε, δ) release of its own, by the accounting
of the recipes, which sees no vote. True labels of the benchmark are used to measure, as for any test accuracy:
what was measured here must not choose settings that are then called private. Data sets are found through LABELDP_DATA.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from experiments.kept_labels import measured_on, options, show
from experiments.pate import TEACHERS
from experiments.posteriors import posteriors
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import most_confident
from labeldp.learning.teachers import ridge_teachers
from labeldp.learning.tuning import Stage, tune
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.teachers import Rows, Teach
from labeldp.recipes import one_shot, pate
from labeldp.recipes.denoise_ssl import Classes

Line = dict[str, float]
# (ε, number of the repeat) → what was measured.
Measure = Callable[[float, int], Line]

# The student's penalty, for features of mean square length 1; the same for all settings.
_STUDENT_RIDGE = 1e-2


def responses(truth: Classes, num_classes: int) -> Measure:
    """Randomized response on every row, and the share that should be right."""

    def measure(epsilon: float, repeat: int) -> Line:
        private = LabelVault(truth, num_classes).release(RandomizedResponse(epsilon, num_classes))
        right = float((private.hard() == truth).mean())
        return {"epsilon": epsilon, "right": right, "expected": 1 / (1 + (num_classes - 1) * math.exp(-epsilon))}

    return measure


def votes(
    features: Tensor,
    truth: Classes,
    num_classes: int,
    teachers: Callable[[Tensor], Teach],
    ballot: Callable[[int], pate.Ballot],
    delta: float,
) -> Measure:
    """Votes of teachers on features.

    Args:
        teachers: features of the rows asked about → how teachers vote on them.
        ballot: its seed, the number of the repeat → how much is asked.
    """

    def measure(epsilon: float, repeat: int) -> Line:
        settings, vault = ballot(repeat), LabelVault(truth, num_classes)
        asked = truth[settings.rows(len(truth))]
        # Secret in earnest; here they are of a public benchmark.
        seen = np.zeros((settings.teachers, settings.queries), dtype=np.int16)
        taught = functools.partial(_watched, teachers, features, seen)
        begun = time.perf_counter()
        found = pate.label(taught, vault, epsilon=epsilon, delta=delta, ballot=settings)
        seconds = time.perf_counter() - begun
        plurality = np.stack([(seen == number).sum(axis=0) for number in range(num_classes)]).argmax(axis=0)
        return {
            "epsilon": epsilon, "noise": found.noise_std, "teacher right": float((seen == asked).mean()),
            "vote right": float((plurality == asked).mean()), "answered": len(found.rows),
            "right": _share(found.classes == truth[found.rows]),
            "all rows right": _share(_student(features, found, num_classes) == truth) if len(found.rows) else math.nan,
            "seconds": seconds, "teachers/min": 60 * settings.teachers / seconds,
        }  # fmt: skip

    return measure


def _watched(teachers: Callable[[Tensor], Teach], features: Tensor, seen: np.ndarray, rows: Rows) -> Teach:
    """Votes as they are, and kept in `seen`. What one teacher on made-up labels says is overwritten by the next."""
    teach = teachers(features[torch.from_numpy(rows)])

    def watched(numbers: Rows, own: Rows, labels: np.ndarray) -> np.ndarray:
        seen[numbers] = teach(numbers, own, labels)
        return seen[numbers]

    return watched


def _student(features: Tensor, found: pate.TeacherLabels, num_classes: int) -> Classes:
    """Least squares on the answered rows, as one more teacher: the class of every row, (n,)."""
    learn = ridge_teachers(features, features, num_classes, ridge=_STUDENT_RIDGE)
    return learn(np.zeros(1, dtype=np.int64), found.rows[None], found.classes[None])[0]


def sure(features: Tensor, truth: Classes, num_classes: int, per_class: list[int], delta: float) -> Measure:
    """The head of the one-shot moment: all of its labels, and the surest of every class."""
    stage = functools.cache(lambda: Stage(features, num_classes, seed=0))

    def measure(epsilon: float, repeat: int) -> Line:
        vault = LabelVault(truth, num_classes)
        plan = functools.partial(tune, stage=stage(), seed=repeat)
        shot = one_shot.train(features, vault, epsilon=epsilon, delta=delta, tune=plan)
        likely = shot.probabilities(features)
        right = likely.argmax(dim=1).cpu().numpy() == truth
        line = {"epsilon": epsilon, "all rows right": _share(right), "it expects": shot.confidence}
        for count in per_class:
            rows = most_confident(likely, count).rows().cpu().numpy()
            line |= {f"of {count}/class": float(len(rows)), f"right, {count}": _share(right[rows])}
        return line

    return measure


def _share(right: np.ndarray) -> float:
    return float(right.mean()) if right.size else math.nan


def _measures(given: argparse.Namespace) -> Iterator[tuple[str, Measure]]:
    features, truth, num_classes = measured_on(given)
    ridge = {} if given.ridge is None else {"ridge": given.ridge}
    ballot = functools.partial(
        pate.Ballot, given.teachers, given.queries, given.responses if given.agreement else given.queries,
        given.agreement or None, at_once=given.at_once,
    )  # fmt: skip
    known: dict[str, Callable[[], Measure]] = {
        "answers": lambda: responses(truth, num_classes),
        "votes": lambda: votes(
            features, truth, num_classes,
            lambda asked: TEACHERS[given.heads](features, asked, num_classes, **ridge),
            lambda seed: ballot(seed=seed), given.delta,
        ),
        "surest": lambda: sure(features, truth, num_classes, given.per_class, given.delta),
        "posterior": lambda: posteriors(features, truth, num_classes, given.epochs, given.share, given.delta),
    }  # fmt: skip
    yield from ((kind, known[kind]()) for kind in given.kinds)


def main() -> None:
    """A table for each kind of labels."""
    parser = options(__doc__)
    parser.set_defaults(repeats=3)
    kinds = ["answers", "votes", "surest"]
    parser.add_argument("--kinds", nargs="+", choices=[*kinds, "posterior"], default=kinds)
    parser.add_argument("--delta", type=float, default=1e-5, help="of votes and head; answers have 0")
    parser.add_argument("--teachers", type=int, default=800)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=250, help="the most queries that are answered")
    parser.add_argument(
        "--agreement", type=float, default=0.5, help="share of the teachers; 0: all queries are answered"
    )
    parser.add_argument("--heads", choices=list(TEACHERS), default="one look")
    parser.add_argument("--ridge", type=float, help="the teachers' penalty")
    parser.add_argument("--at-once", type=int, default=500, help="teachers trained together")
    parser.add_argument("--epochs", type=int, nargs="+", default=[4, 12, 24], help="posterior: the network's")
    parser.add_argument("--share", type=float, default=0.2, help="posterior: of ε for the moment")
    parser.add_argument("--per-class", type=int, nargs="+", default=[1000, 2000])
    given = parser.parse_args()
    for kind, measure in _measures(given):
        print(kind)
        for number, epsilon in enumerate(given.epsilon):
            repeated = [measure(epsilon, repeat) for repeat in range(1, given.repeats + 1)]
            show(repeated, names=number == 0, spread="right" if "right" in repeated[0] else "all rows right")


if __name__ == "__main__":
    main()
