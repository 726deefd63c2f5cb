"""Progress bars: in the notebook, in the terminal, or seldom in a log file."""

import os
import sys
from typing import Any

from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_auto

from qe import TERMINAL


def progress_bar(shown: bool = True, **settings: Any) -> tqdm:
    """A bar of tqdm's, with the settings that are its own."""
    terminal = bool(os.environ.get(TERMINAL))
    tty = sys.__stderr__ is not None and sys.__stderr__.isatty()
    live = tty or ("ipykernel" in sys.modules and not terminal)
    return (tqdm if terminal else tqdm_auto)(
        disable=not shown,
        mininterval=0.5 if live else 30,
        file=sys.__stderr__ if terminal else None,
        **settings,
    )
