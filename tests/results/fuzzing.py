"""Damage results as nobody would, and as a careful forger would: with right checksums and hashes around the damage."""

import dataclasses
import json
import os
import random
import shutil
import struct
import time
from pathlib import Path

from labeldp.core import certificate as certificates
from labeldp.results.folder import CERTIFICATE, CONFIG, HASHED, METRICS, MODEL
from tests.commands import labeldp

KEPT = Path(__file__).parents[1] / "compatibility" / "v0_1"
SECRET = "very-secret-class"
TABLES = {"one_shot": "toy.csv", "rr": "toy.csv", "labeldp_pro": "toy.csv", "numbers": "numbers.csv"}
# Seconds that any command may take on a folder of a few kilobytes, on a slow machine.
PATIENCE = 20.0

ODD = (
    None, True, False, 0, -1, 1, 2**53, 2**64, 10**400, 0.5, 1e308, -1e-308, "infinity", "", "\x00\x1b[2J", "=1+1",
    "<script>alert(1)</script>", "a|b`c\nd", "x" * 5000, [], {}, [[]], [None], [1, "a"], {"a": 1}, {"": []},
)  # fmt: skip


def deep(rng):
    value = rng.choice(ODD)
    for _ in range(rng.choice((3, 90, 400))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def mutated(value, rng):
    """Return plain JSON values with something else at one random place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        action = rng.random()
        if action < 0.08:
            return {key: one for key, one in value.items() if key != name}
        if action < 0.12:
            return {**value, rng.choice(("extra", "", "epsilon", "format")): rng.choice(ODD)}
        return {**value, name: mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place, action = rng.randrange(len(value)), rng.random()
        if action < 0.1:
            return value[:place] + value[place + 1 :]
        if action < 0.2:
            return value * rng.choice((2, 50))
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    if isinstance(value, (int, float)) and abs(value) < 1e300 and rng.random() < 0.5:
        return rng.choice((value * 2, value / 2, -value, value + 1, value * 1e300, int(value) << 40))
    return deep(rng) if rng.random() < 0.1 else rng.choice(ODD)


def sealed(fields):
    """Return certificate fields with a checksum that is right."""
    body = {name: value for name, value in fields.items() if name != "checksum"}
    try:
        return {**body, "checksum": certificates._checksum(body)}
    except (ValueError, RecursionError):
        # Not finite, or too deep: there is no checksum of it.
        return fields


def rehashed(folder):
    """Let the certificate say the hashes that the files now have, where it can."""
    try:
        fields = json.loads((folder / CERTIFICATE).read_text())
        fields["release"]["files"] = {
            name: certificates.describe_artifact(folder / name).sha256 for name in HASHED if (folder / name).is_file()
        }
        model = certificates.describe_artifact(folder / MODEL)
        fields["artifact"] = {"name": model.name, "sha256": model.sha256, "bytes": model.size}
        (folder / CERTIFICATE).write_text(json.dumps(sealed(fields)))
    except (KeyError, TypeError, ValueError, OSError, AttributeError, RecursionError):
        return


def damage_bytes(path, rng):
    content = bytearray(path.read_bytes())
    action = rng.randrange(6)
    if action == 0:
        content = content[: rng.randrange(len(content) + 1)]
    elif action == 1:
        content += rng.randbytes(rng.randrange(1, 50))
    elif action == 2:
        content = bytearray(rng.randbytes(rng.randrange(200)))
    elif action == 3:
        start = rng.randrange(len(content))
        del content[start : start + rng.randrange(1, 40)]
    else:
        for _ in range(rng.choice((1, 1, 3, 20))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def damage_json(path, rng, seal=True):
    fields = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 2, 4))):
        fields = mutated(fields, rng)
    text = json.dumps(sealed(fields) if seal and isinstance(fields, dict) and rng.random() < 0.9 else fields)
    if rng.random() < 0.03:
        text = rng.choice(("[" * 100_000, '{"a":' * 100_000, "9" * 100_000, '"' + "\\u0000" * 1000))
    path.write_text(text)


def damage_header(path, rng):
    """Change the description of the model, or its tensors' shapes, in the header of the file."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    notes = header["__metadata__"]
    if rng.random() < 0.8 and "model" in notes:
        notes["model"] = json.dumps(mutated(json.loads(notes["model"]), rng))
    else:
        header = mutated(header, rng)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def damage_lines(path, rng):
    lines = path.read_text().splitlines()
    odd = (
        "a = 1",
        "[train]",
        "a." * 2000 + "a = 1",
        "x = " + "[" * 5000,
        "label = '''",
        "epsilon = nan",
        "\x00",
        "= =",
    )
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(odd))
    if rng.random() < 0.5:
        del lines[rng.randrange(len(lines))]
    path.write_text("\n".join(lines))


def damaged_folder(source, target, rng):
    """Copy a folder and damage it; return whether a byte of it differs and nothing was made to fit."""
    shutil.copytree(source, target)
    files = sorted(path for path in target.iterdir() if path.name != "audit.json")
    action = rng.randrange(10)
    if action < 3:
        path = rng.choice(files)
        before = _content(path)
        damage_bytes(path, rng)
        return _content(path) != before
    if action == 3:
        path = rng.choice(files)
        path.unlink()
        if rng.random() < 0.5:
            path.mkdir() if rng.random() < 0.5 else os.mkfifo(path)
        return True
    if action < 6:
        damage_json(target / CERTIFICATE, rng)
    elif action == 6:
        damage_json(target / METRICS, rng, seal=False)
    elif action == 7:
        damage_lines(target / CONFIG, rng)
    else:
        damage_header(target / MODEL, rng)
    if action >= 6 or rng.random() < 0.3:
        rehashed(target)
    return False


def _content(path):
    """What a file says: space between the fields of a certificate means nothing."""
    content = path.read_bytes()
    try:
        return json.loads(content) if path.name == CERTIFICATE else content
    except ValueError:
        return content


def damaged_file(source, target, rng):
    """Copy a certificate by itself, or a table with the certificate beside it, and damage either."""
    shutil.copy(source, target)
    beside = source.with_name(source.name + ".certificate.json")
    if beside.is_file():
        shutil.copy(beside, target.with_name(target.name + ".certificate.json"))
        if rng.random() < 0.5:
            target = target.with_name(target.name + ".certificate.json")
    certificate = target.suffix == ".json"
    damage_json(target, rng) if certificate and rng.random() < 0.7 else damage_bytes(target, rng)


def run(place, *arguments):
    """Run a command on damaged files: it ends with a sentence, leaves nothing half written, and tells no secret."""
    before = set(place.iterdir())
    begun = time.process_time()
    found = labeldp(*arguments)
    seconds = time.process_time() - begun
    assert found.returncode in (0, 1, 2), found
    assert "labeldp: unexpected" not in found.stderr, (arguments, found.stderr)
    assert SECRET not in found.stdout + found.stderr, (arguments, found.stderr)
    assert "\x1b" not in found.stdout + found.stderr, (arguments, found.stderr)
    assert seconds < PATIENCE, (arguments, seconds)
    new = set(place.iterdir()) - before
    assert not any(path.name.endswith(".part") for path in new), new
    assert found.returncode != 2 or not new, (arguments, new)
    return found


def fuzz(place, count, seed, bare):
    """Damage results `count` times, run commands on them, and return what the commands said, by exit code.

    Args:
        place: a folder to work in.
        bare: a certificate by itself, whose file can be damaged, too.
    """
    codes = {0: 0, 1: 0, 2: 0}
    names = list(TABLES)
    few = {}
    for table in set(TABLES.values()):
        few[table] = place / table
        few[table].write_text("".join((KEPT / table).read_text().splitlines(keepends=True)[:6]))
    for case in range(count):
        rng = random.Random(f"{seed}, {case}")
        name, target = names[case % len(names)], place / f"case{case}"
        target.mkdir()
        if case % 5 == 4:
            source = rng.choice((bare, place / "private.csv"))
            damaged_file(source, target / source.name, rng)
            found = run(target, "verify", target / source.name)
        else:
            broken = damaged_folder(KEPT / name, target / "model", rng)
            found = run(target, "verify", target / "model", *(("--json",) if case % 3 == 0 else ()))
            assert not broken or found.returncode == 1, (case, found)
            if case % 4 == 1:
                run(target, "predict", target / "model", few[TABLES[name]], "--out", target / "now.csv")
            if case % 10 == 2:
                run(target, "report", target / "model", "--out", target / "page.html")
        codes[found.returncode] += 1
        shutil.rmtree(target)
    return codes


def private_table(place):
    """A private table whose label is a secret word, so that a command that quotes a cell is found out."""
    (place / "in.csv").write_text("age,y\n" + f"31,no\n57,{SECRET}\n" * 50)
    labeldp(
        "privatize", place / "in.csv", "--label", "y", "--classes", f"no,{SECRET}", "--epsilon", 1, "--out",
        place / "private.csv", "--quiet", check=0,
    )  # fmt: skip


def bare_certificate(place):
    """A certificate of no file, with two plans and noisy sums."""
    from tests.results.reporthelp import many_looks

    certificate = dataclasses.replace(many_looks().certificate, release=None, assumptions=("one", "two"))
    certificate.write(place / "vault.json")
    return place / "vault.json"
