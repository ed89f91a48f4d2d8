import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.results import toml

texts = st.text(st.characters(exclude_categories=("Cs",)))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(scalars | st.lists(scalars), lambda inner: st.dictionaries(texts, inner), max_leaves=20)


@settings(max_examples=50)
@given(st.dictionaries(texts, values))
def test_what_is_written_is_read_back(written):
    assert tomllib.loads(toml.dumps(written)) == written


def test_nothing_is_left_out_but_none():
    assert tomllib.loads(toml.dumps({"a": None, "b": {"c": None}, "d": {}})) == {"b": {}, "d": {}}


def test_long_lists_take_a_line_for_each_item():
    names = [f"column number {i}" for i in range(20)]
    text = toml.dumps({"names": names})
    assert max(map(len, text.splitlines())) < 40
    assert tomllib.loads(text) == {"names": names}


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="type object"):
        toml.dumps({"a": object()})
