"""Run `labeldp keys`: make a key to sign with, show its public half, sign what is there already."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.options import OptionError

if TYPE_CHECKING:
    from labeldp.results.signing import SigningKey

_PASSPHRASE = "LABELDP_PASSPHRASE"


def with_signature(command: Any) -> Any:
    """Give a command `--sign KEY`."""
    return click.option(
        "--sign", type=click.Path(path_type=Path), metavar="KEY",
        help="Sign what is written with the private key in this file; see labeldp keys.",
    )(command)  # fmt: skip


def signing_key(path: Path, target: Path | None = None) -> SigningKey:
    """Return the key in this file, unlocked, for what will be written to `target`.

    Asked for before anything is spent or written: a wrong passphrase, or a signature that is there, costs nothing.
    """
    from labeldp.results.signing import LockedKeyError, SigningKey, signature_path

    if target is not None and os.path.lexists(signature_path(target)):
        raise OptionError(f"{str(signature_path(target))!r} exists already and is never overwritten; move it")
    given = os.environ.get(_PASSPHRASE)
    try:
        return SigningKey.read(path, given)
    except LockedKeyError:
        if given is not None:
            raise OptionError(f"{_PASSPHRASE} does not open the signing key {path.name!r}; correct it") from None
        if not sys.stdin.isatty():
            raise OptionError(
                f"the signing key {path.name!r} has a passphrase; put it into {_PASSPHRASE}, or run this on a terminal"
            ) from None
    return SigningKey.read(path, click.prompt(f"Passphrase of {path.name}", hide_input=True, err=True))


def put_signature(path: Path, key: SigningKey | None) -> None:
    """Sign what was written, where there is a key."""
    from labeldp.results.signing import sign

    if key is not None:
        try:
            sign(path, key)
        except OSError as error:
            raise OptionError(
                f"{path} is written, but not signed ({error.strerror}); do it with: labeldp keys sign {path} --key KEY"
            ) from None


@click.group()
def keys() -> None:
    """Make keys and sign results with them.

    A signed result cannot be rewritten unnoticed. Every signer has an Ed25519 key.

    \b
    labeldp keys new ann.key                                      # ann.key to keep, ann.key.pub to hand out
    labeldp train patients.csv … --out model --sign ann.key
    labeldp verify model --signer ann.key.pub
    """


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--passphrase", is_flag=True, help=f"Lock the key with a passphrase: asked for, or from {_PASSPHRASE}.")
def new(file: Path, passphrase: bool) -> None:
    """Make a key: FILE for you alone, FILE.pub for everybody."""
    from labeldp.results.signing import SigningKey

    chosen = None
    if passphrase:
        chosen = os.environ.get(_PASSPHRASE) or click.prompt(
            "Passphrase", hide_input=True, confirmation_prompt=True, err=True
        )
    key = SigningKey.new()
    key.write(file, chosen)
    click.echo(f"{file}: a new key; keep it to yourself.\n{file}.pub: give it to those who verify.\n{key.public}")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
def show(file: Path) -> None:
    """Print the public key of a key file."""
    from labeldp.results.signing import SigningError, public_key

    try:
        click.echo(public_key(file))
    except SigningError:
        click.echo(signing_key(file).public)


@keys.command()
@click.argument("path", metavar="FILE|FOLDER", type=click.Path(path_type=Path, exists=True))
@click.option("--key", required=True, type=click.Path(path_type=Path), help="The private key's file.")
def sign(path: Path, key: Path) -> None:
    """Sign a folder or a file that is there already.

    This can be a folder of labeldp train, a privatized file with its certificate, or any other file. Verify it first:
    the signature says that you vouch for all of it.
    """
    from labeldp.results.signing import sign as signed

    opened = signing_key(key)
    click.echo(f"{signed(path, opened)}: signed by {opened.public}")
