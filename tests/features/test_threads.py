import threading

import pytest
import torch

from labeldp.features.extract import map_parts, one_thread

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_parts_run_side_by_side_on_one_thread_each_and_come_back_in_order():
    both = threading.Barrier(2, timeout=30)  # passes only when two parts run at once

    def work(part):
        both.wait()
        return part, torch.get_num_threads(), threading.current_thread() is threading.main_thread()

    assert map_parts(work, range(4), CPU) == [(part, 1, False) for part in range(4)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_started_later_have_all_of_torchs_threads():
    map_parts(lambda part: part, range(4), CPU)
    seen = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2]


@pytest.mark.usefixtures("two_threads")
def test_an_error_reaches_the_caller_and_the_threads_come_back():
    def fail(part):
        raise KeyError(part)

    with pytest.raises(KeyError):
        map_parts(fail, range(3), CPU)
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), one_thread():
        fail(0)
    assert torch.get_num_threads() == 2


def test_nothing_and_one_part():
    assert map_parts(abs, [], CPU) == []
    assert map_parts(abs, [-3], CPU) == [3]
