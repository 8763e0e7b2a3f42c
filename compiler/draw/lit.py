"""What belongs to the focus of a view: the rows and arcs that a picture without script shows stronger than others."""

from __future__ import annotations

from collections.abc import Iterable

from dsv41c.compiler.draw.view import View


def lit(view: View) -> tuple[frozenset[int], frozenset[int]]:
    """The positions of the rows and of the arcs of the focus: all of a state's; those that begin or end at a row."""
    assert view.focus is not None
    sort, name = view.focus
    if sort == "state":
        origin = next((state.origin for state in view.states if state.id == name), name)
        arcs = {number for number, arc in enumerate(view.arcs) if arc.origin == origin}
        made = {position for position, item in enumerate(view.items) if origin in item.writes}
        return frozenset(made | _ends(view, arcs)), frozenset(arcs)
    own = {position for position, item in enumerate(view.items) if name in (item.id, item.parent)}
    arcs = {number for number, arc in enumerate(view.arcs) if {arc.source, arc.target} & own}
    made_here = {view.arcs[number].origin for number in arcs if view.arcs[number].source in own}
    arcs |= {number for number, arc in enumerate(view.arcs) if arc.origin in made_here}
    arriving = [view.arcs[number].value for number in arcs if view.arcs[number].target in own]
    while arriving:
        value = arriving.pop()
        for number, arc in enumerate(view.arcs):
            if arc.crossing and arc.arrives == value and number not in arcs:
                arcs.add(number)
                arriving.append(arc.value)
    return frozenset(own | _ends(view, arcs)), frozenset(arcs)


def _ends(view: View, arcs: Iterable[int]) -> set[int]:
    return {end for number in arcs for end in (view.arcs[number].source, view.arcs[number].target)}
