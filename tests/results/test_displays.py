"""What notebooks show of a claim, a budget, a store and an evaluation: tables, with every text escaped."""

import html.parser
from dataclasses import replace

import pytest

from labeldp import Budget, LabelVault, RandomizedResponse
from labeldp.budgets.store import BudgetStore
from labeldp.results.evaluation import Evaluation, Measure

EVIL = "<img src=x onerror=alert(1)>&\"'"


class Cells(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert attrs == []

    def handle_data(self, data):
        self.texts.append(data)


def cells(shown):
    read = Cells(shown._repr_html_())
    assert set(read.tags) <= {"table", "caption", "tr", "th", "td"}
    return read.texts


@pytest.fixture
def vault():
    made = LabelVault([0, 1, 1, 0], num_classes=2)
    made.release(RandomizedResponse(1.0, 2))
    made.release(RandomizedResponse(0.5, 2), rows=[0])
    return made


def test_a_certificate_shows_its_claim_its_ledger_and_what_it_rests_on(vault):
    vault.assume(EVIL)
    found = cells(vault.certificate())
    assert found[0] == "Certificate: label differential privacy of one label"
    assert found[1:3] == ["ε", "1.5"]
    assert "4.48169×" in found
    assert {"1 rows", "3 rows"} <= set(found)
    assert found[-1] == EVIL


def test_a_seeded_certificate_says_that_it_is_not_private(vault):
    assert any("not private" in text for text in cells(replace(vault.certificate(), seeded=True, noise=EVIL)))
    assert not any("not private" in text for text in cells(vault.certificate()))


def test_a_budget():
    assert cells(Budget(1.0, 1e-6))[1:5] == ["ε", "1", "δ", "1e-06"]


def test_a_store_shows_what_is_left(vault, tmp_path):
    store = BudgetStore.open(tmp_path / "budgets.db")
    store.create(EVIL, vault, Budget(2.0))
    vault.part(store=store.account(vault)).release(RandomizedResponse(0.5, 2))
    found = cells(store)
    assert found[-7:] == [EVIL, "4 rows", "2", "0.5", "1.5", "0", "1"]


def test_an_evaluation():
    sides = (Measure(0.9, 0.1), None)
    own = Evaluation(300, 1.0, {"accuracy": Measure(0.8, 0.05)}, ("no", EVIL), recall=sides, precision=sides)
    found = cells(own)
    assert found[:3] == ["On 300 rows set aside, with 95% error bars", "accuracy", "80.0% ± 5.0"]
    assert f"{EVIL}: recall, precision" in found
