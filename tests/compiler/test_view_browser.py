"""The viewer in a browser: what a person does with Flash and toy, and that nothing leaves the page."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv41c.compiler.draw import page
from dsv41c.compiler.draw.build_view import view
from dsv41c.compiler.draw.compare import Side
from dsv41c.compiler.draw.facts import facts
from dsv41c.compiler.draw.merge import merged
from dsv41c.compiler.draw.view import Measure, View

from .browser import Page, browser
from .test_view import FLASH, hostile, program, seen


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def flash() -> View:
    return seen(FLASH, "rocm8")


def opened(tab: Page, view: View, place: Path) -> Page:
    file = place / "view.html"
    file.write_text(page.html(view), encoding="utf-8")
    tab.open(file)
    return tab


@pytest.fixture(autouse=True)
def quiet(tab: Page) -> Iterator[None]:
    """No error in the console, and no request but for the page itself."""
    yield
    assert tab.errors == []
    assert [re.sub("^file:.*/", "", address) for address in tab.requests] == ["view.html"]


def panel(tab: Page) -> str:
    return tab.js("document.getElementById('panel').innerText")


def shown_edges(tab: Page, kind: str) -> int:
    return tab.js(
        f"[...document.querySelectorAll('.edge[data-kind={kind}]')]"
        ".filter((edge) => getComputedStyle(edge).display !== 'none').length"
    )


def rows(tab: Page) -> int:
    return tab.js("document.querySelectorAll('.row').length")


def test_search_finds_a_layer(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    tab.key("/", "/")
    assert tab.js("document.activeElement.id") == "search"
    tab.type("layer 27")
    assert "layer 27" in panel(tab)
    tab.key("Enter", "\r")
    assert panel(tab).startswith("layer 27")
    assert "rocm:5" in panel(tab)
    tab.key("Escape")
    assert panel(tab).startswith(FLASH)


def test_a_state_lists_its_readers(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    tab.click('[data-state="compress_kv@L20"]')
    assert panel(tab).startswith("compress_kv@L20")
    assert "layers 20-39" in panel(tab)
    assert "kv_source_layers: [2, 8, 14, 20]" in panel(tab)
    buttons = tab.js("[...document.querySelectorAll('#panel .links')][0].innerText").split()
    assert [int(word) for word in buttons if word.isdigit()] == list(range(20, 40))
    lit = tab.js("[...document.querySelectorAll('.row.lit')].map((row) => row.dataset.row)")
    assert lit[0] == "layers.20"
    assert "layers.19" not in lit


def test_an_edge_tells_what_crosses(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    at = next(n for n, arc in enumerate(flash.arcs) if arc.crossing and arc.origin == "candidates@L20")
    tab.js(f"document.querySelector('[data-edge=\"{at}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert "candidates@L20 crosses rocm:4 → rocm:5" in panel(tab)
    told = panel(tab)
    (state,) = [state for state in flash.states if state.id == "candidates@L20"]
    shape = f"{state.dtype} [{', '.join(state.shape)}]"
    for part in ("64 B per token", shape, "capture region", "kernel", "Read by (4)"):
        assert part in told


def test_a_layer_tells_what_it_writes_and_keeps(tab: Page, tmp_path: Path):
    view = seen()
    opened(tab, view, tmp_path)
    tab.click('[data-row="layers.5"]')
    (layer,) = [item for item in view.items if item.id == "layers.5"]
    written = [state for state in view.states if state.id in layer.writes]
    for measure, word in (("bytes_per_token", "token"), ("bytes_per_session", "session")):
        total = sum(getattr(state, measure) or 0 for state in written)
        assert total and f"{total:,g} B per {word}" in panel(tab)


def test_a_state_without_a_part_of_its_own_leads_to_its_layer(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    tab.click("#fold")
    for state, row in (("window_kv@L37", "layers.37"), ("window_kv@L36.before", "layers.36")):
        tab.key("/", "/")
        tab.js("document.getElementById('search').value = ''")
        tab.type(state)
        tab.key("Enter", "\r")
        assert panel(tab).startswith(state)
        assert tab.js("document.activeElement.dataset.row") == row
        box = tab.js(
            "(() => { const b = document.activeElement.getBoundingClientRect(); return [b.top, b.bottom]; })()"
        )
        assert 0 < box[0] < box[1] < 900


def test_folding_keeps_the_place_of_the_keys(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    stop = "[...document.querySelectorAll('#stage [tabindex=\"0\"]')].map((part) => part.dataset.row)"
    tab.js("document.querySelector('[data-row=\"layers.20\"]').focus()")
    tab.key("ArrowDown")
    assert tab.js(stop) == ["layers.21"]
    tab.key(" ", " ")  # unfolds layers 21-23
    assert tab.js("document.activeElement.dataset.row") == "layers.21"
    tab.key("ArrowDown")
    assert tab.js(stop) == ["layers.22"]
    tab.click("#fold")
    tab.click("#fold")  # layer 22 is inside a fold again, which stands for it
    assert tab.js(stop) == ["layers.21"]


def test_who_reads_and_what_is_read(tab: Page, tmp_path: Path):
    opened(tab, seen(), tmp_path)
    lit = "[...document.querySelectorAll('.row.lit')].map((row) => row.dataset.row)"
    tab.click('[data-row="layers.5"]')
    tab.click("#panel .ask button:nth-child(1)")
    assert tab.js(lit) == ["layers.5", "layers.6", "layers.7"]
    tab.click("#panel .ask button:nth-child(2)")
    assert tab.js(lit) == ["layers.4", "layers.5"]


def test_toggles_hide_arcs(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    for kind in ("topk", "streams"):
        before = shown_edges(tab, kind)
        assert before
        tab.click(f"[data-toggle={kind}]")
        assert shown_edges(tab, kind) == 0
        tab.click(f"[data-toggle={kind}]")
        assert shown_edges(tab, kind) == before


def test_fold_and_unfold(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    every = sum(item.row for item in flash.items)
    few = every - sum(fold.last - fold.first for fold in flash.folds)
    assert rows(tab) == few
    tab.js("document.querySelector('[data-fold]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert rows(tab) == few + flash.folds[0].last - flash.folds[0].first
    tab.click("#fold")
    assert rows(tab) == every
    drawn = tab.js("[...document.querySelectorAll('path.arc')].map((path) => path.getAttribute('d'))")
    in_svg = re.findall(r'<path class="arc[^"]*" d="([^"]*)"', page.svg(flash))
    numbers = [[float(number) for number in re.findall(r"-?[\d.]+", d)] for d in drawn]
    expected = [[float(number) for number in re.findall(r"-?[\d.]+", d)] for d in in_svg]
    assert len(numbers) == len(expected)
    for one, other in zip(numbers, expected, strict=True):
        assert one == pytest.approx(other, abs=0.05)
    tab.click("#fold")
    assert rows(tab) == few


def test_keys_walk(tab: Page, tmp_path: Path):
    opened(tab, seen(), tmp_path)
    assert tab.js("getComputedStyle(document.getElementById('fold')).display") == "none"  # no layers that are equal
    tab.js("document.querySelector('[data-row=\"layers.4\"]').focus()")
    tab.key("ArrowDown")
    assert tab.js("document.activeElement.dataset.row") == "layers.5"
    tab.key("ArrowRight")
    assert tab.js("document.activeElement.dataset.state") == "compress_kv@L5"
    tab.key("Enter", "\r")
    assert panel(tab).startswith("compress_kv@L5")
    tab.key("ArrowUp")
    tab.key("Enter", "\r")
    assert panel(tab).startswith("layer 4")


def test_wheel_and_drag_move_and_fit_brings_back(tab: Page, tmp_path: Path):
    opened(tab, seen(), tmp_path)
    where = "document.querySelector('#stage svg > g').getAttribute('transform')"
    first = tab.js(where)
    tab.send("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=300, deltaX=0, deltaY=-200)
    zoomed = tab.js(where)
    assert float(zoomed.split("scale(")[1][:-1]) > float(first.split("scale(")[1][:-1])
    for kind, x in (("mousePressed", 300), ("mouseMoved", 340), ("mouseReleased", 340)):
        tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=300, button="left", buttons=1, clickCount=1)
    assert float(tab.js(where)[10:].split()[0]) == pytest.approx(float(zoomed[10:].split()[0]) + 40)
    moved = tab.js(where)
    tab.js("window.dispatchEvent(new Event('resize'))")
    assert tab.js(where) == moved
    for kind, x in (("mousePressed", 300), ("mouseMoved", 340)):
        tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=300, button="left", buttons=1, clickCount=1)
    tab.js("window.dispatchEvent(new PointerEvent('pointercancel'))")
    moved = tab.js(where)
    for kind, x in (("mouseMoved", 400), ("mouseReleased", 400)):
        tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=300, button="left", clickCount=1)
    assert tab.js(where) == moved
    tab.click("#fit")
    assert tab.js(where) == first


def test_light_and_dark(tab: Page, tmp_path: Path):
    opened(tab, seen(), tmp_path)
    colour = "getComputedStyle(document.querySelector('.box')).fill"
    for scheme in ("light", "dark"):
        tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        before = tab.js(colour)
        tab.click("#theme")
        assert tab.js(colour) != before
        tab.click("#theme")
        assert tab.js(colour) == before
    tab.send("Emulation.setEmulatedMedia", features=[])


def test_everything_in_reach_has_a_name(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    nameless = (
        "[...document.querySelectorAll('#stage [role=button]')].filter((part) => !part.getAttribute('aria-label'))"
    )
    assert tab.js(f"{nameless}.length") == 0
    assert tab.js("document.querySelectorAll('#stage [tabindex=\"0\"]').length") == 1


def test_titles_of_columns_stay_in_view(tab: Page, flash: View, tmp_path: Path):
    opened(tab, flash, tmp_path)
    tops = "[...document.querySelectorAll('.titles > g')].map((title) => title.getBoundingClientRect().top)"
    above = tab.js("document.getElementById('stage').getBoundingClientRect().top")
    names = tab.js("[...document.querySelectorAll('.titles .column')].map((title) => title.textContent)")
    assert names == list(flash.columns)
    tab.click("#fold")
    for kind, y in (("mousePressed", 500), ("mouseMoved", -3000), ("mouseReleased", -3000)):
        tab.send("Input.dispatchMouseEvent", type=kind, x=500, y=y, button="left", buttons=1, clickCount=1)
    assert tab.js("document.querySelector('.row').getBoundingClientRect().bottom") < above
    assert all(above <= top < above + 30 for top in tab.js(tops))


def test_differences_are_listed_and_lead_to_their_rows(tab: Page, tmp_path: Path):
    sets = ["layers.kv_source_layers=[2, 8, 14, 20, 28]", "layers.candidate_source_layer=28"]
    sides = [
        Side(each.graph, view(each.graph, each.devices, facts(each)), "it")
        for each in (program(FLASH), program(FLASH, sets=sets))
    ]
    opened(tab, merged(*sides), tmp_path)
    assert "re-sourced (3)" in panel(tab)
    assert tab.js("document.querySelectorAll('.edge.is-removed').length") > 0
    assert "re-sourced" in tab.js("document.querySelector('[data-row=\"layers.32\"]').textContent")
    tab.click(".differences.is-removed button")
    assert panel(tab).startswith("layer 20")
    assert "no longer made by layer 20" in panel(tab)
    tab.key("Escape")
    tab.click(".differences.is-added button")
    assert panel(tab).startswith("layer 28")
    tab.click("#panel .links button")
    tab.click('[data-state="compress_kv@L20"]')
    assert "read by before" in panel(tab)


def test_moved_rows_leave_an_outline(tab: Page, tmp_path: Path):
    opened(tab, hostile(), tmp_path)
    assert tab.js("document.querySelectorAll('.ghost').length") > 0


def test_numbers_colour_rows(tab: Page, tmp_path: Path):
    numbers = (("layers.0", 1.0), ("layers.3", 3.0))
    measures = (Measure("time", "us", numbers), Measure("other", "", (("head", 5.0),)))
    opened(tab, dataclasses.replace(seen(), title="a step", measures=measures), tmp_path)
    heated = "[...document.querySelectorAll('.heated')].map((row) => row.dataset.row)"
    assert tab.js(heated) == ["layers.0", "layers.3"]
    assert tab.js("document.querySelectorAll('.unmeasured').length") == 8
    assert tab.js("document.getElementById('measures').innerText").split("\n")[-1].endswith("3 us")
    tab.click('[data-row="layers.3"]')
    assert "3 us" in panel(tab)
    choose = (
        "(() => { const select = document.querySelector('#measures select'); select.value = %d;"
        " select.dispatchEvent(new Event('change')); })()"
    )
    tab.js(choose % 1)
    assert tab.js(heated) == ["head"]
    tab.js(choose % -1)
    assert tab.js("document.querySelectorAll('.heated, .unmeasured').length") == 0


def test_by_op_a_layer_opens(tab: Page, tmp_path: Path):
    opened(tab, seen(FLASH, "rocm8", level="op"), tmp_path)
    assert rows(tab) == 46  # 40 layers, and the ops that are in none
    tab.key("/", "/")
    tab.type("layers.24.attn.attend")
    tab.key("Enter", "\r")
    assert panel(tab).startswith("layers.24.attn.attend")
    assert tab.js("document.querySelector('[data-row=\"layers.24.attn.attend\"]') !== null")
    lit = tab.js("[...document.querySelectorAll('.row.lit')].map((row) => row.dataset.row)")
    assert {"layers.24.attn.query", "layers.24.attn.output", "layers.24.attn.select_topk"} <= set(lit)


def test_a_focus_is_open_at_first(tab: Page, flash: View, tmp_path: Path):
    opened(tab, dataclasses.replace(flash, focus=("state", "compress_kv@L20")), tmp_path)
    assert panel(tab).startswith("compress_kv@L20")
    assert tab.js("document.activeElement.dataset.state") == "compress_kv@L20"
    box = tab.js("(() => { const b = document.activeElement.getBoundingClientRect(); return [b.x, b.y]; })()")
    assert 0 < box[0] < 1100 and 0 < box[1] < 900


def test_hostile_names_do_nothing(tab: Page, tmp_path: Path):
    opened(tab, hostile(), tmp_path)
    assert "</script>" in panel(tab)
    tab.key("Escape")
    assert "</script>" in panel(tab)
    tab.click(".chip-group")
    tab.click(".row")
    assert "</script>" in panel(tab)
    assert tab.js("window.broken") is None
    assert tab.js("document.querySelectorAll('script').length") == 2
    assert tab.js("document.querySelectorAll('img').length") == 0


def test_hundreds_of_layers_open(tab: Page, tmp_path: Path):
    ratios = "layers.compress_ratios={0-1: 0, 2-4: 2, 5-399: 1}"
    opened(tab, seen(sets=["model.n_layers=400", "placement.layer_ends=[400]", ratios]), tmp_path)
    tab.click("#fold")
    assert rows(tab) == 402
