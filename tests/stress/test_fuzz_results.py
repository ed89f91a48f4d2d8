"""Ten thousand damaged certificates, folders and private tables through verify, report and predict."""

import pytest

from tests.results.fuzzing import bare_certificate, fuzz, private_table


@pytest.mark.stress
@pytest.mark.parametrize("part", range(10))
def test_whatever_is_in_a_result_the_outcome_is_a_sentence(tmp_path, part):
    private_table(tmp_path)
    codes = fuzz(tmp_path, 1000, f"stress {part}", bare_certificate(tmp_path))
    assert codes[1] > 500, codes
