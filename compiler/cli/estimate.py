"""`estimate`: what memory a plan needs on each device and on the host, before anything is loaded.

Keys of the JSON, `dsv41c.estimate/1.1` (a minor version may add some); sizes are exact bytes, null where not known:

- `name`, `family`, `context` and `sessions` (of the plan), `prefill_chunk`, `decode_buckets` (that sessions can fill);
- `global_kv_bytes_per_token`: of one session, in compressed KV and index keys, without copies on other stages;
- `engram`: null, or `storage` and `tables`, bytes by layer;
- `processes`: how many are counted on the host: one for each device, or for each of its shards. Without shards one can
  drive all devices, and takes less;
- `places`: `name` (a device, `host`, or both where they share a memory), `items` (`name`, `bytes`, `what`), `needed`,
  `available`, `margin` (below 0 where it is missing), `fits`, `largest` (the name of an item);
- `uncounted`: items that are mapped or stay on disk;
- `fits`: whether all fits that is judged, null where nothing is; `findings`: what does not, as diagnostics;
- `fit`: null, or `axis`, `largest` (null where not even 1 fits) and `limit` (the model's own, or the format's).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import FAILED, show
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.words import counted, size

if TYPE_CHECKING:
    from dsv41c.compiler.estimate import Estimate, Fit, Item, Place, Sizes
    from dsv41c.runtime.manifest import Manifest

FORMAT = "dsv41c.estimate/1.1"


def work(arguments: Namespace, console: Console) -> int:
    """Print what is needed; 1 where it does not fit."""
    _check(arguments)
    from dsv41c.compiler.cli.specs import compiled
    from dsv41c.compiler.estimate import Sizes, faults
    from dsv41c.compiler.spec.models import MAX_SESSIONS

    sizes = Sizes(arguments.device_memory, arguments.host_memory, arguments.unified)
    sessions = MAX_SESSIONS if arguments.fit == "sessions" else arguments.sessions  # decode buckets are cut at it
    if sessions is not None:
        arguments.sets.append(f"runtime.max_sessions={sessions}")
    manifest = compiled(arguments, console).manifest
    with console.step("estimate"):
        fit, found = _found(arguments, manifest, sizes)
    if arguments.json:
        console.result(_json(found, fit))
    else:
        console.result("\n".join(_lines(found, fit)) + "\n")
        show(console, faults(found))
    return FAILED if found.fits is False else 0


def _check(arguments: Namespace) -> None:
    """Raise `UsageError` where options do not go together."""
    known = [arguments.device_memory, arguments.host_memory].count(None)
    if arguments.unified and known != 1:
        raise UsageError("`--unified` is one memory: give its size with `--device-memory` or with `--host-memory`")
    if arguments.fit and known == 2:
        raise UsageError("`--fit` needs to know what there is: give `--device-memory`, `--host-memory` or both")
    if arguments.fit and getattr(arguments, arguments.fit) is not None:
        raise UsageError(f"`--fit {arguments.fit}` looks for what `--{arguments.fit}` says; leave one of them out")


def _found(arguments: Namespace, manifest: Manifest, sizes: Sizes) -> tuple[Fit | None, Estimate]:
    from dsv41c.compiler.estimate import estimate, fit
    from dsv41c.runtime.memory import sized

    longest = manifest.model.max_seq_len
    if arguments.context is not None and arguments.context > longest:
        raise UsageError(f"`--context {arguments.context}` is more than {longest}, `model.max_seq_len`")
    manifest = sized(manifest, context=arguments.context)
    if arguments.fit is None:
        return None, estimate(manifest, sizes)
    limit = longest if arguments.fit == "context" else manifest.runtime.max_sessions
    return fit(manifest, arguments.fit, limit, sizes)


# --- text -------------------------------------------------------------------------------------------------------------


def _lines(found: Estimate, fit: Fit | None) -> Iterator[str]:
    from dsv41c.runtime.memory import global_kv_bytes

    manifest = found.manifest
    runtime = manifest.runtime
    yield (
        f"{manifest.name}: {counted(runtime.max_sessions, 'session')} of {counted(runtime.max_context, 'token')}, "
        f"chunks of {runtime.prefill_chunk:,}; global KV {global_kv_bytes(manifest):,.10g} B a token of a session"
    )
    wide = max(len(item.name) for place in found.places for item in (*place.items, *found.uncounted))
    for place in found.places:
        yield place.name
        yield from (_item(item, wide) for item in place.items)
        yield f"  {'in all':{wide}}  {size(place.needed):>10}  {_verdict(place)}"
    if found.uncounted:
        yield "not counted"
        yield from (_item(item, wide) for item in found.uncounted)
    if fit is not None:
        yield _fit(fit, [place.name for place in found.places if place.available is None])


def _item(item: Item, wide: int) -> str:
    return f"  {item.name:{wide}}  {size(item.bytes):>10}  {item.what}".rstrip()


def _verdict(place: Place) -> str:
    largest = f"most of it {place.largest.name}, {size(place.largest.bytes)}"
    if place.available is None or place.margin is None:
        return f"not judged; {largest}"
    left = f"{size(place.margin)} left" if place.margin >= 0 else f"{size(-place.margin)} too much"
    return f"{'fits' if place.fits else 'does not fit'} into {size(place.available)}, {left}; {largest}"


def _fit(fit: Fit, unjudged: list[str]) -> str:
    what = "context" if fit.axis == "context" else "number of sessions"
    if fit.largest is None:
        return f"no {what} fits, not even 1"
    most = ", the most there can be" if fit.largest == fit.limit else f"; {fit.largest + 1} does not"
    but = f" ({', '.join(unjudged)} not judged)" if unjudged else ""
    return f"the largest {what} that fits is {fit.largest}{most}{but}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(found: Estimate, fit: Fit | None) -> str:
    from dsv41c.compiler.estimate import faults, processes, tables
    from dsv41c.report import render
    from dsv41c.runtime.memory import global_kv_bytes
    from dsv41c.runtime.work_space import decode_sizes

    manifest = found.manifest
    engram = manifest.engram
    findings = json.loads(render(faults(found), {}, "json"))["diagnostics"]
    data = {
        "format": FORMAT,
        "name": manifest.name,
        "family": manifest.target.family,
        "context": manifest.runtime.max_context,
        "sessions": manifest.runtime.max_sessions,
        "prefill_chunk": manifest.runtime.prefill_chunk,
        "decode_buckets": list(decode_sizes(manifest)),
        "global_kv_bytes_per_token": global_kv_bytes(manifest),
        "engram": None if engram is None else {"storage": engram.storage, "tables": tables(manifest)},
        "processes": processes(manifest),
        "places": [_place(place) for place in found.places],
        "uncounted": [_data(item) for item in found.uncounted],
        "fits": found.fits,
        "findings": findings,
        "fit": None if fit is None else {"axis": fit.axis, "largest": fit.largest, "limit": fit.limit},
    }
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _place(place: Place) -> dict[str, object]:
    return {
        "name": place.name,
        "items": [_data(item) for item in place.items],
        "needed": place.needed,
        "available": place.available,
        "margin": place.margin,
        "fits": place.fits,
        "largest": place.largest.name,
    }


def _data(item: Item) -> dict[str, object]:
    return {"name": item.name, "bytes": item.bytes, "what": item.what}
