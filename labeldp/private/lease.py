"""Prepaid looks, drawn one by one; and what happens when a mechanism fails while it holds labels."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from labeldp.accounting.ledger import BudgetExceededError
from labeldp.private.mechanism import LabelArray, Mechanism
from labeldp.private.randomness import SecureRandom

Out = TypeVar("Out")


class MechanismError(RuntimeError):
    """A mechanism failed while it held labels. Its own message is withheld: it could quote a label."""


class Lease(Generic[Out]):
    """Prepaid looks: call it to draw the next one."""

    def __init__(
        self, draw: Callable[..., Out | Withheld], times: int, before: Callable[[], None] | None = None
    ) -> None:
        self._draw = draw
        self._remaining = times
        self._before = before
        self._lock = threading.Lock()
        self._home = os.getpid()

    @property
    def remaining(self) -> int:
        """How many looks are paid for and not drawn yet."""
        return self._remaining

    def __call__(self, *args: Any) -> Out:
        """Draw the next prepaid answer. Public arguments of the mechanism (a model, say) are passed on."""
        stay_home(self._home)
        with self._lock:
            if self._remaining == 0:
                raise BudgetExceededError("this lease is used up; lease more looks from the vault")
            # On disk before anything is drawn: when this fails, no look is taken.
            if self._before is not None:
                self._before()
            self._remaining -= 1
        answer = self._draw(*args)
        # Raised here and not where it happened: no frame of the traceback then holds a label.
        if isinstance(answer, Withheld):
            raise answer.error
        return answer

    def __repr__(self) -> str:
        return f"Lease({self.remaining} looks left)"

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a Lease cannot be pickled or copied; it holds the way to true labels")


@dataclass(frozen=True)
class Withheld:
    """A failure without its message and its frames."""

    error: BaseException


def draw(mechanism: Mechanism[Out], labels: LabelArray, rng: SecureRandom, *args: Any) -> Out | Withheld:
    """One answer, or the bare fact that there is none."""
    try:
        return mechanism.sample(labels, rng, *args)
    except KeyboardInterrupt:
        return Withheld(KeyboardInterrupt())
    except BaseException as error:
        return Withheld(
            MechanismError(
                f"{type(mechanism).__name__} failed with {type(error).__name__} while it held labels; the look "
                "stays charged and the message is withheld because it could quote a label. Reproduce it on "
                "made-up labels with labeldp.testing.check_mechanism"
            )
        )


def stay_home(home: int) -> None:
    """Refuse in a forked process: what it spends, its parent's ledger would not know."""
    if os.getpid() != home:
        raise RuntimeError("a LabelVault cannot be asked in a forked process: its spending would be lost; ask before")
