"""Codes 89x: plans that several processes run. Each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV890",
        "processes-of-another-number",
        "a plan was started in a number of processes that is not its own",
        """
A plan runs in one process, which drives all of its devices, or in one process for each device; with
`placement.tensor_parallel: N` in N for each. A device that comes again in `placement.devices` counts once. `torchrun`
says how many there are (WORLD_SIZE).

**Way out**: start as many as the message says, or compile the plan for as many devices as there are processes.
""",
    ),
    _code(
        "DSV891",
        "step-failed-elsewhere",
        "a step failed in another process of the run",
        """
Every stage takes part in every step. Where one fails, the stages behind it are told and do not run, and every process
raises: the one where it happened its own error, the others this. State of the step's sessions is then half-way, so they
are broken everywhere; sessions that had no part in the step go on.

**Way out**: mend what the message names; reset or close the sessions.
""",
    ),
    _code(
        "DSV892",
        "process-gone",
        "another process of the run has gone",
        """
A process ended, was killed, or stood still for seconds. What it held, weights and state of its stages, is lost, so the
run ends in every process, with exit code 2.

**Way out**: look at what that process wrote last; memory is the usual cause (`dsv41c estimate` says what a plan takes).
Then start the run again.
""",
    ),
    _code(
        "DSV893",
        "processes-disagree",
        "processes of one run were asked for different things",
        """
The processes of a run make the same calls in the same order: which session is opened, fed, forked, reset and closed
decides which slot of the state it has, and every stage has to use the same one. A step goes ahead with its number and a
checksum of its sessions' slots and positions, and here they were not those that this process expected.

**Way out**: let every process run the same program on the same input, random numbers included.
""",
    ),
)
