"""Say in words what a result is and what it promises: ε as odds and beliefs, the story of a run, the model card.

What is promised is rounded up, never down. Names of columns, classes, files and folders come from whoever made the
table: on cards and pages they stay text, and none becomes a tag, a link or a line of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from labeldp.core.certificate import Certificate
    from labeldp.results.evaluation import Evaluation

# Beliefs that cards and reports give as examples.
BELIEFS = (0.01, 0.1, 0.5, 0.9)
# Whole numbers beyond this are not exact as floats; no table has so many rows.
_MOST = 1 << 53
# What `metrics.json` says of a test beside measures.
COUNTS = ("rows", "training_rows_left_out")


# -- what ε promises ---------------------------------------------------------------------------------------------------


def at_most(value: float, digits: int = 6) -> str:
    """Return a number ≥ 0 rounded up to this many significant digits.

    >>> at_most(0.1), at_most(1.0000004), at_most(2.0138, 3), at_most(math.inf)
    ('0.1', '1.00001', '2.02', 'infinity')
    """
    if math.isinf(value):
        return "infinity"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))
    return f"{float(rounded):.{digits}g}"


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "row"), counted(2500, "row"), counted(2, "class")
    ('1 row', '2,500 rows', '2 classes')
    """
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def odds_in_words(epsilon: float, delta: float, protects: str = "one label") -> str:
    """Return what ε means: how far the odds between two values of what is protected can move.

    `labeldp verify` looks for this sentence in the cards of old folders, too: its wording cannot change.

    >>> odds_in_words(1.0, 0.0)
    'Whoever sees the result can change their odds between two values of one label by at most 2.72×.'
    """
    if math.isinf(epsilon):
        return "No promise: the labels can be recovered."
    promise = f"Whoever sees the result can change their odds between two values of {protects} by at most "
    promise += f"{at_most(math.exp(epsilon), 3)}×" if epsilon < 50 else "an astronomical factor"
    promise += "." if delta == 0 else f", except with probability {at_most(delta, 3)}."
    return promise if epsilon < 10 else f"{promise} That protects hardly anything; below 5 is usual."


def belief_after(belief: float, epsilon: float) -> float:
    """Return the largest belief in one value, against another, that `belief` can become: odds times e^ε.

    >>> round(belief_after(0.5, 1.0), 4), round(belief_after(0.01, 1.0), 4), belief_after(0.0, 1.0)
    (0.7311, 0.0267, 0.0)
    """
    # 1/(1 + (1 − p)/p e^−ε), written so that no ε overflows.
    return 0.0 if belief <= 0 else belief / (belief + (1 - belief) * math.exp(-epsilon))


def belief_below(belief: float, epsilon: float) -> float:
    """Return the smallest belief that `belief` can become: odds divided by e^ε."""
    return 1 - belief_after(1 - belief, epsilon)


def belief_in_words(belief: float, epsilon: float) -> str:
    """Return `belief_after` in percent, rounded up, but never a certainty that is not there.

    >>> belief_in_words(0.5, 1.0), belief_in_words(0.9, 30.0)
    ('73.2%', 'almost 100%')
    """
    percent = at_most(100 * belief_after(belief, epsilon), 3)
    return "almost 100%" if float(percent) >= 100 else f"{percent}%"


# -- what a result was made of -----------------------------------------------------------------------------------------


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
        epsilon, delta: as requested; the certificate states what was spent.
        bounds: of a number, as declared; None for classes.
        released: the SHA-256 of the file of `labeldp privatize` whose responses it learnt from, at no further cost;
            empty where the run queried labels itself.
        columns: how each public column was read, as `labeldp.data.kinds.Reading` has it; empty for images.
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
    released: str = ""
    columns: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        fields = asdict(self)
        # Left out where they are empty, so that earlier versions can read the folder.
        kept = {name: value for name, value in fields.items() if value or name not in ("released", "columns")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Story:
        """Return the story of plain values; raise TypeError, KeyError or ValueError where they are none."""
        # Folders that were written before numbers could be trained on have no bounds, nor did columns have a report.
        known = {"bounds": None, "columns": (), **fields}
        lists = {name: None if known[name] is None else tuple(known[name]) for name in ("classes", "bounds")}
        lists["columns"] = tuple(map(_column, known["columns"]))
        story = cls(**{**known, **lists, "features": tuple(known["features"])})
        own = (story.data, story.label, story.method, story.reason, story.released)
        texts = (*own, *story.features, *(story.classes or ()))
        numbers = (story.rows, story.epsilon, story.delta, *(story.bounds or ()))
        if not all(isinstance(text, str) for text in texts) or not all(map(is_number, numbers)):
            raise TypeError("a text or a number of the story is none")
        if not isinstance(story.rows, int) or story.rows < 0 or not 0 <= story.delta < 1 or not story.epsilon >= 0:
            raise ValueError("rows, epsilon or delta are out of range")
        if story.bounds is not None and (len(story.bounds) != 2 or not story.bounds[0] < story.bounds[1]):
            raise ValueError("bounds are two numbers")
        return story


def _column(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a column was read, of plain values that may be a stranger's."""
    texts = {name: fields[name] for name in ("name", "read_as", "note")}
    counts = {name: fields[name] for name in ("missing", "distinct")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("a text of a column is none")
    if not all(value is None or is_number(value) for value in counts.values()):
        raise TypeError("a number of a column is none")
    return {**texts, **counts}


def column_cells(columns: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """Return how columns were read as cells of a table: name, kind, share that is missing, values, what else."""
    return [
        (
            one["name"],
            one["read_as"],
            "" if one["missing"] is None else f"{one['missing']:.1%}",
            "" if one["distinct"] is None else f"{one['distinct']:,}",
            one["note"],
        )
        for one in columns
    ]


def is_number(value: object) -> bool:
    """Return whether this is a plain number that can be shown: finite, and no larger than it could be counted."""
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) <= _MOST)


# -- the card, and what pages share with it ----------------------------------------------------------------------------


def promise(certificate: Certificate) -> str:
    """Return the claim in one sentence, as the card and the command line give it."""
    return odds_in_words(certificate.epsilon, certificate.delta, certificate.unit.protects)


def released_words(story: Story) -> str:
    """Return where responses came from that were released before; empty where the run queried labels itself."""
    if not story.released:
        return ""
    return (
        f"The model was learnt from responses that had been released before, in {story.data} (SHA-256 "
        f"{story.released[:16]}…), so no further privacy was spent. The promise is that of the responses, and covers "
        "them and this model together."
    )


def not_protected(story: Story, certificate: Certificate) -> list[tuple[str, str]]:
    """Return what the promise does not cover: what, and a sentence that goes on from it."""
    declared = (
        ("The list of classes", " was declared, not read off the labels.")
        if story.classes is not None
        else (
            "The bounds of the label",
            " were declared, not read off the labels. Numbers beyond them count as the nearer bound.",
        )
    )
    return [
        ("Features", " and the fact that a row is in the data. Both are public here, and the model may show them."),
        ("What the features reveal", ". If a label can be guessed from them, this model may guess it correctly, even "
         "for people who were never in the data."),
        declared,
        ("Other releases", " of the same labels. Their ε adds to this one, so use one budget store for all of them."),
        *(
            () if certificate.unit.counted == "users" else
            (("Several labels of one person", ". Each is protected on its own: together they are protected less."),)
        ),
    ]  # fmt: skip


def number_words(story: Story) -> str:
    """Return what is predicted where it is no class."""
    return "a number" if story.bounds is None else "a number from {:g} to {:g}".format(*story.bounds)


def measure_words(name: str) -> str:
    """Return a measure as people call it.

    >>> measure_words("log_loss"), measure_words("r2"), measure_words("auc")
    ('log loss', 'R²', 'AUC')
    """
    words = {
        "r2": "R²", "auc": "AUC", "at_bounds": "labels at the bounds",
        "majority_baseline": "always the most frequent class",
        "mean_confidence_on_training_rows": "mean confidence on the training rows",
        "share_right_of_plain_randomized_response": "share of labels that randomized response would keep",
    }  # fmt: skip
    return words.get(name, name.replace("_", " "))


def headline(story: Story, test: Mapping[str, Any], own: Evaluation | None) -> str:
    """Return how good a model is in one or two sentences, beside what needs no model; empty where it was not measured.

    Args:
        story: what it predicts.
        test: measures by rows whose labels are public, as `metrics.json` has them; may be empty.
        own: measures by rows that were set aside, where some were.
    """
    from labeldp.results.evaluation import shown

    measured = {} if own is None else own.measures
    on = f"{test['rows']:,} rows with public labels" if "rows" in test else "the rows with public labels"
    aside = f"{own.rows if own else 0:,} rows that were set aside"
    if story.classes is None:
        # R² is not given where noise hides how far the labels spread.
        name = next((name for name in ("r2", "mean_absolute_error") if name in test or name in measured), "")
        if not name:
            return ""
        plain = f"{test.get(name, 0.0):{'.3f' if name == 'r2' else '.4g'}}"
        value, on = (plain, on) if name in test else (shown(name, measured[name]), aside)
        if name == "r2":
            return f"R² is {value} on {on}. Always predicting the mean label would give 0."
        return f"On average, predictions are off by {value}, measured on {on}."
    measure = "accuracy"
    if measure not in test and measure not in measured:
        return ""
    value, on = (f"{test[measure]:.1%}", on) if measure in test else (shown(measure, measured[measure]), aside)
    words = f"The model is right on {value} of {on}."
    name = "majority_baseline"
    known = measured.get(name)
    share = f"{test[name]:.1%}" if name in test else shown(name, known) if known else ""
    if share:
        named = f"“{own.majority}”, the most frequent class," if own and own.majority else "the most frequent class"
        words += f" Always predicting {named} would be right on {share}."
    return words


def unmeasured(story: Story, certificate: Certificate) -> str:
    """Return why nobody knows how good a model is, and what would have helped, to go on from a colon."""
    never = (
        "responses that were released before cannot be set aside" if story.released
        else "rows cannot be set aside where a user's rows are paid for together"
        if certificate.unit.counted == "users" else ""
    )  # fmt: skip
    if never:
        return f"no table with public labels was given (--test), and {never}"
    return "no rows were set aside (--holdout), and no table with public labels was given (--test)"


def model_card(certificate: Certificate, story: Story, metrics: Mapping[str, Any], name: str) -> str:
    """Return the card as Markdown, with the header that model hubs read."""
    from labeldp.results.evaluation import PERCENT, evaluation_of

    own = evaluation_of(metrics)
    test: Mapping[str, Any] = metrics.get("test") or {}
    measures = (
        f"{measure_words(name)} {value:{'.1%' if name in PERCENT else '.4g'}}"
        for name, value in test.items()
        if name not in COUNTS
    )
    expected = metrics.get("expected", {})
    # A name that a shell or a block of code could misread is left to the reader.
    folder = name if re.fullmatch(r"[\w.+@%,=-]+", name) else "FOLDER"
    return render(
        "model_card.md", name=name, folder=folder, certificate=certificate, story=story, promise=promise(certificate),
        number=number_words(story), released=released_words(story),
        beliefs=[(f"{p:.0%}", belief_in_words(p, certificate.epsilon)) for p in BELIEFS],
        not_protected=not_protected(story, certificate), unmeasured=unmeasured(story, certificate),
        test=test, own=own, measures=", ".join(measures), headline=headline(story, test, own),
        expected=[(measure_words(name), f"{value:.4g}") for name, value in expected.items()],
        columns=column_cells(story.columns[:200]),
    )  # fmt: skip


# -- templates, and text that stays text -------------------------------------------------------------------------------


def render(template: str, **values: object) -> str:
    """Return a template of this folder with the values filled in, every text escaped: for HTML, or for Markdown.

    Templates have filters of their own: `at_most`, which rounds up, `count`, which groups digits, and `code`, which
    sets a name in Markdown as code.
    """
    return _templates("html" if template.endswith(".html") else "md").get_template(f"{template}.jinja").render(values)


@cache
def _templates(kind: str) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=None if kind == "html" else in_markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"at_most": at_most, "count": "{:,}".format, "code": code}
    return templates


def one_line(text: str) -> str:
    """Return the text with line breaks and control characters as spaces.

    >>> one_line("a\\nb\\x1b[1m")
    'a b [1m'
    """
    return "".join(sign if sign.isprintable() else " " for sign in text)


def in_markdown(value: Any) -> Any:
    """Return a text so that Markdown shows it as it is: no tag, no link, no cell or line of its own. Others stay.

    >>> print(in_markdown("<b>[a](b)|`c`"))
    &lt;b&gt;\\[a\\](b)\\|\\`c\\`
    """
    from markupsafe import Markup

    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = re.sub(r"([\\`*\[\]|])", r"\\\1", one_line(value))
    return Markup(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def code(name: str) -> Markup:
    """Return a name as Markdown's code, or as escaped text between quotes where code could not hold it.

    >>> print(code("age"), code("a`b"))
    `age` “a\\`b”
    """
    from markupsafe import Markup

    if name and name == one_line(name) and not re.search(r"[\\`|<>&\[\]]", name):
        return Markup(f"`{name}`")
    return Markup(f"“{in_markdown(name)}”")
