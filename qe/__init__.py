"""UCB Exploration via Q-Ensembles: five algorithms, one code path.

Units, used everywhere in this package:

- *frame*: one emulator frame (4 per action on Atari, 1 on MinAtar and DeepSea);
- *step*: one action of the agent;
- *update*: one gradient step.
"""

import ctypes
import os
import sys
from pathlib import Path

if sys.platform == "win32":  # no fork, no fcntl, no signals between processes
    sys.exit("qe runs on Linux and macOS; on Windows, run it in WSL, its subsystem for Linux.")

# Every update allocates gradients of up to 64 MB. The first touch of memory that is fresh from
# the kernel costs more than the arithmetic on it, so it comes in huge pages (torch reads this
# variable when it is first imported) and, once freed, is kept for the next update. Set either
# variable to 0 to switch it off.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
if os.environ.setdefault("QE_KEEP_MEMORY", "1") != "0":
    _mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # only glibc has it
    _mallopt(-4, 0)  # M_MMAP_MAX: large blocks too come from the heap,
    _mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: which does not shrink

__version__ = "0.1.0"
ROOT = Path(__file__).parent.parent  # the repository, wherever a notebook is run from
RESULTS = ROOT / "results"
TERMINAL = "QE_TERMINAL"  # in the environment: show a run's bar there, not in the notebook
