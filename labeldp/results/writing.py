"""Write values as text: TOML for runs, templates for cards and pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from labeldp.results.words import at_most

if TYPE_CHECKING:
    from jinja2 import Environment


def to_toml(values: Mapping[str, Any]) -> str:
    """Return the values as TOML. None is left out: TOML has no word for it.

    >>> print(to_toml({"train": {"label": "income", "epsilon": 1.0, "test": None}}), end="")
    [train]
    label = "income"
    epsilon = 1.0
    """
    return tomli_w.dumps(_without_none(values))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if value is not None}
    return {name: _without_none(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def render(template: str, **values: object) -> str:
    """Return a template of this folder with the values filled in; in HTML, every text is escaped.

    Templates have two filters of their own: `at_most`, which rounds up, and `count`, which groups digits.
    """
    return _templates().get_template(f"{template}.jinja").render(values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"at_most": at_most, "count": "{:,}".format}
    return templates
