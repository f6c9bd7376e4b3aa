"""Ways to run simulated kernels: fast, for a debugger, or with checkers in the compiled code."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from convloom.ir import ConvloomError


class SimulationError(ConvloomError):
    """A simulated kernel did what no kernel may; names layer, kernel, block and thread."""


@dataclass(frozen=True)
class Mode:
    """One way to compile and run kernels.

    Attributes:
        compile: what g++ is told besides the flags of every mode.
        link: likewise, when it links.
        runtime: likewise, for the runtime library, which is never instrumented itself.
        checked: the checkers need the names and places of static shared variables.
        apart: kernels run in a process of their own, which a checker may end.
        orders: each launch is repeated in this many orders of threads and must give the same bits.
    """

    name: str
    compile: tuple[str, ...]
    link: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    checked: bool = False
    apart: bool = False
    orders: int = 1


#: What UBSan looks for: what is undefined in CUDA C++ too and what a GPU would get wrong silently.
#: Its other checks (null, object size, pointer arithmetic) find here what AddressSanitizer finds
#: anyway, and cost most of the compile time.
_UNDEFINED = (
    "alignment",
    "bool",
    "bounds",
    "float-cast-overflow",
    "integer-divide-by-zero",
    "shift",
    "signed-integer-overflow",
    "unreachable",
)
_SANITIZERS = f"-fsanitize=address,{','.join(_UNDEFINED)}"

MODES = {
    mode.name: mode
    for mode in (
        Mode("plain", ("-O2", "-g1")),
        Mode("debug", ("-O0", "-g"), runtime=("-g", "-DCONVLOOM_SIM_LARGE_FRAMES")),
        Mode(
            "asan",
            ("-O1", "-g1", _SANITIZERS, "-fno-sanitize-recover=all"),
            link=("-fsanitize=address,undefined",),
            runtime=("-DCONVLOOM_SIM_ASAN", "-DCONVLOOM_SIM_LARGE_FRAMES"),
            checked=True,
            apart=True,
        ),
        # Linked without -fsanitize=thread: the runtime takes the place of its library.
        Mode(
            "race",
            ("-O1", "-g1", "-fsanitize=thread"),
            runtime=("-DCONVLOOM_SIM_RACE",),
            checked=True,
            orders=3,
        ),
    )
}


def mode_of_environment() -> Mode:
    """The mode that ``$CONVLOOM_SIM`` names, ``plain`` by default.

    Raises:
        ConvloomError: there is no such mode.
    """
    name = os.environ.get("CONVLOOM_SIM") or "plain"
    if name not in MODES:
        raise ConvloomError(f"CONVLOOM_SIM={name} is unknown; choose one of {', '.join(MODES)}")
    return MODES[name]


def patience(mode: Mode) -> float:
    """Seconds within which a block must end: ``$CONVLOOM_SIM_TIMEOUT``, else 60; 0 is no limit.

    Somebody who steps through a kernel has no limit by default.

    Raises:
        ConvloomError: the variable is not a number of seconds.
    """
    wished = os.environ.get("CONVLOOM_SIM_TIMEOUT")
    if not wished:
        return 0.0 if mode.name == "debug" else 60.0
    try:
        seconds = float(wished)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ConvloomError(
            f"CONVLOOM_SIM_TIMEOUT must be a number of seconds (0 for no limit), it is {wished!r}"
        )
    return seconds
