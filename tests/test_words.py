import pytest

from dsv41c import words


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([20], "20"), ([24, 20, 21, 22], "20-22, 24"), ([1, 3, 5], "1, 3, 5"), ([4, 4, 5], "4-5")],
)
def test_ranges_fold_runs_whatever_the_order(numbers: list[int], text: str) -> None:
    assert words.ranges(numbers) == text


def test_ranges_count_what_is_beyond() -> None:
    assert words.ranges([0, 2, 3, 5, 7], most=2) == "0, 2-3 and 2 more"
    assert words.ranges([0, 2, 3], most=2) == "0, 2-3"


def test_layers_agree_with_their_number() -> None:
    assert words.layers([7]) == "layer 7"
    assert words.layers(range(5, 8)) == "layers 5-7"


def test_counted_agrees_with_the_number() -> None:
    assert [words.counted(number, "tensor") for number in (0, 1, 2048)] == ["0 tensors", "1 tensor", "2,048 tensors"]
    assert [words.counted(number, "entry") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_joined() -> None:
    assert [words.joined(list("abc")[:count], "or") for count in range(4)] == ["", "a", "a or b", "a, b or c"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (5 << 30, "5.0 GiB"), (2 << 40, "2.0 TiB")],
)
def test_size_takes_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert words.size(count) == text
