"""Two hundred fuzzed tables and settings; ten thousand of them in tests/stress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import fuzzing

pytest.importorskip("torch")


@fuzzing.budget(150)
@given(fuzzing.TABLES, st.sampled_from([(), ("--delimiter", ";")]))
def test_no_table_brings_a_traceback_a_label_or_half_a_file(table, options):
    fuzzing.fuzz_table(*table, options)


@fuzzing.budget(50)
@given(st.sampled_from(["train", "privatize"]), fuzzing.CONFIGS)
def test_no_config_brings_a_traceback_or_half_a_file(command, options):
    fuzzing.fuzz_config(command, options)


def test_the_first_row_of_a_file_without_a_header_is_not_quoted(tmp_path):
    """Found by fuzzing: a label column that is not there brought a list of columns, which was a row with its label."""
    (tmp_path / "t.csv").write_text(f"31,Ulm,{fuzzing.SECRET}\n57,Bonn,no\n")
    fuzzing.fuzz_table(".csv", (tmp_path / "t.csv").read_bytes(), ())


def test_settings_of_the_wrong_kind_get_a_sentence():
    """Found by fuzzing: they ended in an unexpected TypeError."""
    for options in ({"test": 0}, {"drop": 0}, {"label": ["y"]}, {"classes": True}, {"key": 1.5}, {"quiet": 0}):
        fuzzing.fuzz_config("train", options)
