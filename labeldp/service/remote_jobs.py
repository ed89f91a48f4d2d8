"""Send the work of a recipe to a service that runs it beside the labels, wait, and take what it releases.

A job is paid for when it has been sent, under the id of its request: a client that was killed sends the same again, and
waits for the same job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import safetensors.torch

from labeldp.core.certificate import parse as read_certificate
from labeldp.core.events import event_to_json
from labeldp.core.ledger import Charged
from labeldp.learning.progress import Progress, Report
from labeldp.mechanisms.teachers import TeacherVotes
from labeldp.service import tasks
from labeldp.service.log import Place
from labeldp.service.wire import WireError

if TYPE_CHECKING:
    from labeldp.service.client import RemoteAccount

# Seconds between two questions whether a job is done: first, and at most.
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class JobAsk:
    """A job on its way: sent when it is paid for, or where it was paid for before."""

    def __init__(
        self,
        account: RemoteAccount,
        task: tasks.Task,
        rows: npt.NDArray[Any],
        request: str,
        charges: Sequence[Charged],
        delta: float,
        report: Report | None = None,
    ) -> None:
        self._account, self._rows, self._request, self._delta, self._report = account, rows, request, delta, report
        self._content = tasks.sent(task)
        self._header: dict[str, Any] = {
            "request": request, "recipe": task.recipe, "settings": task.settings,
            "charge": [[event_to_json(event), times] for event, times, _ in charges],
        }  # fmt: skip
        self._events = [(event, times) for event, times, _ in charges]
        self._where: Any = None
        self.tensors: tasks.Tensors = {}
        self.release: Any = None
        self.place: Place | None = None
        self.assumptions: tuple[str, ...] = ()

    def send(self, plan_id: str | None, plan: Sequence[Charged] | None) -> None:
        """Send it; it is paid for when this returns. Plans of several queries pay for no job."""
        if plan is not None and [(event, times) for event, times, _ in plan] != self._events:
            raise ValueError("a job is paid for by itself, and this plan has other queries, too; run it without a plan")
        self._where = self._account.send_job(self._header, self._rows, self._content)

    def finish(self) -> None:
        """Wait until it has ended, and take what it has released."""
        if self._where is None:
            self.send(None, None)
        where: Any = self._where
        connection, dataset = where
        pause, told = _PAUSE, None
        while (found := connection.act("job", dataset=dataset, request=self._request))["state"] == "running":
            if self._report is not None and found["progress"] and found["progress"] != told:
                told = found["progress"]
                self._report(Progress(**told))
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        header = {"do": "fetch", "dataset": dataset, "request": self._request, "delta": self._delta}
        answer, content = connection.exchange(header, tasks.NO_COLUMNS, lambda: ())
        try:
            self.tensors = safetensors.torch.load(bytes(content))
        except safetensors.SafetensorError:
            raise WireError("the service has released something that is not tensors; ask its owner") from None
        self.place = Place(int(answer["entry"]), str(answer["hash"]))
        self.assumptions = read_certificate(answer["certificate"]).assumptions
        if found["state"] == "stopped":
            self.assumptions = (*self.assumptions, f"The job was stopped early: {found['why']}.")


class _Votes(JobAsk):
    """Teachers that vote beside the labels: asked like a query, and drawn when it is sent."""

    def send(self, plan_id: str | None, plan: Sequence[Charged] | None) -> None:
        """Send it, wait, and keep the winners."""
        super().send(plan_id, plan)
        self.finish()
        self.release = self.tensors["winners"].numpy().astype(np.int64)


class _Descent(JobAsk):
    """Steps that are taken beside the labels; the model stays here and gets the weights."""

    def __init__(self, model: Any, *given: Any) -> None:
        super().__init__(*given)
        self._model = model

    def finish(self) -> None:
        """Wait, and put the weights into the model."""
        super().finish()
        self.release = tasks.put_back(self._model, self.tensors)


def votes(
    account: RemoteAccount, mechanism: TeacherVotes, rows: npt.NDArray[Any], request: str, charges: Sequence[Charged]
) -> JobAsk:
    """Return the job of teachers that vote."""
    return _Votes(account, tasks.of_votes(mechanism), rows, request, charges, 1e-6)


def descent(
    account: RemoteAccount,
    given: Mapping[str, Any],
    multiplier: float,
    steps: int,
    rows: npt.NDArray[Any],
    request: str,
    charges: Sequence[Charged],
    report: Report | None,
) -> JobAsk:
    """Return the job of a noisy descent; ValueError, before anything is paid for, where it would need code there."""
    task = tasks.of_descent(given, multiplier, steps)
    return _Descent(given["model"], account, task, rows, request, charges, given["delta"], report)
