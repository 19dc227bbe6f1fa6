"""Why a model decided as it did, for one picture: `softbias.explain(model, "cat.jpg")`."""

from __future__ import annotations

from softbias.explanations.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
