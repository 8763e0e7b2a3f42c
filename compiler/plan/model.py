"""What the plan templates see: text in order, every decision made. See `lower` for how it is worked out."""

from __future__ import annotations

from dataclasses import dataclass

LINE_LENGTH = 120


@dataclass(frozen=True, slots=True)
class StepModel:
    """A kernel call. `layout`: `line`, `hug` (arguments on one line of their own) or `column` (one a line).

    `comment` is what stands behind the statement, two spaces included, or empty.
    """

    targets: str
    op: str
    arguments: tuple[str, ...]
    layout: str
    comment: str


@dataclass(frozen=True, slots=True)
class BlockModel:
    """Steps that belong together, under a comment."""

    comment: str
    steps: tuple[StepModel, ...]


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """A region's function. `position` and `summary` make the comment above it, `headline` and `doc` its docstring."""

    position: str
    summary: str
    name: str
    parameters: tuple[str, ...]
    parameters_layout: str
    headline: str
    doc: tuple[str, ...]
    blocks: tuple[BlockModel, ...]
    results: tuple[str, ...]
    results_layout: str


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage file, and the stage's row in the README."""

    file: str
    title: str
    generated: tuple[str, ...]
    functions: tuple[FunctionModel, ...]
    index: int
    device: str
    layers: str
    state_bytes: str
    live_bytes: str


@dataclass(frozen=True, slots=True)
class BoundaryModel:
    """A row of the README's table of what crosses between stages."""

    stages: str
    value: str
    how: str
    bytes_per_token: str
    readers: str


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """A row of the README's table of collectives: those alike, how many a step has, and what each carries."""

    kind: str
    value: str
    regions: str
    bytes_per_token: str


@dataclass(frozen=True, slots=True)
class StateModel:
    """A row of the README's table of session state: one kind."""

    kind: str
    meaning: str
    layers: str
    bytes_per_session: str


@dataclass(frozen=True, slots=True)
class TailModel:
    """A row of the README's table of the rows at the end of a prompt that are computed: regions, and how many."""

    regions: str
    rows: str


@dataclass(frozen=True, slots=True)
class KernelModel:
    """A row of the README's table of kernels: one kernel, the kinds of ops it computes, and where it is called."""

    kernel: str
    covers: str
    regions: str


@dataclass(frozen=True, slots=True)
class BufferModel:
    """A row of the README's table of static buffers: one buffer."""

    name: str
    shape: str
    dtype: str
    meaning: str
    readers: str


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """A row of the README's table of memory: one device."""

    device: str
    weights: str
    state: str
    total: str


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A whole plan, for the templates. `kernels` is empty where the reference kernels serve every op.

    `shards` is the number of processes that share a stage, `collectives` is empty where that is 1; `of_each` says whose
    memory the table gives.
    """

    name: str
    tool: str
    numerics: str
    limits: str
    capture: str
    stages: tuple[StageModel, ...]
    boundaries: tuple[BoundaryModel, ...]
    shards: int
    collectives: tuple[CollectiveModel, ...]
    of_each: str
    states: tuple[StateModel, ...]
    window: int
    tails: tuple[TailModel, ...]
    kernels: tuple[KernelModel, ...]
    memory: tuple[MemoryModel, ...]
    buffers: tuple[BufferModel, ...]
    devices: str
