"""The line that shows where a long command stands: it fits 80 columns, moves by itself, and never says too much."""

import io
import re
import time

from rich.console import Console

from labeldp.cli.progress import clock, shown


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def lines(console):
    """What was drawn, line by line, without the codes that move the cursor."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", console.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_it_fits_eighty_columns_with_spinner_share_time_left_and_number():
    console = terminal()
    with shown("a-table-of-patients-with-a-very-long-name.parquet: reading", "ε 0 of 0.25", console=console) as show:
        for share in (0.1, 0.2, 0.4, 0.8):
            show("a-table-of-patients-with-a-very-long-name.parquet: training", "epoch 3 of 40, loss 0.61", share,
                 "ε 0.123 of 0.25")  # fmt: skip
            time.sleep(0.15)
    drawn = lines(console)
    assert max(map(len, drawn)) <= 80
    last = next(line for line in reversed(drawn) if "80%" in line)
    assert re.search(r"\d:\d\d left", last)
    assert "ε 0.123 of 0.25" in last
    assert "…" in last


def spinners(console):
    return {line.strip()[0] for line in lines(console) if "features" in line}


def test_a_phase_that_reports_nothing_still_moves():
    console = terminal()
    with shown("t.csv: reading", "ε 0 of 1", console=console) as show:
        show("t.csv: features", "60,000 rows", None, "ε 0 of 1")
        # A busy machine draws late.
        end = time.monotonic() + 30
        while len(spinners(console)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
    assert len(spinners(console)) >= 2


def test_a_new_phase_has_a_pace_of_its_own():
    console = terminal()
    with shown("t.csv: reading", console=console) as show:
        show("t.csv: features", "", 0.9, "")
        show("t.csv: training", "", 0.1, "")
        time.sleep(0.15)
    drawn = lines(console)
    assert "10%" in drawn[-1]
    assert "left" not in drawn[-1]


def test_a_phase_of_unknown_length_after_one_of_known_length_does_not_stand_at_nought():
    console = terminal()
    with shown("t.csv: reading", console=console) as show:
        show("t.csv: tuning", "", 0.5, "")
        show("t.csv: head", "", None, "")
        time.sleep(0.3)
    drawn = [line for line in lines(console) if "head" in line]
    assert drawn
    assert not any("%" in line for line in drawn)


def test_nobody_looks():
    with shown("t.csv", console=Console(file=io.StringIO())) as show:
        assert show is None


def test_a_clock():
    assert [clock(seconds) for seconds in (0, 59.9, 60, 3599, 3600)] == ["0:00", "0:59", "1:00", "59:59", "1:00:00"]
