"""For the site: examples in docstrings become blocks of code, which would be read as quotations and links otherwise."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n(?:.+\n)*)+", re.M)


class Doctests(griffe.Extension):
    """Fences what stands from `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every class, function and attribute that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return the docstring with its examples fenced.

    >>> print(fenced("Add.\\n\\n>>> [1][0]\\n1"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> [1][0]
    1
    ```
    """
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}```\n", f"{text}\n").rstrip("\n")
