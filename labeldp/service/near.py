"""Answer analysts on the same machine through a plain socket beside that of gRPC, and take rows in shared memory.

It carries one question at a time and its answer: what gRPC does for a small query takes longer than the query, and a
gigabyte of features is copied several times on its way. Whoever cannot use it (another machine, another system, no
room left) asks through gRPC: the questions, checks, charges and answers are the same.

    socket    the service's own and `.near`; made with the same permissions, in the same folder
    frame     one letter for its kind, four bytes for its length, and that many bytes
    analyst   T token · A question with its columns · M question whose rows come in memory · R so many rows lie in the
              next slot · S that was all, and their check sum
    service   A answer · E refusal · M memory, its file handed over · C so many slots are free again

**Shared memory is the analyst's to write, at any moment.** The service makes it, of a fixed size that nobody can change
(sealed: a file cut off under a reader would end it), and opens nothing that an analyst names. Rows are copied out of it
once, some hundred at a time, and what is checked and added up is the copy.

The check sum is the analyst's word: by it a question under an id that was another question's is found to be a mistake.
Whoever lies about it is refused, or told once more what was released under that id.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.service.wire import SUM_BYTES, BusyError, CheckSum, WireError

Array = npt.NDArray[Any]
# Bytes of a token, and of a question with its columns.
MOST_TOKEN, MOST_MESSAGE = 1 << 12, 1 << 21
# Slots of memory, and bytes of each: together they stay in the cache while one side writes and the other reads.
SLOTS, SLOT_BYTES = 4, 1 << 20
# Bytes of rows that are copied out of the memory at once.
_COPIED = 1 << 19
# Analysts who are connected at once, those of them with memory, and seconds that they have for their first question.
MOST_LINES, MOST_MEMORIES, HELLO_SECONDS = 256, 32, 10.0
# Seconds that an analyst who sends rows stays awake until there is room for more.
AWAKE_SECONDS = 2e-3
_HEAD = struct.Struct("<cI")
# Bytes of short frames that are taken at once.
_AHEAD = 1 << 12
# What an analyst takes from the service: a release, and what is said of it.
_MOST_ANSWER = (1 << 32) - 1


def beside(address: str) -> Path | None:
    """Return where the socket beside a service's own is; None where there can be none."""
    path = address.removeprefix("grpc+unix://")
    return Path(f"{path}.near") if path != address and sys.platform == "linux" else None


class Line:
    """A connected socket that sends and takes frames."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        # What came with the last frame and belongs to the next.
        self._ahead = b""
        # Whether what is taken will be there in no time, so that nobody goes to sleep for it.
        self.awake = False
        # By `time.monotonic`, until when all that is taken must have come; None for no end.
        self.until: float | None = None

    def send(self, kind: bytes, *parts: bytes | memoryview, file: int | None = None) -> None:
        """Send one frame; with an open file, where one is given."""
        head = _HEAD.pack(kind, sum(map(len, parts)))
        if file is not None:
            socket.send_fds(self.channel, [head], [file])
        elif len(parts) == 1 and len(parts[0]) < 1 << 16:
            # One call of the system in place of two, for a short copy.
            self.channel.sendall(head + bytes(parts[0]))
            return
        else:
            self.channel.sendall(head)
        for part in parts:
            self.channel.sendall(part)

    def take(self, most: int, begun: bytes = b"") -> tuple[bytes, memoryview]:
        """Return the next frame's kind and content; EOFError where there is none, WireError where it is too long."""
        kind, size = _HEAD.unpack(begun + bytes(self._exactly(_HEAD.size - len(begun))))
        if size > most:
            raise WireError(f"a message has {size} bytes, more than {most}; send less at once")
        return kind, self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        content, done = np.empty(size, np.uint8).data, min(size, len(self._ahead))
        content[:done], self._ahead = self._ahead[:done], self._ahead[done:]
        while done < size:
            if self.until is not None:
                self.channel.settimeout(max(1e-3, self.until - time.monotonic()))
            if size - done >= _AHEAD:
                come = self.channel.recv_into(content[done:])
            else:
                # Short frames come several at once: each by itself would be two calls of the system.
                found = self._soon() or self.channel.recv(_AHEAD)
                come = min(len(found), size - done)
                content[done : done + come], self._ahead = found[:come], found[come:]
            if not come:
                raise EOFError
            done += come
        return content

    def _soon(self) -> bytes:
        """Return what comes while this side stays awake; nothing where it does not come, or need not.

        A system may wake a sleeper on the processor of whoever wakes it. Then both sides take turns on that one, each
        asleep while the other works, and another processor stays idle: rows took twice as long.
        """
        end = time.perf_counter() + AWAKE_SECONDS
        while self.awake and time.perf_counter() < end:
            with suppress(BlockingIOError):
                return self.channel.recv(_AHEAD, socket.MSG_DONTWAIT)
            os.sched_yield()
        return b""

    def close(self) -> None:
        """End it, also for a thread that waits for it."""
        with suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()


class Memory:
    """Slots of rows that two processes see.

    Args:
        file: an open file of at least so many bytes; it is closed with the memory.
        slots, each: how many there are, and their bytes.
    """

    def __init__(self, file: int, slots: int, each: int) -> None:
        self.file, self.slots, self.each = file, slots, each
        self._map = mmap.mmap(file, slots * each)

    @classmethod
    def new(cls) -> Memory:
        """Return memory of its own, whose size stays as it is whoever holds it."""
        import fcntl

        file = os.memfd_create("labeldp-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, SLOTS * SLOT_BYTES)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(file, SLOTS, SLOT_BYTES)
        except BaseException:
            os.close(file)
            raise

    def rows(self, slot: int, kind: str, width: int) -> Array:
        """Return a slot as rows of so many numbers, as many as fit; whatever is written there shows at once."""
        each = np.dtype(kind).itemsize * width
        count = self.each // each
        return np.frombuffer(self._map, kind, count * width, slot * self.each).reshape(count, width)

    def close(self) -> None:
        """Give it back, where nobody holds its rows."""
        with suppress(BufferError):
            self._map.close()
        os.close(self.file)


# -- the service's side ------------------------------------------------------------------------------------------------

# Answers a question: token, message, what its rows come in (None where its columns are in it). Frame and its parts.
Answer = Callable[[str, memoryview, "Shared | None"], tuple[bytes, Iterable[bytes]]]


class Door:
    """Listens on a socket in a folder, and lets one thread answer each analyst that comes.

    Args:
        path: of the socket.
        like: of a socket whose permissions it gets.
        answer: answers a question; raises nothing.
    """

    def __init__(self, path: Path, like: Path, answer: Answer) -> None:
        self._path, self._answer, self._lock = path, answer, threading.Lock()
        self._lines: set[Line] = set()
        self._memories, self._closed = 0, False
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        with suppress(OSError):
            path.chmod(stat.S_IMODE(like.stat().st_mode))
        self._listening.listen(64)
        threading.Thread(target=self._accept, name="labeldp-near", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listening.accept()
            except OSError:
                if self._closed:
                    return
                # Too many open files, say.
                time.sleep(0.1)
                continue
            line = Line(channel)
            with self._lock:
                welcome = len(self._lines) < MOST_LINES and not self._closed
                if welcome:
                    self._lines.add(line)
            if welcome:
                threading.Thread(target=self._serve, args=(line,), name="labeldp-near", daemon=True).start()
            else:
                line.close()

    def _serve(self, line: Line) -> None:
        shared = Shared(self, line)
        try:
            line.until = time.monotonic() + HELLO_SECONDS
            kind, token = line.take(MOST_TOKEN)
            word = bytes(token).decode("ascii") if kind == b"T" else ""
            kind, message = line.take(MOST_MESSAGE)
            line.until = None
            line.channel.settimeout(None)
            while kind in (b"A", b"M"):
                answered, parts = self._answer(word, message, shared if kind == b"M" else None)
                shared.close()
                line.send(answered, *parts)
                if answered != b"A" or shared.unread:
                    # Whoever may not ask holds no line; rows that nobody has read are in the way of the next question.
                    break
                kind, message = line.take(MOST_MESSAGE)
        except (OSError, EOFError, UnicodeDecodeError, WireError):
            # It went away, or does not speak as declared.
            pass
        finally:
            line.close()
            shared.close()
            with self._lock:
                self._lines.discard(line)

    def reserve(self) -> Memory:
        """Return new memory; BusyError where there is no room for more."""
        with self._lock:
            if self._memories >= MOST_MEMORIES:
                raise BusyError("the service shares memory with too many at once; send the rows, or wait")
            self._memories += 1
        try:
            return Memory.new()
        except OSError:
            self.give_back()
            raise BusyError("the service has no memory to share; send the rows, or wait") from None

    def give_back(self) -> None:
        """Make room for another memory."""
        with self._lock:
            self._memories -= 1

    def close(self) -> None:
        """Let nobody in and everybody go."""
        with self._lock:
            self._closed, lines = True, list(self._lines)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
        for line in lines:
            with suppress(OSError):
                line.channel.shutdown(socket.SHUT_RDWR)


class Shared:
    """The memory of one analyst, for as long as one question takes."""

    def __init__(self, door: Door, line: Line) -> None:
        self._door, self._line, self._memory = door, line, None
        # Whether rows may have been announced that nobody has read; once they were all read, their check sum.
        self.unread, self.sum = False, ""

    def rows(self, kind: str, width: int) -> Iterator[Array]:
        """Yield the rows of a question as they come, some hundred at a time, each time over those before."""
        self._memory = self._door.reserve()
        return self._come(self._memory, kind, width)

    def _come(self, memory: Memory, kind: str, width: int) -> Iterator[Array]:
        self.unread = True
        told = json.dumps({"slots": memory.slots, "each": memory.each}).encode()
        self._line.send(b"M", told, file=memory.file)
        slots = [memory.rows(slot, kind, width) for slot in range(memory.slots)]
        at_once = max(1, _COPIED // slots[0][0].nbytes)
        copy, turn, freed = np.empty((at_once, width), kind), 0, 0
        while count := self._announced(len(slots[0])):
            shared, turn = slots[turn], (turn + 1) % len(slots)
            for start in range(0, count, at_once):
                part = copy[: min(count - start, at_once)]
                # From here on nothing is read from the memory again.
                np.copyto(part, shared[start : start + len(part)])
                freed += start + at_once >= count
                if 2 * freed >= len(slots):
                    # Half of them at once: an analyst who waits is woken less often, which takes longer than a copy.
                    self._line.send(b"C", freed.to_bytes(4, "little"))
                    freed = 0
                yield part
        self.unread = False

    def _announced(self, most: int) -> int:
        """Return how many rows lie in the next slot, 0 at the end; WireError where it cannot be."""
        try:
            kind, content = self._line.take(SUM_BYTES)
        except (OSError, EOFError):
            raise WireError("the rows ended before they were all there; send them again") from None
        if kind == b"S":
            self.sum = bytes(content).hex()
            return 0
        count = int.from_bytes(content, "little")
        if kind != b"R" or len(content) != 4 or not 0 < count <= most:
            raise WireError(f"a slot is announced with {count} rows and holds {most}; announce what is there")
        return count

    def close(self) -> None:
        """Give the memory back."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
            self._door.give_back()


# -- the analyst's side ------------------------------------------------------------------------------------------------


class Caller:
    """A line to a service on this machine, which asks one question at a time.

    Args:
        path: of the socket.
        token: of the analyst.
    """

    def __init__(self, path: Path, token: str) -> None:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.connect(str(path))
            self._line = Line(channel)
            self._line.send(b"T", token.encode("ascii"))
        except BaseException:
            channel.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def ask(self, message: bytes) -> tuple[bytes, memoryview]:
        """Send a question with its columns; return the kind of the answer, A or E, and its content."""
        self._line.send(b"A", message)
        return self._line.take(_MOST_ANSWER)

    def ask_rows(self, message: bytes, chunks: Iterable[Array], kind: str, width: int) -> tuple[bytes, memoryview]:
        """Send a question, and its rows through memory; return the kind of the answer and its content."""
        self._line.send(b"M", message)
        head, files, _, _ = socket.recv_fds(self._line.channel, _HEAD.size, 1)
        frame: tuple[bytes, memoryview] | None = self._line.take(_MOST_ANSWER, head)
        if files:
            told = json.loads(bytes(frame[1]))
            memory = Memory(files[0], int(told["slots"]), int(told["each"]))
            try:
                # Where the service has hung up, what it said before that is still there to be read.
                with suppress(BrokenPipeError):
                    frame = self._fill(memory, chunks, kind, width)
            finally:
                self._line.awake = False
                memory.close()
        while frame is None or frame[0] not in (b"A", b"E"):
            frame = self._line.take(_MOST_ANSWER)
        return frame

    def _fill(self, memory: Memory, chunks: Iterable[Array], kind: str, width: int) -> tuple[bytes, memoryview] | None:
        """Write rows into slot after slot, each when it is free; return the answer where it comes before the end."""
        slots = [memory.rows(slot, kind, width) for slot in range(memory.slots)]
        free, turn, filled, total = len(slots), 0, 0, CheckSum()
        self._line.awake = True
        at_once = max(1, _COPIED // slots[0][0].nbytes)
        for chunk in chunks:
            done = 0
            while done < len(chunk):
                while not free:
                    frame = self._line.take(_MOST_ANSWER)
                    if frame[0] != b"C":
                        return frame
                    free += int.from_bytes(frame[1], "little")
                slot = slots[turn]
                # Few rows at a time: they are read three times, and stay in the cache.
                count = min(len(chunk) - done, len(slot) - filled, at_once)
                part = chunk[done : done + count]
                total.update(part)
                np.copyto(slot[filled : filled + count], part)
                filled, done = filled + count, done + count
                if filled == len(slot):
                    self._line.send(b"R", filled.to_bytes(4, "little"))
                    free, turn, filled = free - 1, (turn + 1) % len(slots), 0
        if filled:
            self._line.send(b"R", filled.to_bytes(4, "little"))
        self._line.send(b"S", bytes.fromhex(total.hexdigest()))
        return None
