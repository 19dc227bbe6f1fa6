"""Attack softbias: damage files, kill processes, fill the disk, send nonsense, and count what breaks.

    python scripts/attack.py                                  # every kind, 3,000 cases or more, in half an hour
    python scripts/attack.py --kinds damage --cases 100 --seconds 40
    python scripts/attack.py --seed 1 --only damage:17        # one case again, with what it printed

Everything happens in a temporary folder, which is removed, and on 127.0.0.1. A table says how many cases of each kind ended
how (`attacks/verdict.py` explains the verdicts); each case that failed has a line. Exit status 1 if one did.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections import Counter
from typing import Any

from attacks.bad_files import BadFiles
from attacks.commands import Commands
from attacks.damage import Damage, StudyDamage
from attacks.full_disk import FullDisk
from attacks.hostile_images import HostileImages
from attacks.kills import Kills
from attacks.requests import Requests
from attacks.verdict import VERDICTS, AskedToStopError, Outcome, where
from attacks.workshop import Workshop

KINDS: dict[str, Any] = {
    "damage": Damage, "studies": StudyDamage, "kills": Kills, "full-disk": FullDisk, "pictures": HostileImages,
    "commands": Commands, "files": BadFiles, "requests": Requests,
}  # fmt: skip


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, stop)
    shop = Workshop(options.seed)
    try:
        if options.only:
            kind, _, number = options.only.partition(":")
            return repeat(KINDS[kind](shop), int(number))
        return attack(shop, options)
    finally:
        shop.close()


def stop(number: int, frame: Any) -> None:
    raise AskedToStopError


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attack softbias and count what breaks.")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn at random")
    parser.add_argument("--seconds", type=float, default=1800, help="no case begins later, counted from the first one")
    parser.add_argument("--cases", type=int, default=10_000, help="at most this many, shared among the kinds")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}, separated by commas")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one case again")
    options = parser.parse_args()
    unknown = [name for name in options.kinds.split(",") if name not in KINDS]
    if unknown or (options.only and options.only.partition(":")[0] not in KINDS):
        parser.error(f"the kinds are {', '.join(KINDS)}")
    return options


def repeat(kind: Any, number: int) -> int:
    found = kind.run(number)
    print(f"{kind.title(number)}\n{found.verdict}: {found.detail}")
    return found.verdict != "ok"


def attack(shop: Workshop, options: argparse.Namespace) -> int:
    """Cases of all kinds in turn, until all are done or the time is over."""
    kinds = {name: KINDS[name](shop) for name in options.kinds.split(",")}
    start = time.monotonic()
    counts: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    failures: list[str] = []
    done = 0
    # The kinds advance together: each has had the same share of its cases at any time.
    order = sorted((number / len(kind), name, number) for name, kind in kinds.items() for number in range(len(kind)))
    for _, name, number in order[: options.cases]:
        if time.monotonic() - start > options.seconds:
            break
        try:
            found: Outcome = kinds[name].run(number)
        except Exception as error:
            found = Outcome("unclear", f"the attack itself failed: {where(error)}")
        counts[name][found.verdict] += 1
        done += 1
        if found.verdict != "ok":
            failures.append(f"{name}:{number}  {found.verdict}  {kinds[name].title(number)}  [{found.detail}]")
            print(failures[-1], flush=True)
    print(table(counts))
    minutes = (time.monotonic() - start) / 60
    print(f"{done:,} of {len(order):,} cases in {minutes:.1f} minutes, seed {options.seed}; {len(failures):,} failed")
    for line in failures:
        print(f"again: python scripts/attack.py --seed {options.seed} --only {line.split()[0]}")
    return 1 if failures or not done else 0


def table(counts: dict[str, Counter[str]]) -> str:
    """Kinds × verdicts, as Markdown."""
    rows = [["kind", "cases", *VERDICTS]]
    total: Counter[str] = Counter()
    for name, found in counts.items():
        total += found
        rows.append([name, *(f"{number:,}" for number in (found.total(), *(found[verdict] for verdict in VERDICTS)))])
    rows.append(["all", *(f"{number:,}" for number in (total.total(), *(total[verdict] for verdict in VERDICTS)))])
    rows.insert(1, ["---", *("---:" for _ in range(len(VERDICTS) + 1))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    code = 3
    try:
        code = main()
    except SystemExit as end:  # of the parser of options, or because an undamaged run fails
        code = end.code if isinstance(end.code, int) else 3
        print(end if code == 3 else "", file=sys.stderr, end="")
    except AskedToStopError:
        code = 143
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of libraries may still wait for something that the attack took away
