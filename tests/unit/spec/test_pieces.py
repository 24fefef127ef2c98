import pytest

from varuna_runtime.spec.pieces import PieceName

NAMES = [
    ("optim:0.weight:exp_avg", PieceName("optim:0.weight:exp_avg", is_alone=False)),
    ("optim:0.weight:exp_avg@", PieceName("optim:0.weight:exp_avg", is_alone=True)),
    ("optim:0.weight:step#int@", PieceName("optim:0.weight:step#int", is_alone=True)),
    ("optim:0.weight:exp_avg@0", PieceName("optim:0.weight:exp_avg", is_alone=True, start=0)),
    ("optim:a@b.weight:exp_avg@262144", PieceName("optim:a@b.weight:exp_avg", is_alone=True, start=262144)),
]


@pytest.mark.parametrize(("name", "piece"), NAMES)
def test_a_name_tells_which_part_it_is_and_back(name: str, piece: PieceName) -> None:
    assert PieceName.of(name) == piece
    assert str(piece) == name
