"""Ten thousand fuzzed tables and settings through everything that reads secret labels; two hundred in tests/data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import fuzzing

pytest.importorskip("torch")
pytestmark = pytest.mark.stress


@fuzzing.budget(8_000)
@given(fuzzing.TABLES, st.sampled_from([(), ("--delimiter", ";"), ("--user", "id"), ("--id", "x")]))
def test_no_table_brings_a_traceback_a_label_or_half_a_file(table, options):
    fuzzing.fuzz_table(*table, options)


@fuzzing.budget(2_000)
@given(st.sampled_from(["train", "privatize"]), fuzzing.CONFIGS)
def test_no_config_brings_a_traceback_or_half_a_file(command, options):
    fuzzing.fuzz_config(command, options)
