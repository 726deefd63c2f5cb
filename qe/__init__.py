"""UCB Exploration via Q-Ensembles: five algorithms, one code path.

Units, used everywhere in this package:

- *frame*: one emulator frame (4 per action on Atari, 1 on MinAtar and the chain);
- *step*: one action of the agent;
- *update*: one gradient step.
"""

import os
from pathlib import Path

# Read by torch when it is first imported. Every update allocates gradients of up to 64 MB;
# with 4 kB pages, touching them costs more than the arithmetic. Set it to 0 to switch it off.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
ROOT = Path(__file__).parent.parent  # the repository, wherever a notebook is run from
RESULTS = ROOT / "results"
TERMINAL = "QE_TERMINAL"  # in the environment: show a run's bar there, not in the notebook
