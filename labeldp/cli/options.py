"""What commands share: options and their kinds, options from a file (`--config run.toml`), a table and its columns."""

from __future__ import annotations

import csv
import difflib
import functools
import math
import os
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import click

from labeldp.recipes.catalogue import AUTO, canonical, keys
from labeldp.results.card import column_cells, one_line

if TYPE_CHECKING:
    from labeldp.data.kinds import Reading

_COLUMNS = ("drop", "number", "category", "text", "date")
_PLURAL = {"category": "categories", "text": "texts"}
# How files begin that are not plain text, and how their names then end.
_MAGIC = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz", b"\x28\xb5\x2f\xfd": ".csv.zst"}
# Columns that a summary has something to say about; --dry-run lists all.
_MOST = 4


class OptionError(ValueError):
    """An option that cannot be meant. One sentence that says what to do."""


class Names(click.ParamType):
    """Names separated by commas, or a list of them in a config file.

    A name with a comma goes between double quotes; spaces after commas are dropped.
    """

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names in order."""
        if isinstance(value, str):
            return tuple(names_in(value))
        return tuple(str(name) for name in value)


class Method(click.Choice):
    """A recipe's key, or "auto"; - is read as _."""

    def __init__(self) -> None:
        super().__init__(tuple(dict.fromkeys((AUTO, *keys("classes"), *keys("numbers")))))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the method as the catalogue spells it."""
        return super().convert(canonical(value) if isinstance(value, str) else value, param, ctx)


class Delimiter(click.ParamType):
    """The character between the cells of a CSV file; a tab may be typed as \\t."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the character itself."""
        return "\t" if value == r"\t" else str(value)


class Amount(click.ParamType):
    """A number above 0 and below a bound, in words that say what to give instead."""

    name = "number"

    def __init__(self, what: str, advice: str, below: float = math.inf, zero: bool = False) -> None:
        self._what, self._advice, self._below, self._zero = what, advice, below, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or raise OptionError."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            point = " (decimals have a point, as in 0.5)" if "," in str(value) else ""
            raise OptionError(f"{self._what}={value!r} is not a number{point}; {self._advice}") from None
        if not (number > 0 or (self._zero and number == 0)) or not number < self._below:
            raise OptionError(f"{self._what}={value} cannot be used; {self._advice}")
        return number


def check_range(bounds: tuple[float, float]) -> None:
    """Raise OptionError unless these are a range."""
    if not all(map(math.isfinite, bounds)) or not bounds[0] < bounds[1]:
        raise OptionError(f"--range {bounds[0]:g} {bounds[1]:g} is no range; give two numbers, the smaller one first")


EPSILON = Amount("epsilon", "give one above 0, say 1: the smaller, the more private")
DELTA = Amount("delta", "give one from 0 to below 1, say 1e-5 (less than one over the number of rows)", 1.0, zero=True)
HOLDOUT = Amount("holdout", "give a share of the rows, say 0.1, a number of them, or 0 for none", zero=True)


def with_delimiter(command: Any) -> Any:
    """Add the option that says how a CSV file is cut into cells."""
    words = "Of a CSV file.  [default: a comma; a tab for .tsv]"
    return click.option("--delimiter", type=Delimiter(), metavar="TEXT", help=words)(command)


def with_rows(command: Any) -> Any:
    """Add the options that say whose each row is, and which row it is."""
    user = click.option("--user", metavar="COLUMN", help="The column that says to whom each row belongs. All "
                        "labels of a user are protected together. No feature of a model.")  # fmt: skip
    known_by = click.option("--id", "id_column", metavar="COLUMN", help="The column that tells rows apart, so that a "
                            "store or --test of labeldp train knows them elsewhere. No feature of models.")  # fmt: skip
    return user(known_by(command))


def with_columns(command: Any) -> Any:
    """Add the options by which columns are left out, or read as what they are declared to be; they come as `columns`.

    That is what `labeldp.data.read` takes: the names of `drop`, `number`, `category`, `text` and `date`.
    """

    @functools.wraps(command)
    def gathered(*args: Any, **given: Any) -> Any:
        return command(*args, columns={name: given.pop(name) or () for name in _COLUMNS}, **given)

    for kind in reversed(_COLUMNS[1:]):
        words = f"Columns to read as {'prose' if kind == 'text' else f'a {kind}'}, comma-separated."
        gathered = click.option(f"--{kind}", type=Names(), help=words)(gathered)
    return click.option("--drop", type=Names(), help="Columns to leave out, comma-separated.")(gathered)


def with_images(command: Any) -> Any:
    """Add the options that say how images are read."""
    image = click.option("--image", metavar="COLUMN", help="The column that has the images, or the names of their "
                         "files, beginning where TABLE is. No other column is then a feature.")  # fmt: skip
    side = click.option("--side", type=click.IntRange(1), metavar="PIXELS", help="Stretch every image to so many "
                        "pixels a side.  [default: as they are, where all are of one size]")  # fmt: skip
    return image(side(command))


def with_encoder(command: Any) -> Any:
    """Add the option that names the network by which images become features."""
    return click.option("--encoder", type=click.Path(path_type=Path), metavar="FILE", help="A file of the weights of a "
                        "network that makes features of images: a ResNet or vision transformer as torchvision, timm "
                        "and DINO save them, or TorchScript.  [default: patches]")(command)  # fmt: skip


def loaded_encoder(path: Path | None) -> Any:
    """Return the encoder in a file, if one is named, or say what is wrong with it."""
    if path is None:
        return None
    needed_training()
    from labeldp.features.encoders import load_encoder

    try:
        return load_encoder(path)
    except OSError as error:
        raise OptionError(f"--encoder {str(path)!r} cannot be read ({error.strerror}); name another file") from None
    except (ValueError, RuntimeError, EOFError, UnpicklingError) as error:
        why = str(error).splitlines()[0][:200]
        raise OptionError(f"--encoder {str(path)!r} is no network that can be used here: {why}") from None


def takes_config(command: click.Command) -> None:
    """Give the command, or every command of a group, `--config FILE`; what is on the command line goes before it."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            takes_config(inner)
        return
    purpose = "Read options from this TOML file, under the name of the command."
    option = click.Option(["--config"], type=click.Path(path_type=Path), metavar="FILE", is_eager=True, help=purpose)
    option.expose_value, option.callback = False, _load
    command.params.append(option)


def option_values(ctx: click.Context, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every option of a command as it was resolved, by the names a config file uses; None is left out."""
    values: dict[str, Any] = {}
    for key, param in _keys(ctx.command).items():
        value = ctx.params.get(param.name or "")
        if key not in without and value not in (None, ()):
            values[key] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    return values


def _keys(command: click.Command) -> dict[str, click.Parameter]:
    """Return what each parameter is called in a config file: its long option without the dashes."""
    shown = [param for param in command.params if param.expose_value]
    return {max(param.opts, key=len).lstrip("-"): param for param in shown}


def _load(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    keys, name = _keys(ctx.command), ".".join(ctx.command_path.split()[1:])
    options = _table(path, name)
    for key, value in options.items():
        if key not in keys:
            near = difflib.get_close_matches(key, list(keys), 1)
            advice = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(keys))}"
            raise OptionError(f"{path.name}: there is no option {key!r}; {advice} in [{name}]")
        _check_value(f"{path.name}: {key}", value, keys[key])
    # A result's config has the home folder as ~, since its name is a user's.
    paths = {key: os.path.expanduser(value) for key, value in options.items() if str(value).startswith("~/")}
    options = {**options, **paths}
    ctx.default_map = {**(ctx.default_map or {}), **{keys[key].name or "": value for key, value in options.items()}}


def _check_value(where: str, value: Any, param: click.Parameter) -> None:
    """Refuse what TOML can say and a command line cannot, before click converts it."""
    several = isinstance(param.type, Names) or param.nargs != 1 or param.multiple
    if isinstance(value, bool) != getattr(param, "is_flag", False):
        wanted = "neither a number nor text; give its value" if isinstance(value, bool) else "neither true nor false"
        raise OptionError(f"{where} = {str(value).lower()} is {wanted}")
    if isinstance(value, list) and not several:
        raise OptionError(f"{where} is a list; give one value")
    if not isinstance(value, (bool, int, float, str, list)):
        raise OptionError(f"{where} is a {type(value).__name__}; give a number, or text between quotes")
    if isinstance(param.type, (click.Path, Names)) and not isinstance(value, (str, list)):
        raise OptionError(f"{where} = {value} is not text; put it between quotes")


def _table(path: Path, name: str) -> Mapping[str, Any]:
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config {str(path)!r} cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise OptionError(f"--config {str(path)!r} is not TOML ({error}); see docs/command_line.md") from None
    for part in name.split("."):
        found = found.get(part)
        if not isinstance(found, Mapping):
            raise OptionError(f"{path.name}: options of this command belong under a line [{name}]; put them there")
    return found


def refuse_idle(chosen: str, **options: object) -> None:
    """Refuse options that would be ignored: silence would be taken for consent."""
    idle = [f"--{name}" for name, value in options.items() if value is not None]
    if idle:
        raise OptionError(f"{' and '.join(idle)} mean nothing with {chosen}; leave them out")


def declared(classes: Sequence[str] | None) -> Sequence[str]:
    """Return the classes named on the command line, or refuse and say why they must be."""
    if not classes:
        raise OptionError(
            "--classes is missing: declare every class the label can take, for example --classes no,yes. They are not "
            "read off the data because which classes occur is itself private"
        )
    return classes


def names_in(text: str | None) -> list[str]:
    """Return comma-separated names, spaces after commas dropped; a name with a comma goes between double quotes."""
    if text and text.startswith("[") and text.endswith("]"):
        raise OptionError(f"{text} is a list in brackets; give the names separated by commas, as in no,yes")
    return next(csv.reader([text], skipinitialspace=True)) if text else []


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is read."""
    try:
        import torch
    except ImportError:
        raise OptionError("training needs PyTorch; install it with: pip install 'labeldp[torch,sklearn]'") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise OptionError(f"device={device!r} is not there; leave out --device to use the processor") from None


def needed_training() -> Any:
    """Return `labeldp.results.model`, or say what to install for it."""
    try:
        from labeldp.results import model
    except ImportError as error:
        raise OptionError(str(error)) from None
    return model


# -- a table and its columns -------------------------------------------------------------------------------------------


@contextmanager
def table_file(given: str) -> Iterator[str]:
    """Yield the path of a table. For `-`, standard input is kept in a private temporary file inside the block."""
    if given != "-":
        yield given
        return
    source = sys.stdin.buffer
    with tempfile.TemporaryDirectory(prefix="labeldp-") as folder:
        begin = source.read(4)
        kind = next((ending for magic, ending in _MAGIC.items() if begin.startswith(magic)), ".csv")
        path = Path(folder) / f"stdin{kind}"
        with path.open("wb") as sink:
            sink.write(begin)
            shutil.copyfileobj(source, sink)
        yield str(path)


def summary(readings: Sequence[Reading], note: str = "") -> list[str]:
    """Return a line or two: what the columns were read as, and what is odd about them."""
    counts = Counter(one.read_as for one in readings if one.column is not None)
    kinds = ", ".join(f"{n} {kind if n == 1 else _PLURAL.get(kind, kind + 's')}" for kind, n in counts.most_common())
    aside = [f"{one.name} ({one.note})" for one in readings if one.column is None]
    left = f"; left out: {_few(aside)}" if aside else ""
    odd = [f"{one.name} ({one.note})" for one in readings if one.read_as in ("number", "date") and one.note]
    lines = [note] if note else []
    lines.append(f"Public columns: {kinds}{left}.")
    lines += [f"Check how these were read: {_few(odd)}."] if odd else []
    return [one_line(line) for line in lines]


def _few(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
    return ", ".join(parts[:_MOST]) + more


def listing(readings: Sequence[Reading], note: str = "") -> str:
    """Return all columns as a table: what each was read as, the share that is missing, how many values it has."""
    rows = [("column", "read as", "missing", "values", ""), *column_cells(one.to_json() for one in readings)]
    rows = [tuple(map(one_line, row)) for row in rows]
    name, kind, share, count = (max(len(row[place]) for row in rows) for place in range(4))
    lines = [f"{a:<{name}}  {b:<{kind}}  {c:>{share}}  {d:>{count}}  {e}".rstrip() for a, b, c, d, e in rows]
    return "\n".join([one_line(note), *lines] if note else lines)
