"""The command line: parse, call one function, write files.

Exit codes: 0 done; 1 `verify` found a problem; 2 bad input, refused or interrupted, with one sentence on stderr
and nothing written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

import click

from labeldp.cli.access import access, logs
from labeldp.cli.accounting import calibrate, epsilon
from labeldp.cli.audit import audit
from labeldp.cli.budget import budget
from labeldp.cli.demo import demo
from labeldp.cli.keys import keys
from labeldp.cli.options import OptionError, takes_config
from labeldp.cli.plan import plan
from labeldp.cli.predict import predict
from labeldp.cli.privatize import privatize
from labeldp.cli.report import report
from labeldp.cli.reproduce import reproduce_table
from labeldp.cli.serve import health, serve
from labeldp.cli.train import launched, train
from labeldp.cli.verify import verify

# What a refused command ends with.
_REFUSED = 2
# Commands that may be called by another name.
_ALSO = {"choose": "plan"}


class Commands(click.Group):
    """Commands by their names; `labeldp choose` is `labeldp plan`, as `labeldp.choose` is in Python."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or of the name that this one stands for."""
        return super().get_command(ctx, _ALSO.get(cmd_name, cmd_name))


_BEGIN = """Train on your own table, and check the result:

\b
  labeldp train patients.csv --label diagnosis --classes none,mild,severe --epsilon 1 --out model
  labeldp report model
  labeldp verify model
"""


@click.group(
    cls=Commands, epilog=_BEGIN, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="labeldp")
def cli() -> None:
    """Machine learning on private labels.

    Features are public and labels are secret. Every epsilon printed here is about replacing ONE LABEL; the smaller it
    is, the more private.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `labeldp` command and end the process; a termination counts as an interruption."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if launched() and os.environ["RANK"] != "0":
        # One rank speaks. Training alone is shared: any other command is the first rank's, or it would be done twice.
        given = sys.argv[1:] if arguments is None else list(arguments)
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            sys.exit(run(given) if train.name in given[:1] else 0)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; whatever goes wrong is one sentence on stderr."""
    try:
        # Outside of standalone mode click hands back the code of an early exit, and None otherwise.
        return cli.main(args=arguments, prog_name="labeldp", standalone_mode=False) or 0
    except click.UsageError as error:
        if error.ctx is not None and type(error).__name__ == "NoArgsIsHelpError":
            # A group without a command: whoever types it wants to know what there is.
            click.echo(error.ctx.get_help())
            return 0
        where = error.ctx.command_path if error.ctx else "labeldp"
        sentence = f"{' '.join(error.format_message().split()).rstrip('.')} (see: {where} --help)"
    except click.ClickException as error:
        sentence = error.format_message()
    except (KeyboardInterrupt, click.Abort):
        sentence = "interrupted; nothing was written (a charge already made stays in its journal or store)"
    except ValueError as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"{error.filename or 'the system'}: {error.strerror or type(error).__name__}"
    except Exception as error:
        if os.environ.get("LABELDP_DEBUG"):
            raise
        sentence = (
            f"unexpected {type(error).__name__}; its message is withheld because it could quote a label "
            "(set LABELDP_DEBUG=1 to see it). Nothing was written"
        )
    click.echo(f"labeldp: {sentence}", err=True)
    return _REFUSED


for _command in (
    privatize, epsilon, calibrate, plan, train, predict, verify, report, keys, budget, audit, reproduce_table, demo,
    serve, health, access, logs,
):  # fmt: skip
    cli.add_command(_command)
takes_config(cli)


@cli.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for completion in a shell.

    \b
    eval "$(labeldp completion bash)"                                  # in ~/.bashrc or, with zsh, in ~/.zshrc
    labeldp completion fish > ~/.config/fish/completions/labeldp.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise OptionError(f"shell={shell!r} is not known here")
    click.echo(script(ctx.find_root().command, {}, "labeldp", "_LABELDP_COMPLETE").source())
