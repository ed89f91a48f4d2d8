"""The page about users: its Python is run as it stands, and its certificate is the one that comes out."""

import json
import re
from pathlib import Path

import pytest

from labeldp.core.certificate import parse, verify

PAGE = Path(__file__).parents[2] / "docs" / "users.md"
if not PAGE.exists():
    pytest.skip("the docs are not beside the tests", allow_module_level=True)
TEXT = PAGE.read_text()


def block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    return found


def test_the_example_gives_the_certificate_shown(capsys):
    names = {}
    exec(compile(block("python"), "docs/users.md", "exec"), names)
    assert capsys.readouterr().out == "all labels of one user 2.0\n"
    certificate = parse(names["vault"].certificate().dumps())
    assert verify(certificate) == ()
    shown = json.loads("{" + block("json").replace(" ...", "") + "}")
    written = certificate.to_json()
    assert written["ledger"] == shown["ledger"]
    assert written["claim"] | {"neighbours": None} == shown["claim"] | {"neighbours": None}
    assert written["claim"]["neighbours"].startswith(shown["claim"]["neighbours"])
    assert set(names["private"].channel.epsilons) == {0.5, 2.0 / 3, 1.0, 2.0}


def test_names_on_the_page_exist():
    from labeldp.mechanisms import users
    from labeldp.mechanisms import users as user_responses
    from labeldp.mechanisms.gradients import users as user_gradients
    from labeldp.recipes import user_level

    for module, name in (
        (user_responses, "UserResponse"),
        (user_gradients, "UserGradientSum"),
        (users, "cap_rows"),
        (user_level, "train_on_answers"),
        (user_level, "train_on_gradients"),
    ):
        assert name in TEXT
        assert hasattr(module, name)
