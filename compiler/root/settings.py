"""Every environment variable the project reads, parsed once; a bad value is a coded error, never a silent default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

from dsv41c.diagnostics import Diagnostic, Span, UserFault, has_errors

PREFIX = "DSV41C_"
Color = Literal["auto", "always", "never"]
COLORS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    `color` of text output; `debug` 0 to 2 (1: times of steps; 2: also checks of state in `run`, and where in our code
    a fault was raised); `threads` of the CPU for `run`, None for what torch chooses; `verify` runs the graph checks
    after every pass of `compile`; `strict` holds `run` to the capture rules of the plan's devices, on the CPU.
    `warnings` are variables that nothing reads.
    """

    color: Color = "auto"
    debug: int = 0
    threads: int | None = None
    verify: bool = False
    strict: bool = False
    warnings: tuple[Diagnostic, ...] = ()


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings of an environment. Raises `UserFault` with DSV152 for every value that cannot be."""
    known = {f"{PREFIX}{name}": parse for name, parse in _PARSERS.items()}
    values: dict[str, object] = {}
    findings: list[Diagnostic] = []
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            findings.append(_unknown(name, list(known)))
            continue
        try:
            values[name.removeprefix(PREFIX).lower()] = known[name](environment[name])
        except ValueError as error:
            span = Span(f"<environment {name}>")
            message = f"`{name}` is `{environment[name]}`, {error}"
            findings.append(Diagnostic("DSV152", message, span, help=f"unset {name}, or give it such a value"))
    if has_errors(findings):
        raise UserFault(findings)
    if environment.get("NO_COLOR") and "color" not in values:
        values["color"] = "never"
    return Settings(**values, warnings=tuple(findings))  # type: ignore[arg-type]


def _unknown(name: str, known: list[str]) -> Diagnostic:
    near = get_close_matches(name, known, n=1, cutoff=0.8)  # they all share a prefix
    help_text = f"did you mean `{near[0]}`?" if near else f"the variables that are read are {', '.join(sorted(known))}"
    return Diagnostic(
        "DSV153", f"`{name}` is not a variable that is read", Span(f"<environment {name}>"), help=help_text
    )


def _color(text: str) -> Color:
    if text not in COLORS:
        raise ValueError(f"not one of {', '.join(COLORS)}")
    return cast(Color, text)


def _number(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not lowest <= int(text) <= highest:
            raise ValueError(f"not a number from {lowest} to {highest}")
        return int(text)

    return parse


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("not 0 or 1")
    return text == "1"


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "COLOR": _color,
    "DEBUG": _number(0, 2),
    "STRICT": _switch,
    "THREADS": _number(1, 4096),
    "VERIFY": _switch,
}
