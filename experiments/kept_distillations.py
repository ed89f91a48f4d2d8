"""A moment and the network it taught, kept for runs that differ only in what they query afterwards.

Runs at several ε may begin with the same moment at the same ε₁. Each is a release of its own, certified whole: a moment
that is taken over is charged to the run's vault as well (`kept.release_once`). Only the training is not repeated.
The releases are alternatives: whoever published two of them would pay for the moment once and for both responses.
Of runs side by side the first distils and the others wait for it; should it die, the next one does.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from labeldp.atomic import rename
from labeldp.features.cache import content_key, read_metadata, read_tensors, write_tensors

_NETWORK = "network.safetensors"
# What `one_shot.train` keeps in a folder.
_MOMENT = ("plan.npz", "moment.npz")


class Distillation:
    """One run's use of a kept distillation: its own folder, with the moment and the network in it where there are any.

    Args:
        own: the run's folder; when it has ended well, its releases stay there and its checkpoints go.
        shared: where the distillation is, or will be.
        notes: for the run's line: whether it was another run's, the seconds it took, and those of waiting for it,
            which the line's own seconds count.
        turn: held while no other run may distil the same.
        waited: seconds until it was this run's turn.
    """

    def __init__(self, own: Path, shared: Path, notes: dict[str, Any], turn: ExitStack, waited: float) -> None:
        self.folder, self._shared, self._notes, self._turn = own, shared, notes, turn
        self._begun, self._waited = time.perf_counter(), round(waited, 1)

    def once(self, model: nn.Module, train: Callable[[], nn.Module]) -> nn.Module:
        """The model with the kept weights; or trained, and kept for others."""
        kept = self.folder / _NETWORK
        shared = kept.exists()
        if shared:
            model.load_state_dict(read_tensors(kept))
        else:
            model = train()
            state = {name: value.contiguous() for name, value in model.state_dict().items()}
            write_tensors(kept, state, {"seconds": f"{time.perf_counter() - self._begun:.1f}"})
        seconds = float(read_metadata(kept)["seconds"])
        self._notes["study"] = {"shared": shared, "seconds": seconds, "waited": self._waited}
        if not self._shared.exists():
            self._publish()
        self._turn.close()
        return model.eval()

    def _publish(self) -> None:
        """Moment and network appear together, in one step."""
        draft = Path(tempfile.mkdtemp(dir=self._shared.parent))
        for name in (*_MOMENT, _NETWORK):
            shutil.copy(self.folder / name, draft / name)
        rename(draft, self._shared)


@contextmanager
def distillation(kept: Path, what: Any, run: Any, notes: dict[str, Any]) -> Iterator[Distillation]:
    """The distillation of these settings among those kept.

    Args:
        kept: the folder of all of them; made when it is missing.
        what: all that decides what is distilled, as plain values.
        run: all that decides the run, likewise. One that was killed goes on with its releases and checkpoints.
        notes: see `Distillation`.
    """
    kept.mkdir(parents=True, exist_ok=True)
    shared, own = kept / content_key(repr(what)), kept / f"run-{content_key(repr(what), repr(run))}"
    with ExitStack() as turn:
        # The system lets go of the lock of a process that dies.
        lock = turn.enter_context(shared.with_suffix(".lock").open("w"))
        begun = time.perf_counter()
        fcntl.flock(lock, fcntl.LOCK_EX)
        waited = time.perf_counter() - begun
        if shared.exists():
            if not (own / _NETWORK).exists():
                # A moment of its own would be another than the one that the network has learnt from.
                shutil.rmtree(own, ignore_errors=True)
                shutil.copytree(shared, own)
            turn.close()
        own.mkdir(exist_ok=True)
        yield Distillation(own, shared, notes, turn, waited)
    for file in own.glob("*.safetensors"):
        file.unlink()
