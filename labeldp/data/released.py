"""Stand in for a vault where only responses are left: they were released before, and learning from them costs nothing.

A recipe queries a vault once for a response of every row and learns from what comes out, with its channel. Where
somebody else drew the responses (`labeldp privatize`, or a vault of another process), `ReleasedLabels` gives the recipe
those. Whatever is computed from a release is as private as the release: that is post-processing, and no ledger changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from labeldp.core.certificate import Certificate, certify
from labeldp.core.events import PureDP
from labeldp.core.ledger import ONE_LABEL, Ledger
from labeldp.releases import NoisyLabels

UNKNOWN_NOISE = "not known here: the responses came without a certificate"


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedLabels:
    """Answer one query, the one that was drawn before, and no other. This is no vault, and it holds no true label.

    Args:
        labels: one response per row, with the channel by which it was drawn.
        claim: the certificate of these responses. Without one, the certificate of what is learnt from them states the ε
            of their channel and that their noise is not known here, so that it does not verify.

    >>> from labeldp import LabelVault, RandomizedResponse
    >>> released = ReleasedLabels(LabelVault([0, 1, 1], num_classes=2).release(RandomizedResponse(1.0, 2)))
    >>> released, released.release(RandomizedResponse(1.0, 2)) is released.labels
    (ReleasedLabels(3 responses, num_classes=2, epsilon=1.0), True)
    """

    labels: NoisyLabels
    claim: Certificate | None = None
    # What a recipe asks of a vault besides: its name, its limit, and what it was charged here.
    id: ClassVar[str] = "released before"
    place: ClassVar[str] = "all"
    budget: ClassVar[None] = None
    ledger: ClassVar[Ledger] = Ledger(0)

    def __post_init__(self) -> None:
        """Refuse a claim about other responses: that of a model learnt from them would verify, and be false."""
        if self.claim is None:
            return
        rows = sum(group.rows for group in self.claim.groups)
        events = [query.event for group in self.claim.groups for query in group.queries]
        dearest = max((event.epsilon for event in events if isinstance(event, PureDP)), default=0.0)
        if dearest < self.epsilon or (self.claim.unit == ONE_LABEL and rows != len(self)):
            raise ValueError(
                f"claim is about {rows} {self.claim.unit.counted} at epsilon {dearest:g}, and labels are {len(self)} "
                f"responses drawn at {self.epsilon:g}; give the certificate of these responses"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ReleasedLabels({len(self)} responses, num_classes={self.num_classes}, epsilon={self.epsilon})"

    @property
    def num_classes(self) -> int:
        """How many classes were declared."""
        return self.labels.num_classes

    @property
    def epsilon(self) -> float:
        """The ε of the channel of one response; the claim may be about all labels of a user, and larger."""
        return self.labels.channel.epsilon

    def release(self, mechanism: Any, rows: object = None) -> NoisyLabels:
        """Return the responses to a query for one of every row; any other query is refused.

        The mechanism says that responses are wanted. The channel they were drawn by is theirs, and may be another.
        """
        if rows is not None or not hasattr(mechanism, "log_likelihood"):
            raise ValueError(
                f"{type(mechanism).__name__} of {'some' if rows is not None else 'all'} rows cannot be drawn: there "
                "are responses that were released before, and no labels; choose a method that learns from one response "
                "of every row"
            )
        return self.labels

    def certificate(self, _delta: float | None = None) -> Certificate:
        """Return the claim: what was learnt from the responses is as private as they are."""
        if self.claim is not None:
            return self.claim
        groups = Ledger(len(self)).charge(PureDP(self.epsilon)).groups()
        return certify(groups, 0.0, noise=UNKNOWN_NOISE, seeded=False)
