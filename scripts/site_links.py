"""For the site: a link that leads out of docs/ becomes the path itself, because only docs/ is published."""

import re
from typing import Any

_OUT = re.compile(r"\[([^\]]+)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of each page.

    >>> on_page_markdown("See [the results](../experiments/results/README.md).")
    'See the results (`experiments/results/README.md`).'
    """
    return _OUT.sub(_path, markdown)


def _path(found: re.Match[str]) -> str:
    text, path = found.groups()
    return f"`{path}`" if text.strip("`") == path.removeprefix("../") else f"{text} (`{path}`)"
