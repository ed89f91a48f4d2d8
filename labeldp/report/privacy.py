"""Sections on privacy: the promise, what one label's odds do, the ledger, the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labeldp.accounting import accountant
from labeldp.accounting import events as ev
from labeldp.accounting.certificate import Certificate
from labeldp.accounting.ledger import Group, worst_epsilon
from labeldp.accounting.words import at_most
from labeldp.artifacts.card import promise
from labeldp.report import markup as m
from labeldp.report.charts import Band, Series, chart, dot_grid, legend
from labeldp.report.facts import Facts
from labeldp.report.scales import Axis

_BELIEFS = (0.01, 0.1, 0.5, 0.9)
# The narrower kinds first: some are Gaussians, too.
_EVENTS = (
    (ev.PoissonGaussian, "a noisy sum over a secret batch"),
    (ev.FixedSizeGaussian, "a noisy sum over a secret batch"),
    (ev.PublicBatchGaussian, "a noisy sum over a batch that is known"),
    (ev.PartitionGaussian, "a noisy sum over a batch that is known"),
    (ev.DiscreteGaussian, "noisy counts in whole numbers"),
    (ev.Gaussian, "a noisy sum over all rows"),
)
# Methods that ask every row for an answer of its own, and nothing else of the labels.
_ANSWERING = ("rr", "forward", "debiased", "alibi", "lp_mst")
# How labels that are numbers were asked for, by method.
_NUMBERS = {
    "one_shot": "Every number was rounded at random, without bias, to the low end, the middle or the high end of the "
    "declared range. Noise was then added to sums over all rows, where it weighs less: one number hides in the sum, "
    "while what all numbers have in common stays visible.",
    "binned_regression": "Every number was answered once, by the value of its bin or, at random, of another bin. The "
    "bins were chosen by the declared range and a noisy histogram of all numbers, whose price is in the ledger. The "
    "model never saw a true number; it learns because the law of the noise is known.",
}
_MOST_GROUPS, _MOST_LOOKS = 8, 12
_STEPS = 8


def belief_after(belief: float, epsilon: float) -> float:
    """The largest belief in one value, against another, that was `belief` before: odds times e^ε.

    >>> round(belief_after(0.5, 1.0), 4), round(belief_after(0.01, 1.0), 4), belief_after(0.0, 1.0)
    (0.7311, 0.0267, 0.0)
    """
    # 1/(1 + (1 − p)/p e^−ε), written so that no ε overflows.
    return 0.0 if belief <= 0 else belief / (belief + (1 - belief) * math.exp(-epsilon))


def belief_below(belief: float, epsilon: float) -> float:
    """The smallest: odds divided by e^ε."""
    return 1 - belief_after(1 - belief, epsilon)


def promise_section(facts: Facts) -> str:
    """What is promised, to whom, and what is not."""
    certificate = facts.certificate
    parts = [
        m.paragraph(promise(certificate), "lead"),
        m.paragraph(
            f"This holds for {certificate.unit.protects}, whoever it belongs to, against anyone who has the folder, "
            "knows all features and all other labels, and has any amount of computing power. It holds for ever; other "
            "releases of the same labels add to it."
        ),
    ]
    if certificate.seeded:
        parts.append(m.paragraph("Not private: the noise came from a seed, and whoever knows it can undo the noise."))
    if math.isfinite(certificate.epsilon):
        parts.append(m.side_by_side(_belief_figure(certificate), _belief_table(certificate)))
    return m.section("promise", "What is promised", *parts, "<h3>What is not promised</h3>", _not_promised(facts))


def _belief_figure(certificate: Certificate) -> str:
    epsilon = min(certificate.epsilon, 50.0)
    places = [index / 40 for index in range(41)]
    high, low = ([law(p, epsilon) for p in places] for law in (belief_after, belief_below))
    shown = [
        Band("after, at most and at least", places, low, high),
        Series("", list(zip(places, high, strict=True))), Series("", list(zip(places, low, strict=True))),
        Series("nothing learnt", [(0, 0), (1, 1)], tone=5, dashed=True),
    ]  # fmt: skip
    most = _percent(belief_after(0.5, epsilon))
    told = f"Who gave one value of a label even odds against another can come to at most {most}."
    x, y = Axis("belief before", 0, 1, percent=True), Axis("belief after", 0, 1, percent=True)
    picture = chart("Belief in one value of a label, before and after", told, x, y, shown)
    return m.figure(
        picture,
        f"What anyone can learn about one label at ε = {at_most(certificate.epsilon, 4)}. {told}",
        legend(shown),
    )


def _belief_table(certificate: Certificate) -> str:
    rows = [(f"{belief:.0%}", _percent(belief_after(belief, certificate.epsilon))) for belief in _BELIEFS]
    but = f" (except with probability {at_most(certificate.delta, 3)})" if certificate.delta else ""
    return m.table(f"Belief in one value of a label against another{but}", ["before", "after, at most"], rows)


def _percent(share: float) -> str:
    """Rounded up; never a certainty that is not there."""
    said = at_most(100 * share, 3)
    return "almost 100%" if float(said) >= 100 else f"{said}%"


def _not_promised(facts: Facts) -> str:
    declared, how = ("list of classes", "was declared, not read off the labels.")
    if not facts.classes:
        declared, how = (
            "bounds of the label",
            "were declared, not read off the labels; a number beyond counts as a bound.",
        )
    return m.bullets([
        ("Features,", "and that a row is in the data, count as public; the model may show them."),
        ("What the features tell:", "if a label can be guessed from them, the model may guess it right, also for "
         "people who were never in the data."),
        (f"The {declared}", how),
        ("Other releases", "of the same labels: their epsilons add up with this one. Keep one budget store for all."),
        ("Several labels of one person,", "unless the promise above says all labels of one user."),
    ])  # fmt: skip


# --- the ledger -----------------------------------------------------------------------------------------------------


def event_words(event: object) -> str:
    """What a look was, in words.

    >>> event_words(ev.PureDP(1.0))
    'a private answer, pure ε = 1'
    """
    if isinstance(event, ev.PureDP):
        return f"a private answer, pure ε = {at_most(event.epsilon, 4)}"
    said = next((words for kind, words in _EVENTS if isinstance(event, kind)), None)
    if said is None:
        return "everything, without noise" if isinstance(event, ev.NonPrivate) else str(event)
    rate = getattr(event, "rate", None)
    return f"{said}{'' if rate is None else f' of {rate:.3g} of the rows'}, {_noise(event)}"


def _noise(event: object) -> str:
    said = f"noise of deviation {getattr(event, 'noise_std', math.nan):.4g}"
    diameter = getattr(event, "diameter", None)
    return said if diameter is None else f"{said}; one label moves it by at most {diameter:.4g}"


def ledger_section(facts: Facts) -> str:
    """Every look, with ε so far; and how it grew."""
    certificate = facts.certificate
    groups = sorted(
        (group for group in certificate.groups if group.rows or group.looks),
        key=lambda group: -worst_epsilon((group,), certificate.delta),
    )
    asked, spent = at_most(facts.story.epsilon), at_most(certificate.epsilon)
    parts = [
        m.paragraph(f"Asked for: ε = {asked}, δ = {at_most(facts.story.delta, 3)}. Spent by the label that was "
                    f"looked at most: ε = {spent}, at δ = {at_most(certificate.delta, 3)}. A look is written down and "
                    "paid for before its noise is drawn.")
    ]  # fmt: skip
    rows = [row for group in groups[:_MOST_GROUPS] for row in _looks(group, certificate.delta)]
    head = [certificate.unit.counted, "looks", "what each was", "ε so far"]
    parts.append(m.table("Looks at the labels, the costliest history first", head, rows, numbers=(0, 1, 3)))
    if len(groups) > _MOST_GROUPS:
        parts.append(
            m.paragraph(f"And {len(groups) - _MOST_GROUPS:,} more histories, none of which cost more.", "soft")
        )
    if groups and sum(look.times for look in groups[0].looks) > 1:
        parts.append(_growth(groups[0], certificate.delta))
    return m.section("ledger", "What it cost", *parts, m.paragraph(_composed(certificate), "soft"))


def _composed(certificate: Certificate) -> str:
    return f"Composed by: {certificate.accountant}. Noise from: {certificate.noise}."


def _looks(group: Group, delta: float) -> list[list[str]]:
    """One line for each kind of look; ε of all up to it."""
    rows = []
    for place, look in enumerate(group.looks[:_MOST_LOOKS]):
        so_far = at_most(accountant.epsilon(group.looks[: place + 1], delta))
        rows.append([f"{group.rows:,}", f"{look.times:,}", event_words(look.event), so_far])
    if len(group.looks) > _MOST_LOOKS:
        whole = at_most(accountant.epsilon(group.looks, delta))
        rest = group.looks[_MOST_LOOKS:]
        rows.append([f"{group.rows:,}", f"{sum(look.times for look in rest):,}", f"{len(rest)} more kinds", whole])
    return rows or [[f"{group.rows:,}", "0", "not looked at", "0"]]


def growth(looks: ev.Looks, delta: float, steps: int = _STEPS) -> list[tuple[float, float]]:
    """ε after so many looks, taken in the order of the ledger: about `steps` points, the last for all of them."""
    total = sum(look.times for look in looks)
    counts = sorted({max(1, round(total * step / steps)) for step in range(1, steps + 1)})
    return [(float(count), accountant.epsilon(_first(looks, count), delta)) for count in counts]


def _first(looks: ev.Looks, count: int) -> ev.Looks:
    taken: list[ev.Look] = []
    for look in looks:
        if count > 0:
            taken.append(ev.Look(look.event, min(look.times, count)))
            count -= look.times
    return tuple(taken)


def _growth(group: Group, delta: float) -> str:
    points = growth(group.looks, delta)
    if len(points) < 2 or not all(math.isfinite(value) for _, value in points) or points[-1][1] <= 0:
        return ""
    shown = [Series("", points, dots=True)]
    told = f"After {points[-1][0]:,.0f} looks ε is {at_most(points[-1][1], 4)}."
    x, y = Axis("looks", 0, points[-1][0]), Axis("ε so far", 0, 1.05 * points[-1][1])
    picture = chart("Epsilon as looks add up", told, x, y, shown)
    return m.side_by_side(m.figure(picture, f"How ε of the costliest history grew, in the order of the ledger. {told}"))


# --- the noise ------------------------------------------------------------------------------------------------------


def noise_section(facts: Facts) -> str:
    """What one label by itself would look like behind as much privacy."""
    if not math.isfinite(facts.certificate.epsilon):
        return ""
    if facts.classes is None:
        said = _NUMBERS.get(facts.story.method)
        return m.section("noise", "How much noise that is", m.paragraph(said)) if said else ""
    epsilon, classes = facts.certificate.epsilon, facts.classes
    right = belief_after(1 / classes, epsilon)
    filled = round(100 * right)
    told = f"{filled} of 100 would be the true one; guessing blindly gives {100 / classes:.3g}."
    picture = dot_grid("Labels handed out one by one", told, filled)
    said = f"If every label were handed out by itself at ε = {at_most(epsilon, 4)}, as a randomized answer among "
    caption = f"{said}{classes} classes: {told}"
    return m.section("noise", "How much noise that is", m.side_by_side(
        m.figure(picture, caption, _dots_legend()), f"<div>{_noise_words(facts)}</div>"))  # fmt: skip


def _dots_legend() -> str:
    shown: Sequence[tuple[str, str]] = (("dot t1", "the true label"), ("hollow", "another class, drawn at random"))
    items = (
        f'<li><svg class="sample" viewBox="0 0 26 14" aria-hidden="true"><circle class="{kind}" cx="13" cy="7" r="5"/>'
        f"</svg>{m.escape(name)}</li>" for kind, name in shown
    )  # fmt: skip
    return f'<ul class="legend">{"".join(items)}</ul>'


def _noise_words(facts: Facts) -> str:
    if facts.story.method in _ANSWERING:
        return m.paragraph(
            "Labels were answered one by one: each answer carries this noise, or less where a public guess narrowed "
            "the classes. The model never saw a true label; it learns because the law of the noise is known."
        )
    return m.paragraph(
        "Here noise was added to sums or counts over many rows, where it weighs less: one "
        "label hides in the sum, while what all labels have in common stays visible. That is why the model can be "
        "right more often than single private answers would be."
    )
