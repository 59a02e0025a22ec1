import threading

from b2array.caching import cached


class Counted:
    def __init__(self):
        self.calls = 0

    @cached
    def value(self):
        """Whatever."""
        self.calls += 1
        return [self.calls]


def test_a_value_is_worked_out_once_an_instance():
    one, other = Counted(), Counted()
    assert one.value is one.value
    assert (one.calls, other.calls) == (1, 0)


def test_the_class_shows_the_docstring():
    assert Counted.value.__doc__ == "Whatever."


def test_threads_that_come_at_the_same_time_do_not_wait_for_each_other():
    gate = threading.Barrier(2, timeout=10)

    class Slow:
        @cached
        def value(self):
            gate.wait()
            return object()

    slow, found = Slow(), []
    threads = [threading.Thread(target=lambda: found.append(slow.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is slow.value
