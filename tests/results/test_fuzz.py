"""Fuzzed certificates, folders and private tables through verify, report and predict; 10,000 in tests/stress."""

import pytest

from tests.results.fuzzing import bare_certificate, fuzz, private_table


@pytest.mark.parametrize("part", range(2))
def test_whatever_is_in_a_result_the_outcome_is_a_sentence(tmp_path, part):
    private_table(tmp_path)
    codes = fuzz(tmp_path, 100, f"quick {part}", bare_certificate(tmp_path))
    assert codes[1] > 50, codes
