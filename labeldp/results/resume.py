"""Go on with a run that was stopped: what it paid for is kept in a hidden folder until its result is there.

Killed, or out of disk, a command is simply given again: it finds its own folder, takes the releases from there, and
pays for what is missing only. The folder of another command is refused, because it was paid for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from labeldp.atomic import check_room, replacing
from labeldp.core.ledger import BudgetExceededError
from labeldp.results.folder import ArtifactError


class RunFolder:
    """The folder in which the run that makes `target` keeps what it pays for; removed when the block ends well.

    Args:
        target: what the run makes.
        say: called with a sentence for the user when the run stops and something was kept.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "model"
    >>> with RunFolder(target) as run:
    ...     folder = run.of({"epsilon": 1.0})
    >>> folder.name, folder.exists()
    ('.model.run', False)
    """

    def __init__(self, target: Path, say: Callable[[str], None] | None = None) -> None:
        self._folder, self._say = target.with_name(f".{target.name}.run"), say

    def of(self, question: Mapping[str, Any]) -> Path:
        """Return the folder, made for a run with these settings (plain JSON values) or left by one with the same."""
        file, asked = self._folder / "run.json", json.loads(json.dumps(dict(question)))
        try:
            check_room(self._folder, 1 << 20)
        except ValueError as error:
            raise ArtifactError(str(error)) from None
        if not file.exists():
            with replacing(file) as draft:
                draft.write_text(json.dumps(asked), encoding="utf-8")
        earlier = json.loads(file.read_text(encoding="utf-8"))
        odd = sorted(key for key in earlier.keys() | asked.keys() if earlier.get(key) != asked.get(key))
        if odd:
            raise ArtifactError(
                f"{str(self._folder)!r} keeps what another command has paid for ({', '.join(odd)} differ): give that "
                "command again to go on with it, choose another --out, or delete the folder and what was spent for it"
            )
        return self._folder

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Every query that was paid for has a count; without one there is nothing to go on from. A query that the budget
        # refused has a count, too, of two lines: what was to be charged and that nothing was begun.
        least = 3 if kind is not None and issubclass(kind, BudgetExceededError) else 1
        counts = (file.read_bytes().count(b"\n") for file in self._folder.rglob("*.tally"))
        if kind is None or not any(lines >= least for lines in counts):
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self._say is not None:
            self._say(
                f"What was paid for is kept in {str(self._folder)!r}: give the same command again to go on from there."
            )


def features_digest(features: Any) -> str:
    """Return a hash of public features, a table or an array, by which a run knows them again.

    >>> features_digest(pa.table({"a": [1, None]})) == features_digest(pa.table({"a": [1, 0]}))
    False
    """
    content = hashlib.sha256()
    if not isinstance(features, pa.Table):
        content.update(repr((features.dtype, features.shape)).encode() + np.ascontiguousarray(features).data)
        return content.hexdigest()[:32]
    for name, column in zip(features.column_names, features.columns, strict=True):
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        filled = column.cast(pa.float64()).fill_null(np.nan) if number else column.cast(pa.string()).fill_null("\0")
        content.update(repr((name, str(column.type), len(column))).encode())
        for chunk in filled.chunks:
            # By values and not by the memory of the chunk, where what lies under a missing cell is anything.
            raw = chunk.to_numpy() if number else "\1".join(chunk.to_pylist()).encode()
            content.update(np.ascontiguousarray(raw).data if number else raw)
    return content.hexdigest()[:32]
