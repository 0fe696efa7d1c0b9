"""What the fork server imports before it forks the process that holds the models.

Every object of these modules is then left out of garbage collection: a collection writes to each
object that it looks at, so the processes would no longer share its page of memory.
"""

from __future__ import annotations

import atexit
import gc

import service.process.engine  # noqa: F401
from service.core.allocator import give_back_memory

gc.collect()
give_back_memory()
gc.freeze()
atexit.register(gc.unfreeze)  # else libraries report at the end that objects are left
