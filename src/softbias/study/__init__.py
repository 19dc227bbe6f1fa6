"""Studies: models × data × fractions × seeds → runs → intervals → a report."""
