"""Checks of the engram: layers, tables and hash constants agree."""

from __future__ import annotations

from dsv41c.compiler.checks.ledger import Ledger, listed
from dsv41c.compiler.checks.view import View
from dsv41c.compiler.checks.words import layers as layers_text
from dsv41c.compiler.checks.words import listing
from dsv41c.compiler.engram_hash import MAX_BUCKETS, columns, derivable, hash_constants
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.words import counted

_LIST = "engram_layers"
_ROWS = "num_embeddings"
_HASHED = "hash_layers"


def engram_without_part(view: View, ledger: Ledger) -> None:
    """Engram layers need an engram section, and the other way round."""
    if view.layers is None or "engram" in view.loaded.invalid or not ledger.sound(listed(_LIST)):
        return
    wanted = view.layers.engram_layers
    if wanted and view.engram is None:
        message = f"{layers_text(wanted)} have an engram, and the spec has no `engram` section"
        if len(wanted) == 1:
            message = message.replace("have", "has", 1)
        facts = (("layers.engram_layers", listing(wanted)),)
        help_text = "add an `engram` section, or leave out `engram_layers`"
        place = view.place("layers", _LIST)
        ledger.report(Diagnostic("DSV306", message, place, facts=facts, help=help_text), [listed(_LIST), listed(_ROWS)])
    elif not wanted and view.engram is not None:
        message = "the spec has an `engram` section, and no layer has an engram"
        facts = (("layers.engram_layers", "[]"),)
        help_text = "name the layers in `layers.engram_layers`, or write `engram: null`"
        span = view.loaded.spans.key(("engram",))
        ledger.report(Diagnostic("DSV306", message, span, facts=facts, help=help_text), [listed(_LIST), listed(_ROWS)])


def engram_lists_disagree(view: View, ledger: Ledger) -> None:
    """Every engram layer has the rows of its table."""
    if view.layers is None or view.engram is None or not ledger.sound(listed(_LIST), listed(_ROWS)):
        return
    wanted, given = len(view.layers.engram_layers), len(view.engram.num_embeddings)
    if wanted == given:
        return
    message = f"`num_embeddings` has {counted(given, 'entry')}, `engram_layers` has {counted(wanted, 'layer')}"
    labels = (Label(view.place("layers", _LIST), f"{wanted} engram layers"),)
    facts = (("layers.engram_layers", listing(view.layers.engram_layers)),)
    help_text = "give the rows of each engram layer's table, in the order of `engram_layers`"
    place = view.place("engram", _ROWS)
    ledger.report(Diagnostic("DSV305", message, place, labels, facts, help_text), [listed(_ROWS)])


def hash_layers_disagree(view: View, ledger: Ledger) -> None:
    """Of a model that was cut from another, every engram layer says which layer of that it was, in the same order."""
    if view.layers is None or view.engram is None or not ledger.sound(listed(_LIST)):
        return
    engram_layers, named = view.layers.engram_layers, view.engram.hash_layers
    if named is None or (len(named) == len(engram_layers) and list(named) == sorted(set(named))):
        return
    if len(named) != len(engram_layers):
        differs = f"has {counted(len(named), 'entry')}, `engram_layers` has {counted(len(engram_layers), 'layer')}"
    else:
        differs = "is not ascending"
    facts = (("engram.hash_layers", listing(named)), ("layers.engram_layers", listing(engram_layers)))
    help_text = "name the layer of the whole model that each engram layer was, or leave it out if it was never cut"
    place, labels = view.place("engram", _HASHED), (Label(view.place("layers", _LIST), "the engram layers"),)
    message = f"`{_HASHED}` {differs}"
    ledger.report(Diagnostic("DSV309", message, place, labels, facts, help_text), [listed(_HASHED)])


def rows_differ(view: View, ledger: Ledger) -> None:
    """A table holds exactly the buckets that the hash can reach: its rows are the sum of its bucket primes."""
    if view.layers is None or view.engram is None or not ledger.sound(*map(listed, (_LIST, _ROWS, _HASHED))):
        return
    engram, engram_layers = view.engram, view.layers.engram_layers
    if list(engram_layers) != sorted(engram_layers):
        return  # in another order the primes are others; the order is a finding of its own
    if not derivable(engram, len(engram_layers)):
        count = columns(engram) * len(engram_layers)
        message = f"the engram has {count} hash buckets, more than the {MAX_BUCKETS} that are derived"
        facts = (
            ("engram.max_ngram_size", str(engram.max_ngram_size)),
            ("engram.n_heads", str(engram.n_heads)),
            ("engram layers", str(len(engram_layers))),
        )
        help_text = "use fewer heads, n-gram sizes or engram layers"
        place = view.loaded.spans.key(("engram",))
        ledger.report(Diagnostic("DSV308", message, place, facts=facts, help=help_text))
        return
    constants = hash_constants(engram, engram_layers, engram.hash_layers, engram.num_embeddings)
    wrong = [index for index, layer in enumerate(constants) if layer.rows != engram.num_embeddings[index]]
    if not wrong:
        return
    expected = [layer.rows for layer in constants]
    first = wrong[0]
    message = (
        f"the table of layer {engram_layers[first]} has {engram.num_embeddings[first]} rows, "
        f"its bucket primes add up to {expected[first]}"
    )
    if len(wrong) > 1:
        message += f" (and {len(wrong) - 1} more {'table differs' if len(wrong) == 2 else 'tables differ'})"
    facts = (
        (f"engram.num_embeddings[{first}]", str(engram.num_embeddings[first])),
        ("engram.vocab_size", str(engram.vocab_size)),
        (
            "primes of the layer",
            f"{constants[first].primes[0]} to {constants[first].primes[-1]}, {columns(engram)} of them",
        ),
    )
    shown = ", ".join(map(str, expected[:16])) + (", …" if len(expected) > 16 else "")
    help_text = f"write `num_embeddings: [{shown}]`, or mend `vocab_size`, `n_heads` or `max_ngram_size`"
    place = view.place("engram", _ROWS, first)
    labels = (Label(view.place("engram", "vocab_size"), "primes are searched from here"),)
    ledger.report(Diagnostic("DSV307", message, place, labels, facts, help_text))
