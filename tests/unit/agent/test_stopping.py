from varuna_runtime.agent.stopping import Stopping


def test_sigterm_stops_at_once_unless_there_is_time_to_drain() -> None:
    stopping = Stopping()
    stopping.terminate()
    assert stopping.stop.is_set()
    assert not stopping.drain.is_set()


def test_sigterm_drains_and_the_second_one_stops() -> None:
    stopping = Stopping(30.0)
    stopping.terminate()
    assert stopping.drain.is_set()
    assert not stopping.stop.is_set()
    stopping.terminate()
    assert stopping.stop.is_set()


def test_sigint_stops_at_once() -> None:
    stopping = Stopping(30.0)
    stopping.interrupt()
    assert stopping.stop.is_set()
    assert not stopping.drain.is_set()
