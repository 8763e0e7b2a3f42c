"""From the plan model to text, by the templates of `dsv41c.templates`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING

from dsv41c.compiler.plan.model import PlanModel, StageModel

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """The environment of text templates: no HTML escaping, and an undefined name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("dsv41c.templates", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(model: PlanModel) -> Mapping[str, str]:
    """The generated files by name: every stage file, and the README."""
    stages = {stage.file: _text("plan/stage.py.j2", stage) for stage in model.stages}
    return stages | {"README.md": _text("plan/README.md.j2", model)}


def _text(template: str, model: StageModel | PlanModel) -> str:
    # Not dataclasses.asdict: templates read the nested models as they are.
    variables = {field.name: getattr(model, field.name) for field in fields(model)}
    return environment().get_template(template).render(variables)
