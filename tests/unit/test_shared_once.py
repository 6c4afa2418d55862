"""
Processes of a test run share a server.

The process that made the server stops it after all other processes have stopped using it.
"""

import threading

from harness.shared_once import shared


def test_first_process_makes_the_shared_server_and_stops_it_after_all_others_have_left(tmp_path):
    """Threads can stand in for processes, because each thread opens the lock files itself."""
    events, others_may_end = [], threading.Event()

    def make(stack):
        events.append("made")
        stack.callback(events.append, "given back")
        return "url"

    def use():
        with shared(tmp_path, "server", make) as found:
            in_use.wait(30)
            assert others_may_end.wait(30)
            events.append(f"used {found}")

    in_use = threading.Barrier(3)
    others = [threading.Thread(target=use) for _ in range(2)]
    with shared(tmp_path, "server", make) as found:
        for one in others:
            one.start()
        in_use.wait(30)
        threading.Timer(0.05, others_may_end.set).start()
    for one in others:
        one.join(30)

    assert found == "url"
    assert events == ["made", "used url", "used url", "given back"]


def test_shared_server_that_was_stopped_is_made_again_by_its_next_user(tmp_path):
    numbers = iter("12")

    for number in "12":
        with shared(tmp_path, "server", lambda _: next(numbers)) as found:
            assert found == number
