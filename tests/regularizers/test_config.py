"""What the user types after --regularize."""

import pytest

from softbias.regularizers import REGULARIZERS, parse_regularizer, parse_regularizers


@pytest.mark.parametrize("kind", REGULARIZERS)
def test_the_weight_of_the_documents_is_the_default(kind):
    assert parse_regularizer(f"{kind}:layer=2").weight == 0.01


def test_several_layers_are_joined_by_plus():
    assert parse_regularizer("style:layer=0+-1,rho=0.17,distance=released,region=2").layers == (0, -1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("distanze:layer=2", "did you mean 'distance'"),
        ("distance", "which layer"),
        ("distance:layer=two", "layer must be a number"),
        ("distance:layer=2,wieght=1", "did you mean 'weight'"),
        ("distance:layer=2,weight=much", "weight must be a number"),
        ("distance:layer=2,weight=-1", "weight must be a number from 0"),
        ("distance:layer=2,layer=3", "twice"),
        ("distance:layer", "NAME=VALUE"),
        ("style:layer=1,alpha=4", "no option of the regularizer style 'alpha'"),
    ],
)
def test_a_mistake_is_named(text, words):
    with pytest.raises(ValueError, match=words):
        parse_regularizer(text)


def test_the_same_regularizer_twice_is_refused():
    with pytest.raises(ValueError, match="given twice"):
        parse_regularizers(["distance:layer=1", "distance:layer=1,beta=500"])
