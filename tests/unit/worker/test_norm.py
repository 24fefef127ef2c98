import torch

from varuna_runtime.spec.model import TiedUse
from varuna_runtime.worker.accumulate import BLOCK, Piece, spaces_of
from varuna_runtime.worker.norm import NormOrder

PARAMETERS = [
    ("a", torch.zeros(2 * BLOCK + 1)),
    ("b", torch.zeros(1, dtype=torch.float64)),
    ("c", torch.zeros(3)),
    ("d", torch.zeros(2)),
]
SPACES = spaces_of(4, PARAMETERS, alone=["c"])
A_AND_D, B, C = SPACES


def test_blocks_stand_in_order_of_parameters_whatever_space_they_are_in() -> None:
    order = NormOrder(SPACES, copies=())
    values = [torch.ones(2 * BLOCK + 1), torch.full((2,), 2.0)]
    squares = order.squares(A_AND_D, [Piece(0, 0, 2 * BLOCK + 1), Piece(1, 0, 2)], values)
    squares |= order.squares(B, [Piece(0, 0, 1)], [torch.full((1,), 3.0, dtype=torch.float64)])
    squares |= order.squares(C, [Piece(0, 0, 3)], [torch.full((3,), 4.0)])
    assert order.partials(squares) == (BLOCK, BLOCK, 1.0, 9.0, 48.0, 8.0)


def test_a_slice_stands_where_its_blocks_do_and_the_rest_is_nothing() -> None:
    order = NormOrder(SPACES, copies=())
    squares = order.squares(A_AND_D, [Piece(0, BLOCK, 2 * BLOCK + 1)], [torch.ones(BLOCK + 1)])
    assert order.partials(squares) == (0.0, BLOCK, 1.0, 0.0, 0.0, 0.0)


def test_a_copy_of_a_tied_parameter_does_not_count() -> None:
    order = NormOrder(SPACES, copies=[TiedUse(segment=4, name="c")])
    assert order.squares(C, [Piece(0, 0, 3)], [torch.ones(3)]) == {}
    assert order.num_blocks == 5


def test_the_scratch_leaves_a_gradient_in_double_precision_alone() -> None:
    value = torch.full((1,), 3.0, dtype=torch.float64)
    NormOrder(SPACES, copies=()).squares(B, [Piece(0, 0, 1)], [value])
    assert value.item() == 3.0
