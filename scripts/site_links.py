"""For the site: a link that leads out of docs/ becomes the path itself, because only docs/ is published."""

import posixpath
import re
from typing import Any

_UP = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Called by mkdocs with the text of each page.

    >>> on_page_markdown("See [the results](../experiments/results/README.md).")
    'See the results (`experiments/results/README.md`).'
    """
    folder = "" if page is None else posixpath.dirname(page.file.src_uri)

    def shown(found: re.Match[str]) -> str:
        text, path = found.groups()
        where = posixpath.normpath(posixpath.join(folder, path))
        if not where.startswith("../"):
            return found[0]
        outside = where.removeprefix("../")
        return f"`{outside}`" if text.strip("`") == outside else f"{text} (`{outside}`)"

    return _UP.sub(shown, markdown)
