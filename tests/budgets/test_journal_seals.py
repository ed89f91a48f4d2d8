"""Journals keep their unit and are sealed: a changed line, a missing one and an older copy are refused."""

import json
import shutil

import pytest

from labeldp.budgets.journal import Journal, JournalError
from labeldp.budgets.keys import StoreKeyError
from labeldp.core.events import PureDP
from labeldp.core.ledger import ONE_LABEL, ONE_USER, Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault
from tests.budgets.journalstore import JournalStore

LABELS = [0, 1, 1, 0]
RESPONSE = RandomizedResponse(1.0, 2)


@pytest.fixture
def spent(tmp_path):
    """A journal with two charges."""
    journal = Journal.open(tmp_path / "j", Budget(3.0))
    journal.charge(PureDP(1.0), note="a")
    journal.charge(PureDP(1.0), note="b")
    return journal


# -- units --------------------------------------------------------------------------------------------------------


def test_costs_of_rows_and_of_users_are_never_added_up(tmp_path):
    """Issue 18, 9: both vaults could spend into one journal, whose sum was about nothing."""
    rows = Journal.open(tmp_path / "rows", Budget(9.0))
    LabelVault(LABELS, 2, store=JournalStore(rows)).release(RESPONSE)
    with pytest.raises(ValueError, match="one label"):
        UserVault(LABELS, [0, 0, 1, 1], 2, store=JournalStore(rows)).release(RESPONSE)
    users = Journal.open(tmp_path / "users", Budget(9.0), unit=ONE_USER)
    UserVault(LABELS, [0, 0, 1, 1], 2, store=JournalStore(users)).release(RESPONSE)
    with pytest.raises(ValueError, match="all labels of one user"):
        LabelVault(LABELS, 2, store=JournalStore(users)).release(RESPONSE)
    assert (rows.epsilon(0), users.epsilon(0)) == (1.0, 2.0)


def test_a_journal_keeps_its_unit(tmp_path):
    journal = Journal.open(tmp_path / "j", unit=ONE_USER)
    with pytest.raises(JournalError, match=r"all labels of one user.*one label.*a journal for each"):
        journal.charge(PureDP(1.0))
    with pytest.raises(JournalError, match="a journal for each"):
        Journal.open(tmp_path / "j", unit=ONE_LABEL)
    assert Journal.open(tmp_path / "j").unit == ONE_USER
    journal.charge(PureDP(1.0), unit=ONE_USER)
    assert journal.epsilon(0) == 1.0


# -- seals --------------------------------------------------------------------------------------------------------


def lines(journal):
    return journal.path.read_text().splitlines(keepends=True)


CHANGES = {
    "a smaller cost": lambda kept: [kept[0], kept[1].replace('"epsilon": 1.0', '"epsilon": 0.1'), kept[2]],
    "a larger budget": lambda kept: [kept[0].replace('"epsilon": 3.0', '"epsilon": 9.0'), *kept[1:]],
    "another unit": lambda kept: [kept[0].replace('"row"', '"user"'), *kept[1:]],
    "the last charge gone": lambda kept: kept[:-1],
    "the first charge gone": lambda kept: [kept[0], kept[2]],
    "all charges gone": lambda kept: kept[:1],
    "two charges exchanged": lambda kept: [kept[0], kept[2], kept[1]],
    "a charge twice": lambda kept: [*kept, kept[-1]],
    "no seals": lambda kept: [json.dumps({k: v for k, v in json.loads(x).items() if k != "seal"}) + "\n" for x in kept],
    "a header in the old format": lambda kept: [json.dumps({"format": "labeldp-journal/1", "budget": None}) + "\n"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_journal_is_refused(spent, change):
    before = lines(spent)
    spent.path.write_text("".join(CHANGES[change](before)))
    assert lines(spent) != before
    for use in (lambda: spent.charge(PureDP(0.1)), lambda: spent.epsilon(0), lambda: Journal.open(spent.path)):
        with pytest.raises(JournalError, match="put the newest copy back"):
            use()


def test_an_older_copy_put_back_is_noticed(spent, tmp_path):
    """Issue 18, 19: what was spent after the copy was forgotten."""
    shutil.copy(spent.path, tmp_path / "copy")
    spent.charge(PureDP(1.0))
    shutil.copy(tmp_path / "copy", spent.path)
    with pytest.raises(JournalError, match=r"2 charges where j\.head knows of 3"):
        spent.charge(PureDP(1.0))


@pytest.mark.parametrize("content", ["", None])
def test_a_journal_emptied_or_taken_away_does_not_begin_anew(spent, content):
    spent.path.unlink()
    if content is not None:
        spent.path.write_text(content)
    with pytest.raises(JournalError, match="knows of charges"):
        Journal.open(spent.path, Budget(3.0))


def test_a_missing_or_damaged_head_is_named(spent):
    head = spent.path.with_name("j.head")
    head.write_text("hello")
    with pytest.raises(JournalError, match=r"j\.head is damaged"):
        spent.epsilon(0)
    head.unlink()
    with pytest.raises(JournalError, match=r"j\.head is missing"):
        spent.charge(PureDP(0.1))


def test_a_charge_whose_process_died_before_the_head_was_written_counts(spent):
    head = spent.path.with_name("j.head")
    before = head.read_bytes()
    spent.charge(PureDP(0.5))
    head.write_bytes(before)
    assert spent.epsilon(0) == 2.5
    spent.charge(PureDP(0.5))
    assert Journal.open(spent.path).epsilon(0) == 3.0
    head.write_bytes(before)
    with pytest.raises(JournalError, match="older copy"):
        spent.epsilon(0)


def test_the_key_is_needed_and_must_be_the_one(spent, tmp_path):
    with pytest.raises(JournalError, match="changed behind"):
        Journal.open(spent.path, key=b"another key, long enough")
    (tmp_path / "j.key").unlink()
    with pytest.raises(StoreKeyError, match=r"j\.key"):
        spent.epsilon(0)


def test_the_key_of_the_environment_seals(tmp_path, monkeypatch):
    (tmp_path / "team.key").touch(mode=0o600)
    (tmp_path / "team.key").write_text("ab" * 32)
    monkeypatch.setenv("LABELDP_STORE_KEY", str(tmp_path / "team.key"))
    Journal.open(tmp_path / "j").charge(PureDP(1.0))
    assert not (tmp_path / "j.key").exists()
    assert Journal.open(tmp_path / "j", key=bytes.fromhex("ab" * 32)).epsilon(0) == 1.0


def test_a_journal_of_the_first_version_still_opens_and_says_that_it_is_not_sealed(tmp_path):
    header = {"format": "labeldp-journal/1", "budget": {"epsilon": 2.0, "delta": 0.0}}
    charge = {"event": {"type": "PureDP", "epsilon": 1.0}, "times": 1, "note": "", "time": ""}
    path = tmp_path / "j"
    new = Journal.open(tmp_path / "new")
    new.charge(PureDP(1.0))
    charge["event"] = json.loads(lines(new)[1])["event"]
    path.write_text(json.dumps(header) + "\n" + json.dumps(charge) + "\n")
    journal = Journal.open(path, Budget(2.0))
    assert (journal.sealed, new.sealed) == (False, True)
    assert (journal.unit, journal.epsilon(0)) == (ONE_LABEL, 1.0)
    with pytest.raises(JournalError, match="a journal for each"):
        journal.charge(PureDP(0.5), unit=ONE_USER)
    journal.charge(PureDP(0.5))
    assert [sorted(json.loads(line)) for line in lines(journal)[1:]] == [["event", "note", "time", "times"]] * 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["j", "new", "new.head", "new.key"]
