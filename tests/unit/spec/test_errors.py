import pytest

from varuna_runtime.spec.errors import PeerLost

GLOO = (
    "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:35748. This is typically caused by a remote worker crashing. Check the logs of the remote "
    "worker before reporting an error. GLHF!"
)
STORE = "its store does not answer: failed to recv, got 0 bytes\nException raised from recvBytes"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (GLOO, "rank 2 is gone: Connection closed by peer [127.0.0.1]:35748"),
        (STORE, "rank 2 is gone: its store does not answer: failed to recv, got 0 bytes"),
        ("it left the generation", "rank 2 is gone: it left the generation"),
        ("", "rank 2 is gone: "),
    ],
)
def test_a_lost_peer_is_told_without_source_lines_advice_and_stack(reason: str, words: str) -> None:
    assert str(PeerLost(2, reason)) == words
