import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from labeldp.results.writing import render, to_toml

texts = st.text(st.characters(exclude_categories=("Cs",)))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(scalars | st.lists(scalars), lambda inner: st.dictionaries(texts, inner), max_leaves=20)


@settings(max_examples=25)
@given(st.dictionaries(texts, values))
def test_what_is_written_is_read_back(written):
    assert tomllib.loads(to_toml(written)) == written


def test_numbers_that_are_not_finite_are_read_back():
    found = tomllib.loads(to_toml({"most": math.inf, "least": -math.inf, "none": math.nan}))
    assert (found["most"], found["least"]) == (math.inf, -math.inf)
    assert math.isnan(found["none"])


def test_nothing_is_left_out_but_none():
    assert tomllib.loads(to_toml({"a": None, "b": {"c": None}, "d": {}})) == {"b": {}, "d": {}}


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="TOML"):
        to_toml({"a": object()})


def test_a_template_that_misses_a_value_is_refused():
    with pytest.raises(UndefinedError):
        render("model_card.md", name="model")
