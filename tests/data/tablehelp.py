"""What the table tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from labeldp.data.request import TableError
from labeldp.data.tables import privatize


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(source: Path, match: str, secrets: tuple[str, ...] = (), **settings) -> str:
    """Privatize must fail with a sentence, leave nothing behind, and not touch the source."""
    before, listing = source.read_bytes(), names(source.parent)
    target = settings.pop("target", source.with_name("out" + source.suffix))
    with pytest.raises(TableError, match=match) as caught:
        privatize(source, target, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert not [secret for secret in secrets if secret in message]
    assert names(source.parent) == listing
    assert source.read_bytes() == before
    return message
