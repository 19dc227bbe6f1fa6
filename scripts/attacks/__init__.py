"""Attacks on softbias, a file for each kind; `scripts/attack.py` runs them.

A kind is a class: `Kind(workshop)` prepares it, `len(kind)` counts its cases, `kind.title(number)` names one,
`kind.run(number)` returns its outcome. The same seed and number give the same case.
"""
