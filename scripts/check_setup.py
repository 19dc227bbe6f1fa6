"""Do torch, torchvision and timm work together here? Says what is wrong and how to mend it, with exit status 1.

Nothing but the standard library is imported at the top: this must run, and explain, in a broken environment.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "torchvision", "timm")
ROOT = Path(__file__).resolve().parent.parent


def main():
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        return complain([f"softbias needs Python 3.11 or newer, but {sys.executable} is Python {found}."])

    versions = {name: version_of(name) for name in PACKAGES}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    mend = f"    cd {ROOT} && {sys.executable} -m pip install -c constraints.txt"
    if None in versions.values():
        return complain([f"The set-up is not complete: {found}.", "To mend it:", f"{mend} -e '.[dev]'"])

    # In a process of its own: a build that does not fit may crash instead of raising.
    tried = subprocess.run([sys.executable, "-c", f"import {', '.join(PACKAGES)}"], capture_output=True, text=True)
    if tried.returncode == 0:
        print(f"Set-up is sound: Python {sys.version.split()[0]}, {found}")
        return 0
    reason = (tried.stderr.strip().splitlines() or [f"the import ended with status {tried.returncode}"])[-1]
    return complain(
        [
            f"torch, torchvision and timm are installed but cannot be imported together: {found}.",
            f"    {reason}",
            "As a rule this is a torch build (from another index, or a local wheel) whose torchvision was made for another",
            "torch: its compiled operators are then not found, and timm, torchmetrics and transformers fail with it.",
            "To put back the pair that constraints.txt names:",
            f"{mend} --force-reinstall torch torchvision",
            "To keep your own torch, install the torchvision of the same release from the place your torch came from.",
        ]
    )


def version_of(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def complain(lines):
    print("\n".join(lines), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
