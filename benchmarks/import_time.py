"""How long `import vqkit` takes, against the two modules it cannot do without.

    python benchmarks/import_time.py [--runs 15]

Medians of fresh interpreters with cached bytecode, the three taken in turn so that a noisy
machine disturbs all alike; the time of starting Python itself is taken off.
"""

# ruff: noqa: T201 - printing is what a benchmark is for
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CASES = {
    "nothing": "pass",
    "import asyncio, sqlite3": "import asyncio, sqlite3",
    "import vqkit": "import vqkit",
    "from vqkit import Queue": "from vqkit import Queue",
}


def once(code: str, env: dict[str, str]) -> float:
    """Seconds of one fresh interpreter."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return time.perf_counter() - begun


def main() -> None:
    """Prints medians and ratios; asserts nothing about time."""
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=15)
    runs = options.parse_args().runs
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as cache:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env |= {"PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": str(Path(__file__).parent.parent)}
        for code in CASES.values():  # fills the cache
            once(code, env)
        for _ in range(runs):
            for name, code in CASES.items():
                taken[name].append(once(code, env))
    start = median(taken.pop("nothing"))
    base = median(taken["import asyncio, sqlite3"]) - start
    for name, seconds in taken.items():
        own = median(seconds) - start
        print(f"{name}: {own * 1000:.1f} ms, {own / base:.2f} times asyncio and sqlite3")


if __name__ == "__main__":
    main()
