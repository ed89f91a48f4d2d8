"""Write values as text that stays text: TOML for runs, templates for cards and pages, tables for spreadsheets.

Names of columns, classes, files and folders come from whoever made the table. None of them becomes a tag of a page, a
line of a config file or a formula of a spreadsheet. Passwords, keys and users' names are not written at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from labeldp.budgets.address import shown_address, shown_path
from labeldp.results.words import at_most

if TYPE_CHECKING:
    import pyarrow as pa
    from jinja2 import Environment
    from markupsafe import Markup


# -- runs ------------------------------------------------------------------------------------------------------------

# Options that open a store or sign a result: a result says neither what they are nor where they are kept.
_SECRET = {"key", "sign", "passphrase"}
_LOGIN = re.compile(r"([A-Za-z][\w+.-]*://)\S*@")


def run_toml(run: Mapping[str, Any]) -> str:
    """Return the options of a run as TOML, without secrets: the one way in which options come into a file.

    A store is named by scheme and database. It is not left out: a run that is repeated from the file must charge it,
    or fail.

    >>> print(run_toml({"train": {"store": "postgresql://ann:secret@host/budgets", "key": "/keys/ann"}}), end="")
    [train]
    store = "postgresql:///budgets"
    """
    return to_toml({command: _public(options) for command, options in run.items()})


def _public(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name not in _SECRET}
    return {name: shown_address(value) if name == "store" else _public_value(value) for name, value in kept.items()}


def _public_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_public_value(one) for one in value]
    return shown_path(_LOGIN.sub(r"\1", value)) if isinstance(value, str) else value


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


# -- cards and pages -------------------------------------------------------------------------------------------------


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


# -- spreadsheets ----------------------------------------------------------------------------------------------------

# What spreadsheets take for the start of a formula (OWASP, "CSV injection"), in full width, too; and plain numbers.
_FORMULA, _NUMBER = "^[=+\\-@\t\r\n＝＋－＠]", r"^[+\-]?(\d+\.?\d*|\.\d+)([eE][+\-]?\d+)?$"


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """Return the table with an apostrophe before every text that a spreadsheet would take for a formula.

    Columns that are numbers stay, and so do texts that are: -1 is no formula.

    >>> import pyarrow as pa
    >>> for_spreadsheets(pa.table({"id": ["=1+1", "-1", "a"], "n": [-1, 2, 3]})).to_pydict()
    {'id': ["'=1+1", '-1', 'a'], 'n': [-1, 2, 3]}
    """
    import pyarrow as pa
    import pyarrow.compute

    # Its functions are made at run time, so type checkers know none of them.
    pc: Any = pyarrow.compute

    def safe(column: Any) -> Any:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return column
        formula = pc.match_substring_regex(column, _FORMULA)
        number = pc.match_substring_regex(column, _NUMBER)
        quoted = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
        return pc.if_else(pc.and_not(formula, number), quoted, column)

    names = safe(pa.chunked_array([table.column_names], pa.string())).to_pylist()
    return pa.table([safe(column) for column in table.columns], names=names)
