"""The seconds from the start of a process to its first training step, with empty caches and with full ones."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from softbias.bench.measuring import Row
from softbias.environment import variables_with

PROGRAM = """
import json, time
started = time.time()
import softbias.runs.fit as fit
import torch
torch.compiler.reset()  # imports the compiler, as every optimizer does when it is made
from softbias.training.recipe import RECIPES
from softbias.runs.spec import RunSpec
from softbias.training.display import Display
imported = time.time()
class Stop(Exception): pass
class First(Display):
    def step(self, step, row): self.at = time.time(); raise Stop
from softbias.training.plan import LoopSettings
recipe = RECIPES["small"].with_overrides(dict(batch_size=512, compile={compiled!r}, val_fraction=0.0, select="last"))
first = First()
import tempfile
with tempfile.TemporaryDirectory() as folder:
    try: fit.run_fit(RunSpec("fashion", {model!r}, recipe), folder + "/run", display=first, trackers=(), baseline=False,
                     settings=LoopSettings(look_every=1))
    except Stop: pass
print(json.dumps(dict(imports=imported - started, step=first.at - imported)))
"""

STARTS = (  # model, how, compile, seconds to reach
    ("deit_tiny", "eager", "off", 5.0),
    ("convit_tiny", "eager, its kernels for the first time", "off", 5.0),
    ("convit_tiny", "eager", "off", 5.0),
    ("convit_tiny", "compiled, for the first time", "on", None),
    ("convit_tiny", "compiled, second run of the same shape", "on", 10.0),
)


def start_up() -> Iterator[Row]:
    """Seconds from the imports to the first step, in this order, in fresh processes; the first starts with empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        for model, how, compiled, target in STARTS:
            program = PROGRAM.format(compiled=compiled, model=model)
            done = subprocess.run([sys.executable, "-c", program], env=variables_with(caches), capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the measured process failed: {done.stderr[-2000:]}")
            seen = json.loads(done.stdout.strip().splitlines()[-1])
            note = f"{seen['imports']:.1f} s of imports before"
            yield Row(f"{model}: first step", how, seen["step"], "s", target=target, higher=False, note=note)
