"""Sign results with Ed25519, and say who signed: folders, private tables, histories of budget stores, any file.

Whoever can recompute a certificate can also rewrite one, with its ledger, its files and their hashes: a folder of
ε = 1 becomes one of ε = 0.01 that holds. A signature stops that. It covers the SHA-256 of every file, so that nothing
can be changed, swapped, added or taken away without the private key:

    model/signature.json           every other file of the folder, but for audit.json, which may be made later
    private.csv.signature.json     private.csv and, where they are there, its .certificate.json and .config.toml

    signature = Ed25519(private key, "labeldp-signature/1" + line feed + the other fields as canonical JSON)  (RFC 8032)

It proves that the holder of the key vouched for exactly these files. That what they vouched for is true, the signer
has to know: that the ledger lists every query of these labels, and that this library drew the noise.

>>> import tempfile
>>> file, key = Path(tempfile.mkdtemp()) / "history.json", SigningKey.new()
>>> _ = file.write_text("{}")
>>> sign(file, key).name
'history.json.signature.json'
>>> check(file, [key.public]).problems
()
>>> check(file, [SigningKey.new().public]).problems[0][:49]
'it is signed, but not by the signer that you want'
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from labeldp.atomic import flush, replacing

FORMAT = "labeldp-signature/1"
SIGNATURE, AUDIT = "signature.json", "audit.json"
# What belongs to a file and is signed with it.
_BESIDE = (".certificate.json", ".config.toml")
_PREFIX = "ed25519:"
_FIELDS = {"format", "signer", "signed", "files", "signature"}
_MOST_BYTES = 1 << 20


class SigningError(ValueError):
    """A key or a signature that cannot be used. One sentence that says what to do; no secret is in it."""


class LockedKeyError(SigningError):
    """The private key is encrypted, and no passphrase, or a wrong one, was given."""


# -- keys --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SigningKey:
    """A private key. Whoever has it can sign in its owner's name; `public` is for everybody."""

    _secret: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> SigningKey:
        """Return a new key, from the operating system's entropy."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path | str, passphrase: str | None = None) -> SigningKey:
        """Return the key in a file, which nobody but its owner may be able to read."""
        path = Path(path).expanduser()
        try:
            mode, content = path.stat().st_mode, path.read_bytes()
        except OSError as error:
            raise SigningError(
                f"the signing key {path.name!r} cannot be read ({error.strerror}); make one with: labeldp keys new FILE"
            ) from None
        if mode & 0o077:
            raise SigningError(f"others may read the signing key {path.name!r}; take that back with: chmod 600 FILE")
        try:
            secret = load_pem_private_key(content, None if passphrase is None else passphrase.encode())
        except TypeError:
            if passphrase is not None:
                return cls.read(path)
            raise LockedKeyError(f"the signing key {path.name!r} has a passphrase; give it") from None
        except (ValueError, UnsupportedAlgorithm):
            if passphrase is not None:
                raise LockedKeyError(f"the passphrase does not open the signing key {path.name!r}") from None
            secret = None
        if not isinstance(secret, Ed25519PrivateKey):
            raise SigningError(f"{path.name!r} holds no Ed25519 private key; make one with: labeldp keys new FILE")
        return cls(secret)

    def write(self, path: Path | str, passphrase: str | None = None) -> None:
        """Write the key to a new file that only its owner may read, and the public one beside it, as `FILE.pub`."""
        path = Path(path).expanduser()
        public = path.with_name(path.name + ".pub")
        for file in (path, public):
            if os.path.lexists(file):
                raise SigningError(f"{str(file)!r} is there already and is never overwritten; choose another name")
        locked = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
        content = self._secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
        for file, written, mode in ((path, content, 0o600), (public, f"{self.public}\n".encode(), 0o644)):
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                opened.write(written)
            flush(file)
        flush(path.parent)

    @property
    def public(self) -> str:
        """The public key as one word, by which `labeldp verify --signer` knows the signer."""
        return _PREFIX + self._secret.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, in hexadecimal digits."""
        return self._secret.sign(message).hex()


def public_key(given: str | Path) -> str:
    """Return the public key that is given as a word, or as the name of a file that holds one.

    >>> public_key("ed25519:" + "0A" * 32) == "ed25519:" + "0a" * 32
    True
    """
    word = str(given).strip().lower()
    if not word.startswith(_PREFIX):
        try:
            with Path(given).expanduser().open("rb") as file:
                word = file.read(200).decode("ascii", "replace").strip().lower()
        except (OSError, ValueError):
            word = ""
    try:
        # Exactly 32 bytes: anything else is refused by the library.
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(word.removeprefix(_PREFIX)))
    except ValueError:
        word = ""
    if not word.startswith(_PREFIX):
        raise SigningError(
            f"signer={str(given)!r} is neither a public key (ed25519: and 64 hexadecimal digits) nor a file that holds "
            "one; see: labeldp keys show FILE"
        )
    return word


# -- signatures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """Who signed, when by their own clock, and which files by their SHA-256."""

    signer: str
    signed: str
    files: Mapping[str, str] = field(hash=False)
    signature: str = ""

    @classmethod
    def read(cls, path: Path) -> Signature:
        """Return the signature in a file; raise ValueError, TypeError or LookupError where it holds something else."""
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = fields["files"]
        texts = (fields["signer"], fields["signed"], fields["signature"], *files, *files.values())
        if set(fields) != _FIELDS or fields["format"] != FORMAT or not all(isinstance(text, str) for text in texts):
            raise ValueError("other fields")
        return cls(fields["signer"], fields["signed"], files, fields["signature"])

    @property
    def message(self) -> bytes:
        """What is signed: all of it in one spelling, under a name that no other use of the key has."""
        fields = {"signer": self.signer, "signed": self.signed, "files": dict(self.files)}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return f"{FORMAT}\n{text}".encode("ascii")

    @property
    def holds(self) -> bool:
        """Whether the signer's key made it."""
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.signer.removeprefix(_PREFIX)))
            public.verify(bytes.fromhex(self.signature), self.message)
        except (InvalidSignature, ValueError):
            return False
        return self.signer.startswith(_PREFIX)


class Checked(NamedTuple):
    """The signature of a result, None where there is none that can be read; and what is wrong with it."""

    signature: Signature | None
    problems: tuple[str, ...]


def signature_path(path: Path) -> Path:
    """Return where the signature of a folder or a file is: in the folder, or beside the file and what belongs to it."""
    if path.is_dir():
        return path / SIGNATURE
    return path.with_name(_head(path) + f".{SIGNATURE}")


def sign(path: Path | str, key: SigningKey) -> Path:
    """Sign a folder, or a file and what belongs to it, as they are now; return the signature's file."""
    path = Path(path)
    target = signature_path(path)
    if os.path.lexists(target):
        raise SigningError(f"{str(target)!r} is there already; move it away to sign anew")
    covered = dict(_files(path))
    odd = [name for name, file in covered.items() if not file.is_file()]
    if odd or not covered:
        what = f"{odd[0]!r} is not a plain file; take it away" if odd else "there is nothing; give a folder or a file"
        raise SigningError(f"{str(path)!r} cannot be signed: {what}")
    files = {name: _sha256(file) for name, file in covered.items()}
    unsigned = Signature(key.public, datetime.now(UTC).isoformat(timespec="seconds"), files)
    fields = {
        "format": FORMAT, "signer": unsigned.signer, "signed": unsigned.signed, "files": files,
        "signature": key.sign(unsigned.message),
    }  # fmt: skip
    with replacing(target) as draft:
        draft.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return target


def check(path: Path | str, signers: Collection[str] = ()) -> Checked:
    """Check the signature of a folder or file, where there is one, against every file as it is now.

    Args:
        path: what was signed.
        signers: public keys, one of which must have signed; with none, a missing signature is no problem.
    """
    path = Path(path)
    target = signature_path(path)
    if not target.is_file():
        return Checked(None, ("it is not signed, and you want a signer",) if signers else ())
    try:
        found = Signature.read(target)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return Checked(None, (f"{target.name} is no signature of this library; restore it from a copy",))
    if not found.holds:
        return Checked(found, (f"{target.name} was changed after it was signed, or made without the signer's key",))
    problems = [] if not signers or found.signer in signers else [
        f"it is signed, but not by the signer that you want: {found.signer}"
    ]  # fmt: skip
    files = dict(_files(path))
    for name in sorted({*files, *found.files}):
        if name not in files:
            problems.append(f"{name!r} was signed and is not there")
        elif name not in found.files:
            problems.append(f"{name!r} is not covered by the signature: it came later")
        elif not files[name].is_file() or found.files[name] != _sha256(files[name]):
            problems.append(f"{name!r} was changed after it was signed")
    return Checked(found, tuple(problems))


def _head(path: Path) -> str:
    """Return the name of the file that a certificate or a config beside it belongs to; its own name for others."""
    for suffix in _BESIDE:
        name = path.name.removesuffix(suffix)
        if name != path.name and path.with_name(name).is_file():
            return name
    return path.name


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a signature of `path` covers, by names that do not depend on where it is."""
    if not path.is_dir():
        head = path.with_name(_head(path))
        beside = (head.with_name(head.name + suffix) for suffix in _BESIDE)
        yield from ((file.name, file) for file in (head, *beside) if file.is_file())
        return
    for folder, folders, names in os.walk(path):
        # A link to a folder is not followed: it counts as a file that cannot be signed.
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for file in (Path(folder, name) for name in (*names, *links)):
            name = file.relative_to(path).as_posix()
            if name not in (SIGNATURE, AUDIT):
                yield name, file


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
