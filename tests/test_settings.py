"""Environment variables: each read once, a bad value refused, an unknown name told."""

import pytest

from dsv41c.diagnostics import UserFault
from dsv41c.settings import Settings, read_settings


def test_nothing_set():
    assert read_settings({"PATH": "x", "DSV41": "y"}) == Settings()


def test_values():
    given = {"DSV41C_COLOR": "never", "DSV41C_DEBUG": "2", "DSV41C_THREADS": "3", "DSV41C_VERIFY": "1"}
    assert read_settings(given) == Settings("never", 2, 3, True)
    assert read_settings({"DSV41C_STRICT": "1"}) == Settings(strict=True)
    assert read_settings({"DSV41C_STRICT": "0"}) == Settings()


def test_no_color():
    assert read_settings({"NO_COLOR": "1"}).color == "never"
    assert read_settings({"NO_COLOR": ""}).color == "auto"
    assert read_settings({"NO_COLOR": "1", "DSV41C_COLOR": "always"}).color == "always"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLOR", "red"),
        ("DEBUG", "-1"),
        ("DEBUG", "3"),
        ("DEBUG", ""),
        ("STRICT", "on"),
        ("THREADS", "0"),
        ("THREADS", "²"),
        ("VERIFY", "yes"),
    ],
)
def test_bad_values_are_refused(name: str, value: str):
    with pytest.raises(UserFault) as caught:
        read_settings({f"DSV41C_{name}": value})
    (finding,) = caught.value.diagnostics
    assert finding.code == "DSV152"
    assert f"DSV41C_{name}" in finding.message


def test_all_bad_values_at_once():
    with pytest.raises(UserFault) as caught:
        read_settings({"DSV41C_DEBUG": "x", "DSV41C_THREADS": "x", "DSV41C_TREADS": "1"})
    assert [finding.code for finding in caught.value.diagnostics] == ["DSV152", "DSV152", "DSV153"]
