"""Plain values as TOML text. Python reads TOML and does not write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def dumps(values: Mapping[str, Any]) -> str:
    """The values as TOML: plain ones first, then a table for each mapping. None is left out, TOML has no word for it.

    >>> print(dumps({"train": {"label": "income", "epsilon": 1.0, "classes": ["<=50K", ">50K"], "test": None}}), end="")
    [train]
    label = "income"
    epsilon = 1.0
    classes = ["<=50K", ">50K"]
    """
    return "\n".join(_tables(values, ())).lstrip("\n") + "\n"


def _tables(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {name: value for name, value in values.items() if value is not None and not isinstance(value, Mapping)}
    inner = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    if path and (plain or not inner):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, table in inner.items():
        lines += _tables(table, (*path, name))
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case str():
            return _text(value)
        case Sequence():
            return _list([_value(item) for item in value])
    raise ValueError(f"a value of type {type(value).__name__} has no place in a TOML file; give text, numbers or lists")


def _text(value: str) -> str:
    # JSON escapes what TOML wants escaped, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(items: list[str]) -> str:
    line = f"[{', '.join(items)}]"
    return line if len(line) <= _WIDTH else "[\n" + "".join(f"  {item},\n" for item in items) + "]"
