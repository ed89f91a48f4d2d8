"""The model card: what is protected, what is not, and what epsilon means, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labeldp.core.certificate import Certificate
from labeldp.results.words import at_most, odds_in_words

_BELIEFS = (0.01, 0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Story:
    """What a result was made of, in public numbers and names.

    Args:
        data: the table or data set, by name.
        label: the secret column, empty where a data set has none of its own.
        classes: as declared; None for a number.
        rows: labels in the vault.
        features: the public columns the model reads, or one line that says what they are.
        method: the recipe.
        reason: why that one.
        epsilon, delta: what was asked for; the certificate says what it came to.
        bounds: of a number, as declared; None for classes.
    """

    data: str
    label: str
    classes: tuple[str, ...] | None
    rows: int
    features: tuple[str, ...]
    method: str
    reason: str
    epsilon: float
    delta: float
    bounds: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        fields = asdict(self)
        lists = ("classes", "features", "bounds")
        return fields | {name: None if fields[name] is None else list(fields[name]) for name in lists}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Story:
        """Back from plain values; TypeError or KeyError when some are missing."""
        # Folders that were written before numbers could be trained on have no bounds.
        told = {"bounds": None, **fields}
        lists = {name: None if told[name] is None else tuple(told[name]) for name in ("classes", "bounds")}
        return cls(**{**told, **lists, "features": tuple(told["features"])})


def promise(certificate: Certificate) -> str:
    """The claim in one sentence, as the card and the command line give it."""
    return odds_in_words(certificate.epsilon, certificate.delta, certificate.unit.protects)


def model_card(certificate: Certificate, story: Story, metrics: Mapping[str, Any], name: str) -> str:
    """The card as Markdown, with the header that model hubs read."""
    parts = (
        _header(story), f"# {name}", _what(story), _promise(certificate), _not_promised(story),
        _made(certificate, story), _measures(metrics, story), _use(name),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def number_words(story: Story) -> str:
    """What is predicted where it is no class."""
    return "a number" if story.bounds is None else "a number from {:g} to {:g}".format(*story.bounds)


def _header(story: Story) -> str:
    task = "tabular-regression" if story.classes is None else "tabular-classification"
    tags = ("label-differential-privacy", "differential-privacy", task)
    return "\n".join(["---", "library_name: labeldp", "tags:", *(f"- {tag}" for tag in tags), "---"])


def _what(story: Story) -> str:
    secret = f"`{story.label}`" if story.label else "the label"
    of = (
        number_words(story)
        if story.classes is None
        else f"one of {len(story.classes)} classes: {_listed(story.classes)}"
    )
    return (
        f"Predicts {secret} ({of}) from public features. Trained on {story.rows:,} rows of {story.data} whose labels "
        "are secret, with label differential privacy."
    )


def _promise(certificate: Certificate) -> str:
    told = [
        "## What is protected",
        f"**{certificate.unit.protects[0].upper()}{certificate.unit.protects[1:]}**, whoever it belongs to, against "
        "anyone who has this folder, knows all features and all other labels, and has any amount of computing power.",
        f"ε = {at_most(certificate.epsilon)}, δ = {at_most(certificate.delta)}. {promise(certificate)}",
    ]
    if math.isfinite(certificate.epsilon) and certificate.epsilon < 50:
        told.append(_beliefs(certificate))
    if certificate.seeded:
        told.append("**Not private**: the noise came from a seed. Whoever knows the seed can undo it.")
    return "\n\n".join(told)


def _beliefs(certificate: Certificate) -> str:
    rows = [f"| {belief:.0%} | {_after(belief, certificate.epsilon)} |" for belief in _BELIEFS]
    head = ["| who gave one value, against another, a chance of | can come to give it at most |", "|---|---|"]
    return "\n".join([*head, *rows])


def _after(belief: float, epsilon: float) -> str:
    """The largest belief after: odds times e^ε. Rounded up; never a certainty that is not there."""
    odds = belief / (1 - belief) * math.exp(epsilon)
    percent = at_most(100 * odds / (1 + odds), 3)
    return "almost 100%" if float(percent) >= 100 else f"{percent}%"


def _not_promised(story: Story) -> str:
    return "\n".join([
        "## What is not protected",
        "",
        "- **Features**, and that a row is in the table. They count as public here; the model may show them.",
        "- **What the features tell.** If a label can be guessed from them, this model may guess it right, also for "
        "people who were never in the table.",
        "- **The list of classes** was declared, not read off the labels." if story.classes is not None else
        "- **The bounds of the label** were declared, not read off the labels; numbers beyond them count as the nearer "
        "bound, and how many there are is not told.",
        "- **Other releases** of the same labels. Their epsilons add up with this one; keep one budget store for all.",
        "- **Labels that come as several rows** of one person, unless the line above says all labels of one user.",
    ])  # fmt: skip


def _made(certificate: Certificate, story: Story) -> str:
    lines = [
        "## How it was made", "",
        f"Method: `{story.method}`. {story.reason}".rstrip(), "",
        f"Features: {_listed(story.features, 40)}.", "",
        f"Asked for: ε = {story.epsilon:g}, δ = {story.delta:g}. Every look at the labels:", "",
        f"| {certificate.unit.counted} | looks | cost of each |", "|---|---|---|",
    ]  # fmt: skip
    queries = [(group.rows, query) for group in certificate.groups for query in group.queries]
    lines += [f"| {count:,} | {query.times} | {query.event} |" for count, query in queries]
    lines += ["", f"Composed by: {certificate.accountant}. Noise: {certificate.noise}. Made by {certificate.made_by}."]
    return "\n".join(lines)


def _measures(metrics: Mapping[str, Any], story: Story) -> str:
    lines = ["## How good it is", ""]
    test = metrics.get("test")
    if test:
        told = ", ".join(f"{measure_words(name)} {value:.4g}" for name, value in test.items() if name != "rows")
        lines += [f"On {test['rows']:,} rows whose labels were given as public: {told}.", ""]
    else:
        lines += ["Not measured on labels: no table with public labels was given (`--test`).", ""]
    for name, value in metrics.get("expected", {}).items():
        lines.append(f"- {measure_words(name)}: {value:.4g}")
    what = "error" if story.classes is None else "accuracy"
    lines += ["", f"There is no {what} on the training labels here: it would be a look that nobody paid for."]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def measure_words(name: str) -> str:
    """A measure as people call it.

    >>> measure_words("log_loss"), measure_words("r2")
    ('log loss', 'R²')
    """
    return "R²" if name == "r2" else name.replace("_", " ")


def _use(name: str) -> str:
    commands = (f"labeldp predict {name} TABLE --out predictions.csv", f"labeldp verify {name}")
    return "\n".join(["## Use and check", "", "```console", *(f"$ {command}" for command in commands), "```"])


def _listed(names: tuple[str, ...], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more
