import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from labeldp.results.card import render
from labeldp.results.folder import run_toml

# What looks like an address or a path at home is shortened; tests/results/test_secrets.py has those.
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/"))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
options = st.dictionaries(
    texts.filter(lambda name: name not in ("key", "sign", "passphrase", "store")), scalars | st.lists(scalars)
)


@settings(max_examples=25)
@given(st.dictionaries(texts, options))
def test_what_is_written_is_read_back(run):
    assert tomllib.loads(run_toml(run)) == run


def test_numbers_that_are_not_finite_are_read_back():
    found = tomllib.loads(run_toml({"train": {"most": math.inf, "least": -math.inf, "none": math.nan}}))["train"]
    assert (found["most"], found["least"]) == (math.inf, -math.inf)
    assert math.isnan(found["none"])


def test_nothing_is_left_out_but_none():
    assert tomllib.loads(run_toml({"a": {"b": None, "c": ""}, "d": {}})) == {"a": {"c": ""}, "d": {}}


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="TOML"):
        run_toml({"train": {"a": object()}})


def test_a_template_that_misses_a_value_is_refused():
    with pytest.raises(UndefinedError):
        render("model_card.md", name="model")
