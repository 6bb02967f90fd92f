"""Prints the first two commands of README, a line each, as CI runs them."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, re.DOTALL)
commands = [line for block in blocks for line in block.strip().splitlines() if line.strip()]
if len(commands) < 2:
    sys.exit("README has no two commands")
sys.stdout.write("\n".join(commands[:2]) + "\n")
